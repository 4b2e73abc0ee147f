"""The page of settings names the variables that the settings are read from, and so does settings.py."""

import re
from pathlib import Path

from tilelink import settings
from tilelink.compiler.cpu import DEADLINE_S
from tilelink.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


class Asked(dict[str, str]):
    """An empty environment that keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.names.add(key)
        return default


def test_the_page_names_what_is_read() -> None:
    asked = Asked()
    Settings.from_environment(asked)
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.M)
    assert sorted(rows) == sorted(asked.names)
    own = re.findall(r"^([A-Z]+(?:_[A-Z]+)+)  ", settings.__doc__ or "", re.M)
    assert set(own) == asked.names - {"XDG_CACHE_HOME"}


def test_the_page_knows_the_deadline_of_cpu_ranks() -> None:
    (row,) = re.findall(r"^\| `TILELINK_DEADLINE` \|.*\| (\d+) on CPU ranks", PAGE.read_text(), re.M)
    assert float(row) == DEADLINE_S
