"""A real browser without a window, driven over a pipe: Chromium's DevTools protocol needs no package for that."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0
"""seconds for one answer: the machine may be busy"""


def find_browser() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page in a headless Chromium; remembers what went wrong in it and what it asked the network for."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        there, self._write = os.pipe()
        self._read, back = os.pipe()
        flags = (
            f"--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions "
            f"--disable-background-networking --hide-scrollbars --remote-debugging-pipe "
            f"--user-data-dir={self._profile.name} about:blank"
        )
        # Chromium reads its orders from descriptor 3 and answers on descriptor 4.
        shell = f'exec {{r}}<&{there} {{w}}>&{back}; exec 3<&$r 4>&$w; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, *flags.split()],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._unread, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """Give an order and return its result."""
        self._number += 1
        order: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._write, json.dumps(order).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self.errors, self.requests, self._loaded = [], [], False
        answer = self.send("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"
        while not self._loaded:
            self._next()
        self.run("1")

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        done = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def show_as(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Set the window's size, the colour scheme, and whether it is a phone's."""
        scale = 2 if phone else 1
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def point_at(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a place in the window, and press it if asked."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Write what the page looks like, the part below the window included."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def print_to(self, path: Path) -> None:
        """Write the page as PDF, as it would be printed."""
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", preferCSSPageSize=False)["data"]))

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._profile.cleanup()

    def _next(self) -> dict[str, Any]:
        """Return the next message, having noted what it says."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser was silent for {PATIENCE:.0f} s"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser ended"
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, what: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(what["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(str(what["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(str(what["entry"]))
