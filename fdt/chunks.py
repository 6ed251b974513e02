"""Large bytes in pieces. gRPC crawls with messages of 100 MB and flies with streams of 1-2 MiB."""

from collections.abc import Iterator

CHUNK_BYTES = 2 << 20


def chunks(data: memoryview) -> Iterator[memoryview]:
    """Views of `data`, CHUNK_BYTES each, the last one shorter. At least one, so that empty data travel too."""
    data = data.cast("B")
    for start in range(0, max(len(data), 1), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
