"""A headless Chromium, driven by the WebDriver protocol: what a test needs to move a mouse over a page and look."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--window-size=1400,900",
)  # fmt: skip
MISSING = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
"""Programs of a browser that this machine lacks."""


class Browser:
    """A session with one window."""

    def __init__(self, address: str, folder: str) -> None:
        self._address = address
        options = {"args": [*ARGUMENTS, f"--user-data-dir={folder}"], "binary": shutil.which("chromium")}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self._address += f"/session/{self.ask('/session', wanted)['sessionId']}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, page: Path) -> None:
        self.ask("/url", {"url": page.as_uri()})

    def eval(self, script: str) -> Any:
        return self.ask("/execute/sync", {"script": f"return {script}", "args": []})

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """Return the first true value of an expression."""
        end = time.monotonic() + seconds
        while not (found := self.eval(script)):
            assert time.monotonic() < end, script
            time.sleep(0.05)
        return found

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a place of the window, in pixels."""
        presses: list[Any] = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}] if click else []
        move = {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}
        self.ask("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move, *presses]}]})

    def save_screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("/screenshot")))


@contextmanager
def browser() -> Generator[Browser]:
    """Yield a browser, which ends with the block. Skips the test where none can be started."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True) as driver,
    ):
        try:
            assert driver.stdout is not None
            line = next((line for line in driver.stdout if "successfully on port" in line), None)
            if line is None:  # as under a limit of the address space
                pytest.skip("chromedriver does not start here")
            session = Browser(f"http://127.0.0.1:{line.split('on port')[1].split()[0].rstrip('.')}", folder)
            try:
                yield session
            finally:
                urllib.request.urlopen(urllib.request.Request(session._address, method="DELETE"), timeout=30).close()
        finally:
            driver.terminate()
