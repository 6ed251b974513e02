"""Three hosts of tests/namespaces.py, each with an sshd that lets root of the others in."""

import re
import shutil
import subprocess
from pathlib import Path

from fdt.launch.emulated import address_of
from fdt.launch.namespaces import crossed, network_of
from tests.namespaces import OWN_TMP, NamespaceHosts, until

SSHD = "/usr/sbin/sshd"
SERVES_SSH = f"""
mkdir /run/sshd; mount --bind "$2/passwd" /etc/passwd
read _; exec {SSHD} -D -e -f "$2/sshd_config"
"""


class SshHosts(NamespaceHosts):
    """host1, host2 and host3. `settings`: variables of what runs by ssh, "NAME=VALUE"."""

    def __init__(self, directory: Path, *settings: str) -> None:
        _prepare(directory, *settings)
        super().__init__(directory, ["host1", "host2", "host3"], SERVES_SSH)
        for name in self.pids:
            until(lambda name=name: "Server listening" in (directory / f"{name}.log").read_text())

    def command(self, *argv: object) -> list[str]:
        """`argv` on host1."""
        return self.on("host1", *argv)

    def run(self, *argv: object) -> str:
        return self.output("host1", *argv)

    def crossed(self) -> dict[str, int]:
        """Bytes over each host's interface so far."""
        return {name: sum(crossed(network_of(pid)).values()) for name, pid in self.pids.items()}

    def cut(self, name: str, state: str = "down") -> None:
        """Take the link of a host down, or up again."""
        subprocess.run(
            ["nsenter", f"--net=/proc/{self.pids[name]}/ns/net", "ip", "link", "set", "eth0", state], check=True
        )


def _prepare(directory: Path, *env: str) -> None:
    """Keys, sshd's configuration, names: root's home is here as far as the hosts know."""
    ssh = directory / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    for key in (ssh / "id_ed25519", directory / "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    shutil.copy(ssh / "id_ed25519.pub", ssh / "authorized_keys")
    public = (directory / "host_key.pub").read_text()
    (ssh / "known_hosts").write_text("".join(f"host{n},{address_of(n)} {public}" for n in (1, 2, 3)))
    passwd = Path("/etc/passwd").read_text()
    (directory / "passwd").write_text(
        re.sub(r"^(root:.*:)[^:]*(:[^:]*)$", rf"\g<1>{directory}/home\2", passwd, flags=re.M)
    )
    settings = f"HostKey {directory}/host_key\nAuthorizedKeysFile {ssh}/authorized_keys\n"
    settings += f"SetEnv {' '.join([OWN_TMP, *env])}\n"
    (directory / "sshd_config").write_text(settings + "StrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile none\n")
