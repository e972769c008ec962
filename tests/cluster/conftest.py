"""One node for all tests of a worker of pytest."""

import pytest
from cluster.clusters import one_node

from longtail.cluster import connected


@pytest.fixture(scope="package")
def ray():
    with one_node() as ray:
        yield ray


@pytest.fixture
def workers(ray):
    with connected("local") as workers:
        yield workers
