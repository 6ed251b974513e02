import pytest


@pytest.fixture
def cluster(tmp_path):
    """Makes servers and a worker's courier in this process (tests/single/nfdt_cluster.py)."""
    from tests.single.nfdt_cluster import clusters  # TensorFlow: where it is asked for

    with clusters(tmp_path) as make:
        yield make
