"""TensorFlow 1: sessions, the optimizers of `tf.compat.v1`, and its gradients."""

from tensorflow.python.client.session import BaseSession
from tensorflow.python.client.session import _FetchMapper as FetchMapper
from tensorflow.python.ops import gradients_util
from tensorflow.python.training import (
    adadelta,
    adagrad,
    adam,
    gradient_descent,
    momentum,
    proximal_gradient_descent,
    rmsprop,
)
from tensorflow.python.training.basic_session_run_hooks import SecondOrStepTimer
from tensorflow.python.training.optimizer import Optimizer
from tensorflow.python.training.sync_replicas_optimizer import SyncReplicasOptimizer
from tensorflow.python.util import nest
