"""Large bytes in pieces. gRPC crawls with messages of 100 MB and flies with streams of 1-2 MiB."""

from collections.abc import Iterator

CHUNK_BYTES = 2 << 20


def chunks(data: memoryview, size: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """Views of `data`, `size` bytes each, the last one shorter. At least one, so that empty data travel too."""
    data = data.cast("B")
    for start in range(0, max(len(data), 1), size):
        yield data[start : start + size]
