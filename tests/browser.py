"""A headless Chromium for tests, driven over its DevTools protocol: real keys and clicks, and what the page says.

The browser is Debian's package (`apt-get install chromium`); `LMRL_CHROMIUM` names another. Nothing but websockets is
needed beside it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

FLAGS = (
    "--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-sandbox",  # it refuses to run as root otherwise, and opens nothing but the tests' own pages
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
KEYS = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
WAIT = 60.0  # seconds that something may take on a busy machine


class Browser:
    """One Chromium with one page; a context manager.

    Args:
        folder: An empty folder for the browser's profile.

    Attributes:
        complaints: What the browser logged as errors since the page was opened: exceptions, breaches of policy.
    """

    def __init__(self, folder: Path) -> None:
        program = os.environ.get("LMRL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
        assert program, "these tests need Chromium: apt-get install chromium, or name it in LMRL_CHROMIUM"
        self.complaints: list[str] = []
        self._count = 0
        self._session: str | None = None
        self._held = contextlib.ExitStack()
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"], stdout=log, stderr=log
            )
        try:
            self._attach(folder)
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._process.kill()
            raise

    def _attach(self, folder: Path) -> None:
        """Connect to the browser, and through it to its one page."""
        named, end = folder / "DevToolsActivePort", time.monotonic() + WAIT
        while not named.exists() or len(named.read_text().split()) < 2:
            log = (folder / "log").read_text(errors="replace")[-2000:]
            assert self._process.poll() is None and time.monotonic() < end, f"Chromium does not start: {log}"
            time.sleep(0.02)
        port, path = named.read_text().split()
        self._socket = self._held.enter_context(connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None))
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        target = {"targetId": pages[0]["targetId"], "flatten": True}
        self._session = self.call("Target.attachToTarget", **target)["sessionId"]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()
        self._process.terminate()
        self._process.wait(WAIT)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        self._count += 1
        frame = {"id": self._count, "method": method, "params": params}
        self._socket.send(json.dumps(frame if self._session is None else {**frame, "sessionId": self._session}))
        while True:
            message = json.loads(self._socket.recv(WAIT))
            if message.get("id") == self._count:
                assert "error" not in message, f"{method}: {message['error']['message']}"
                result: dict[str, Any] = message["result"]
                return result
            if message.get("method") == "Runtime.exceptionThrown":
                details = message["params"]["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description", details["text"]))
            elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.complaints.append(message["params"]["entry"]["text"])

    def open(self, url: str, *, width: int = 1280, height: int = 800) -> None:
        """Open a page afresh, as wide as this many CSS pixels."""
        self.resize(width, height)
        self.call("Page.navigate", url="about:blank")
        self.complaints.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width: int, height: int) -> None:
        """Give the page another size, that of a phone where it is narrow."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def ask(self, script: str) -> Any:
        """The JSON value of an expression; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, f"{script}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + WAIT
        while not (value := self.ask(script)):
            assert time.monotonic() < end, f"never true: {script}\n{self.ask('document.body.innerText')}"
            time.sleep(0.01)
        return value

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key of KEYS."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": "\r"} if key == "Enter" else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        x, y = self.ask(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            " one.scrollIntoView({block: 'nearest'}); const box = one.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def shoot(self, path: Path) -> None:
        """A picture of what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
