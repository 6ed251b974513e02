"""Division of large data into chunks: gRPC is slow with messages of 100 MB and fast with streams of 1-2 MiB."""

from collections.abc import Iterator

CHUNK_BYTES = 2 << 20


def chunks(data: memoryview) -> Iterator[memoryview]:
    """Yield views of `data` of CHUNK_BYTES each, the last one shorter; empty data are one empty view."""
    data = data.cast("B")
    for start in range(0, max(len(data), 1), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
