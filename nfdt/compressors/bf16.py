"""16-bit floats with the exponent of float32 and 8 bits of precision: half the bytes.

Kalamkar et al., 2019, arXiv:1905.12322.
"""

import ml_dtypes

from nfdt.compressors import TensorCompressor
from nfdt.compressors.fp16 import rounding


def compressor() -> TensorCompressor:
    """Make the compressor. It has no parameters."""
    return rounding(ml_dtypes.bfloat16)
