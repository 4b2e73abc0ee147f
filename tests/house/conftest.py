"""What the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.house import sources


@pytest.fixture(scope="package", autouse=True)
def trees() -> Iterator[None]:
    """Syntax trees of all files are made once, and do not stay for tests of other folders."""
    yield
    sources.tree.cache_clear()
    sources.walk.cache_clear()
