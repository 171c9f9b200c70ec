"""A headless Chromium, driven over pipes by its DevTools protocol; it needs no further package."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-component-update", "--disable-background-networking",
    "--disable-sync", "--disable-default-apps", "--mute-audio", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 60.0  # seconds for an answer


def found() -> str | None:
    """The path of a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. said: errors and warnings of its console; asked: addresses it wanted to load."""

    def __init__(self, process: subprocess.Popen[bytes], sends: int, answers: int) -> None:
        self._process, self._sends, self._answers = process, sends, answers
        self._left, self._number, self._session = b"", 0, ""
        self.said: list[str] = []
        self.asked: list[str] = []

    def connect(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        words: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            words["sessionId"] = self._session
        os.write(self._sends, json.dumps(words).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._hear(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        answers = select.poll()  # select itself knows no descriptor above 1,023
        answers.register(self._answers, select.POLLIN)
        while b"\0" not in self._left:
            ready = answers.poll(max(end - time.monotonic(), 0) * 1000)
            part = os.read(self._answers, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError(f"the browser ({self._process.poll()}) says nothing")
            self._left += part
        first, _, self._left = self._left.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def _hear(self, event: Mapping[str, Any]) -> None:
        name, facts = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.said.append(str(facts["exceptionDetails"].get("exception", facts)))
        elif name == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.said.append(str(facts["args"]))
        elif name == "Log.entryAdded":
            self.said.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")
        elif name == "Network.requestWillBeSent":
            self.asked.append(facts["request"]["url"])

    def open(self, path: Path, *, width: int = 900, height: int = 900, dark: bool = False) -> None:
        """Shows a file, and waits until it is loaded."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.settle()

    def settle(self) -> None:
        """Waits until the page is loaded and has been painted."""
        painted = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        ready = (
            "document.readyState === 'complete' || new Promise(r => addEventListener('load', r))"
        )
        self.run(f"(async () => {{ await ({ready}); await {painted}; }})()")

    def run(self, script: str) -> Any:
        """The value of a script in the page."""
        facts = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **facts)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Moves the mouse to a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Writes a PNG of the page, or of the part in the window."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextlib.contextmanager
def browser(home: Path) -> Iterator[Browser]:
    """Starts a Chromium whose files are in `home`, and ends it."""
    program = found()
    assert program
    (theirs, ours), (answers, their_answers) = os.pipe(), os.pipe()
    command = 'exec "$@" 3<&"$IN" 4>&"$OUT"'
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", program, *FLAGS, f"--user-data-dir={home}", "about:blank"],
        pass_fds=(theirs, their_answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "IN": str(theirs), "OUT": str(their_answers), "HOME": str(home)},
    )  # fmt: skip
    os.close(theirs)
    os.close(their_answers)
    try:
        page = Browser(process, ours, answers)
        page.connect()
        yield page
    finally:
        process.terminate()
        process.wait(20)
        os.close(ours)
        os.close(answers)
