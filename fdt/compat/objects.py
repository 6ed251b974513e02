"""TensorFlow's objects beside tensors: datasets, lookup tables, wrapped containers and exported symbols."""

from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.ops import gen_dataset_ops, gen_experimental_dataset_ops, lookup_ops
from tensorflow.python.trackable import data_structures
from tensorflow.python.util import object_identity, tf_export
