"""16-bit floats with the exponent of float32: half the bytes, 8 bits of precision, no overflow.

Kalamkar et al., 2019, arXiv:1905.12322. A sum is computed in float32 and rounded once.
"""

import tensorflow as tf

from hfdt.compressors import GradientCompressor
from hfdt.compressors.fp16 import rounding


def compressor() -> GradientCompressor:
    """Make the compressor. It has no parameters and no state."""
    return rounding(tf.bfloat16)
