"""Commands and functions that start or show runs: configuration, the Python API, completion of command lines."""

SHARED_COMMANDS = {  # of both engines; imported when they are called
    "attach": "frontends.attach:attach_command",
    "certs": "fdt.cli.hosts:certs_command",
    "completion": "frontends.completion:completion_command",
    "config": "frontends.config_command:config_command",
    "queue": "frontends.pool.queue_command:queue_command",
    "report": "frontends.report.command:report_command",
    "ui": "frontends.ui.command:ui_command",
}
