"""The words that editors see are those of the table in stubs.py."""

from __future__ import annotations

import pytest

from tests.conftest import Golden
from tests.frontend import stubs
from tests.house import sources


def test_the_words_that_editors_see_are_those_of_the_table(request: pytest.FixtureRequest) -> None:
    golden = Golden(sources.ROOT / "tilelink" / "language", bool(request.config.getoption("--update-golden")))
    golden("__init__.py", stubs.source())
