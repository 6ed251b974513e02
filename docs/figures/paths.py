"""The pictures of the files that a gradient passes."""

from svg import Picture


def gradient_paths() -> Picture:
    """The files that a gradient passes under HFDT: in `fit`, and in a script with its own loop."""
    p = Picture(860, 520, "A gradient's way through the files of HFDT, in fit and in a replicated script")
    p.text(225, 20, "fit (extract)", "small")
    p.text(635, 20, "a loop of the script's own (replicate)", "small")
    extracted = (
        ("hfdt/worker/session.py", "Keras's train_step computes; its apply is ours", "worker"),
        ("hfdt/worker/exchange.py", "one step of the algorithm", "worker"),
        ("hfdt/algorithms/allreduce.py", "asks for the mean, then for the update", "engine"),
        ("hfdt/worker/step_context.py", "weight of this rank's rows; a sum per bucket", "worker"),
        ("hfdt/collectives/horovod.py", "a grouped all-reduce per bucket", "server"),
    )
    replicated = (
        ("replica/functions.py, eager.py", "TensorFlow's call of a function or operation", "client"),
        ("replica/graph/emit.py", "placements by rules/; waves of collectives", "client"),
        ("replica/graph/collective.py", "one vector of each dtype", "client"),
        ("replica/exchange.py", "sums of Partials, gathers of Shards", "client"),
        ("fdt/process_group/root.py, peer.py", "shared memory; streams between hosts", "server"),
    )
    for x, boxes in ((45, extracted), (455, replicated)):
        for row, (file, what, kind) in enumerate(boxes):
            p.box(x, 35 + 84 * row, 360, 54, [file, what], kind)
        for row in range(len(boxes) - 1):
            y = 89 + 84 * row
            p.arrow([(x + 130, y), (x + 130, y + 30)])
            p.arrow([(x + 230, y + 30), (x + 230, y)])
    p.text(
        430,
        478,
        "down: this rank's part of the gradient; up: the sum over all ranks, which every rank applies",
        "small",
    )
    p.text(
        430,
        500,
        "left: Keras's own optimizer applies it; right: the script's own code uses it",
        "small",
    )
    return p


def push_pull() -> Picture:
    """The files that one push and the pull that answers it pass."""
    p = Picture(820, 400, "One push of NFDT and the pull that answers it: the files it passes")
    p.text(140, 20, "worker", "small")
    p.text(410, 20, "server: one shard", "small")
    p.text(690, 20, "algorithm", "small")
    columns = (
        (20, 240, "worker", ("worker/lane.py", "transport/grpc_channel.py", "transport/buffers.py")),
        (290, 240, "server", ("server/service.py", "server/shard_service.py", "server/scheduler.py")),
        (560, 240, "engine", ("server/algorithm_state.py", "server/applier.py", "algorithms/...")),
    )
    does = (
        ("one lane's channels to all shards", "one stream to one shard", "tensors in mapped files or chunks"),
        ("decodes the push", "one lock, one reply queue per worker", "decides; batch_dispatcher.py deals"),
        ("version, staleness, log", "one compiled function", "tree.py traces its arithmetic"),
    )
    for (x, width, kind, files), words in zip(columns, does, strict=True):
        for row, (file, what) in enumerate(zip(files, words, strict=True)):
            p.box(x, 35 + 100 * row, width, 56, [file, what], kind)
    for x in (110, 380, 650):
        for y in (91, 191):
            p.arrow([(x, y), (x, y + 44)])
            p.arrow([(x + 60, y + 44), (x + 60, y)])
    p.arrow([(260, 255), (275, 255), (275, 55), (290, 55)])
    p.arrow([(290, 75), (268, 75), (268, 275), (260, 275)])
    p.arrow([(530, 255), (545, 255), (545, 55), (560, 55)])
    p.arrow([(560, 75), (538, 75), (538, 275), (530, 275)])
    below = (
        "push: a WorkerGradient, from the worker to the applier; the algorithm returns an AlgorithmUpdate",
        "pull: Weights, the answer to the push, back through the same files",
        "in one process: server/local.py in place of grpc_channel.py and service.py; simulated: simulator/workers.py",
    )
    for row, words in enumerate(below):
        p.text(410, 330 + 22 * row, words, "small")
    return p
