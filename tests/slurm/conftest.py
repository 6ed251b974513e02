"""The cluster of all tests here, and what their script prints on one machine."""

import pytest

from tests.slurm.cluster import SlurmCluster, missing
from tests.slurm.job import TRAIN, losses, printed_alone


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if said := missing():
        pytest.skip(f"Slurm: {said}")
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.close()


@pytest.fixture
def slurm(cluster):
    """The cluster; a test that fails leaves its job to no other test."""
    yield cluster
    cluster.slurm("scancel", "--user=root")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of TRAIN on one machine."""
    return losses(printed_alone(tmp_path_factory.mktemp("alone"), TRAIN))
