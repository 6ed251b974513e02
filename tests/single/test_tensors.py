import numpy as np
import pytest

from fdt import tensors
from fdt.blobs import LocalBlobs

ARRAYS = [
    np.arange(6, dtype="float32").reshape(2, 3),
    np.array(7, "int64"),
    np.zeros((0, 4), "uint8"),
    np.array([["a", "bcd"], ["", "ü"]], object),
    np.arange(12).reshape(3, 4).T,
    np.arange(6, dtype=">f4").reshape(2, 3)[:, ::2],  # as files of MNIST and of FITS hold them
    np.array(7, ">i8"),
]


def same(a, b):
    assert len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert left.shape == right.shape
        if left.dtype == object:
            assert [str(v).encode() if isinstance(v, str) else v for v in left.ravel()] == list(right.ravel())
        else:
            np.testing.assert_array_equal(left, right)


def test_arrays_survive_packing():
    same(ARRAYS, tensors.unpack(tensors.pack(ARRAYS)))


def test_arrays_are_aligned_views():
    packed = tensors.pack(ARRAYS)
    first = tensors.unpack(packed)[0]
    assert first.base is not None
    before = first.copy()
    first += 1
    np.testing.assert_array_equal(tensors.unpack(packed)[0], before + 1)


@pytest.mark.parametrize("cut", [0, 5, 20, 100])
def test_cut_bytes_are_refused(cut):
    with pytest.raises((ValueError, Exception), match="Received|Error parsing"):
        tensors.unpack(bytes(tensors.pack(ARRAYS))[:cut])


def test_a_blob_is_read_by_another_store_of_the_directory(tmp_path):
    ref = LocalBlobs(tmp_path).put_arrays(ARRAYS)
    views = LocalBlobs(tmp_path).get_arrays(ref)
    LocalBlobs(tmp_path).drop(ref)
    same(ARRAYS, views)
    with pytest.raises(KeyError):
        LocalBlobs(tmp_path).get(ref)


@pytest.mark.parametrize("value", [None, 3, [1, (2, {"a": 3, "b": None})], (), {"k": []}])
def test_structure_survives_flattening(value):
    assert tensors.unflatten(*tensors.flatten(value)) == value
