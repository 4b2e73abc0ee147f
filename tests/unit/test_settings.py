"""Settings: defaults, what each variable means, and what a wrong value says."""

import subprocess
import sys
from pathlib import Path

import pytest

from tilelink import settings as module
from tilelink.errors import SettingsError
from tilelink.settings import Settings, environment, override, settings


def test_defaults() -> None:
    found = Settings.from_environment({})
    cache = Path.home() / ".cache" / "tilelink"
    assert found == Settings(cache=cache, deadline=None, interpret=False, dumps=cache / "dumps")


def test_dumps_go_to_the_cache_or_elsewhere_or_nowhere() -> None:
    """Where the cache is, or where the variable says."""
    named = {text: Settings.from_environment({"TILELINK_CACHE": "/c", "TILELINK_DUMP": text}).dumps
             for text in ("", "0", "off", "here", "/there")}  # fmt: skip
    assert named == {
        "": Path("/c/dumps"), "0": None, "off": None, "here": Path.cwd() / "here", "/there": Path("/there")
    }  # fmt: skip


def test_cache_follows_xdg_and_the_own_variable_wins(tmp_path: Path) -> None:
    assert Settings.from_environment({"XDG_CACHE_HOME": str(tmp_path)}).cache == tmp_path / "tilelink"
    assert Settings.from_environment({"XDG_CACHE_HOME": "relative"}).cache == Path.home() / ".cache" / "tilelink"
    both = {"XDG_CACHE_HOME": str(tmp_path), "TILELINK_CACHE": "~/here"}
    assert Settings.from_environment(both).cache == Path.home() / "here"
    assert Settings.from_environment({"TILELINK_CACHE": "here"}).cache == Path.cwd() / "here"


@pytest.mark.parametrize(("text", "seconds"), [("", None), ("2.5", 2.5), (" 30 ", 30.0), ("1e-3", 0.001)])
def test_deadline(text: str, seconds: float | None) -> None:
    assert Settings.from_environment({"TILELINK_DEADLINE": text}).deadline == seconds


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan", "5s"])
def test_a_deadline_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({"TILELINK_DEADLINE": text})
    assert f"TILELINK_DEADLINE is {text!r}, which is not a number of seconds" in str(caught.value)
    assert "TILELINK_DEADLINE=30" in str(caught.value)


@pytest.mark.parametrize(("text", "flag"), [("1", True), ("True", True), ("on", True), ("0", False), ("", False)])
def test_interpret(text: str, flag: bool) -> None:
    assert Settings.from_environment({"TRITON_INTERPRET": text}).interpret is flag


def test_a_flag_that_is_neither_is_refused() -> None:
    with pytest.raises(SettingsError, match="TRITON_INTERPRET is 'maybe', which is neither on nor off"):
        Settings.from_environment({"TRITON_INTERPRET": "maybe"})


def test_settings_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_current", None)
    monkeypatch.setenv("TILELINK_DEADLINE", "7")
    first = settings()
    monkeypatch.setenv("TILELINK_DEADLINE", "8")
    assert settings() is first
    assert first.deadline == 7


def test_override_replaces_and_restores() -> None:
    before = settings()
    with override(deadline=1.5) as inner, override(interpret=True):
        assert inner.deadline == settings().deadline == 1.5
        assert settings().interpret
    assert settings() is before


def test_override_restores_after_an_error() -> None:
    before = settings()
    with pytest.raises(ZeroDivisionError), override(deadline=1.5):
        _ = 1 / 0
    assert settings() is before


def test_override_refuses_a_name_that_is_no_setting() -> None:
    with pytest.raises(SettingsError, match="no such setting: dedline") as caught, override(dedline=1.0):
        pass
    assert "cache, deadline, interpret" in str(caught.value)


def test_environment_reaches_child_processes_and_is_undone() -> None:
    code = "from tilelink.settings import settings; print(settings().deadline)"

    def child() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    with environment(TILELINK_DEADLINE="3"):
        assert settings().deadline == 3
        assert child() == "3.0"
        with environment(TILELINK_DEADLINE=None):
            assert child() == "None"
        assert settings().deadline == 3
    assert settings().deadline is None
    assert child() == "None"


def test_adopted_variables_replace_all_and_are_read() -> None:
    before, other = module.variables(), {"HOME": "/nowhere", "TILELINK_DEADLINE": "7"}
    assert settings().deadline != 7
    try:
        module.adopt(other)
        assert settings().deadline == 7 and settings().cache == Path("/nowhere/.cache/tilelink")
        assert module.variables() == other
    finally:
        module.adopt(before)


def test_a_cache_of_a_user_that_there_is_not() -> None:
    with pytest.raises(SettingsError, match="TILELINK_CACHE is '~nobody-of-that-name/x', and there is no such user"):
        Settings.from_environment({"TILELINK_CACHE": "~nobody-of-that-name/x"})


def test_a_user_without_a_home_is_told_to_name_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(SettingsError, match="no home folder") as caught:
        Settings.from_environment({})
    assert caught.value.hint == "set TILELINK_CACHE"
    assert Settings.from_environment({"TILELINK_CACHE": str(tmp_path)}).cache == tmp_path
