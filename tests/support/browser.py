"""A real headless browser, which a test drives by the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import wait_until
from tests.support.repository import ROOT

PROGRAM = Path(os.environ.get("LAREDO_TEST_BROWSER", ROOT / "build/browser/run"))
_EXECUTE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""On 3 the browser reads commands, on 4 it writes answers and events."""


class Browser:
    """One tab. What its page says, also of what is forbidden to it, is in ``console``."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._left = b""
        self.console: list[str] = []
        self.dialogs: list[str] = []
        self.requests: list[Mapping[str, Any]] = []
        self.answers: list[tuple[str, int]] = []
        self._password: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command's result."""
        number = self._send(method, parameters)
        while (message := self._receive()).get("id") != number:
            self._take(message)
        assert "error" not in message, (method, message["error"])
        return message["result"]

    def go(self, address: str) -> None:
        """Load the address, to the end."""
        self.call("Page.navigate", url=address)
        wait_until(lambda: self.run("document.readyState") == "complete", address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; a promise's, once it is there."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str) -> Any:
        """Wait until the expression is true; its value."""
        return wait_until(lambda: self.run(script), script)

    def give_password(self, password: str) -> None:
        """Answer, as a reader does, when the browser asks for user and password."""
        self._password = password
        self.call("Fetch.enable", handleAuthRequests=True)

    def disable_scripts(self) -> None:
        """As a reader who allows none."""
        self.call("Emulation.setScriptExecutionDisabled", value=True)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The window's size; below 600 pixels it is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, file: Path) -> None:
        """The whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _send(self, method: str, parameters: Mapping[str, Any]) -> int:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        text = json.dumps(message).encode() + b"\0"
        while text:
            text = text[os.write(self._commands, text) :]
        return number

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            read = os.read(self._answers, 1 << 16)
            assert read, "the browser ended"
            self._left += read
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def _take(self, event: Mapping[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Log.entryAdded":
            self.console.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.console.append(str(parameters["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])
            self._send("Page.handleJavaScriptDialog", {"accept": True})
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"])
        elif method == "Network.responseReceived":
            response = parameters["response"]
            self.answers.append((response["url"], response["status"]))
        elif method == "Fetch.requestPaused":
            self._send("Fetch.continueRequest", {"requestId": parameters["requestId"]})
        elif method == "Fetch.authRequired":
            answer = {"response": "ProvideCredentials", "username": "", "password": self._password}
            request = parameters["requestId"]
            self._send(
                "Fetch.continueWithAuth", {"requestId": request, "authChallengeResponse": answer}
            )


@contextmanager
def browsing(directory: Path) -> Iterator[Browser]:
    """A browser with nothing remembered, until the end."""
    commands, to_browser = os.pipe()
    from_browser, answers = os.pipe()
    # Above those that the browser reads and writes, so that neither is written over.
    inherited = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (commands, answers)]
    for each in (commands, answers):
        os.close(each)
    directory.mkdir()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _EXECUTE, *map(str, inherited), PROGRAM),
                *("--remote-debugging-pipe", f"--user-data-dir={directory}/profile"),
                # Root, as which CI runs, has no sandbox; the pages are our own.
                *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=inherited,
        )
    for each in inherited:
        os.close(each)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        process.terminate()
        process.wait(60)
        os.close(to_browser)
        os.close(from_browser)
