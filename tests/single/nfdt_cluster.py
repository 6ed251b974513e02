"""Sessions, servers and shards in one process: real gRPC, a model per shard, one worker with a fixed order."""

import contextlib
import threading

import keras
import numpy as np
import tensorflow as tf

from client_shim.capture.program import capture_program
from fdt.blobs import LocalBlobs
from fdt.job import ArrayData, FitArguments, JobSpec, State
from fdt.keras import named
from fdt.security.auth import new_token
from fdt.trainable import Trainable, build
from nfdt import compressors
from nfdt.model.shards import merge, pushed_others
from nfdt.server.follower import FollowerShardService, follow
from nfdt.server.job import ServedJob
from nfdt.server.service import Service
from nfdt.server.shard_service import ShardService
from nfdt.transport import Interrupted, WorkerGradient
from nfdt.transport.grpc_channel import GrpcChannels
from nfdt.worker.lane import LaneChannels
from nfdt.worker.step import ownerships

SPEC = (tf.TensorSpec((None, 8), tf.float32), tf.TensorSpec((None,), tf.float32), None)


def make_model(optimizer):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((8,)), *layers])
    model.compile(optimizer, "mse")
    named("keras").build(model, SPEC)
    return model


class Cluster:
    """`shards` servers in threads of this process, and one worker's courier."""

    def __init__(self, directory, model, shards=1, workers=1, steps=8, **options):
        self.blobs, self.token, self.events = LocalBlobs(directory), new_token(), []
        self.breaks = 0  # of a follower's stream of the log, to come
        self.trainable = Trainable(named("keras"), model)
        program, _ = capture_program(self.trainable.flavor, model, self.blobs)
        state = State(
            self.blobs.put_arrays(self.trainable.model_arrays()),
            self.blobs.put_arrays(self.trainable.optimizer_arrays()),
        )
        data = ArrayData(state.model, "0", 0)
        self.spec = JobSpec("j", program, state, data, FitArguments(epochs=9), options=options)
        self.addresses = [f"unix:{directory}/{shard}.sock" for shard in range(shards)]
        self.channel, self.steps, self.said = options.get("channel", "auto"), steps, threading.Condition()
        self.services = [Service(self.blobs, self.token, a, self._failed) for a in self.addresses]
        self.shard_services = [self._shard_service(shard, shards, workers) for shard in range(shards)]
        self.owned = ownerships(self.trainable, shards)

    def _shard_service(self, shard, shards, workers):
        job = ServedJob(self.spec, build(self.spec.program, self.blobs), self.blobs, shard, shards, workers)
        shard_service = (FollowerShardService if shard else ShardService)(job, workers, self._hear)
        self.services[shard].show(shard_service)
        if shard:
            replay = shard_service.replay
            shard_service.replay = lambda log: replay(self._until_broken(log))
            threading.Thread(target=follow, args=(shard_service, self.addresses[0], self.token), daemon=True).start()
        return shard_service

    def _failed(self, error, detail):
        raise AssertionError(detail)

    def _hear(self, event):
        with self.said:
            self.events.append(event)
            self.said.notify_all()

    def _until_broken(self, log):
        for entry in log:
            if self.breaks:
                self.breaks -= 1
                raise Interrupted("on purpose: this entry is lost on the way")
            yield entry

    def channels(self, worker=0, incarnation=0):
        directory = None if self.channel == "grpc" else self.blobs.directory
        compression = compressors.make(self.spec.options.get("compress", ""))
        channels = GrpcChannels(self.addresses, self.token, "j", incarnation, directory, compression)
        return LaneChannels(channels(worker, self.steps, self.owned), self.owned)

    def start(self, epoch):
        for shard_service in self.shard_services:
            shard_service.start_epoch(epoch, State())

    def snapshot(self):
        """The whole model after an epoch, as the engine puts it together."""
        with self.said:
            assert self.said.wait_for(lambda: len(self.events) >= len(self.shard_services), 30)
            ends, self.events = sorted(self.events, key=lambda e: -e.epoch_end.steps), []
        groups = [[self.blobs.get_arrays(getattr(e.epoch_end.state, g)) for e in ends] for g in ("model", "optimizer")]
        return [group[0] if len(ends) == 1 else merge(group) for group in groups]

    def close(self):
        for shard_service in self.shard_services:
            shard_service.close()
        for service in self.services:
            service.close()


@contextlib.contextmanager
def clusters(tmp_path):
    """Makes them; all are closed in the end."""
    made = []

    def make(*args, **kwargs):
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Cluster(directory, *args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


def gradients(trainable, number):
    rng = np.random.default_rng(number)
    return [tf.constant(rng.normal(size=v.shape), tf.float32) for v in trainable.trainable]


def pushed(cluster, number, batches, samples=1):
    """A push: gradients of all variables, and what the forward pass changed besides."""
    whole, others = gradients(cluster.trainable, number), pushed_others(cluster.trainable)
    changes = [tf.fill(v.shape, 0.5) for v in others]
    forward = {"changes": changes, "changed": range(len(others)), "decays": [1.0] * len(others)}
    return WorkerGradient(whole, samples, batches=batches, **forward)
