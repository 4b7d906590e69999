"""A headless Chromium, driven through the pipe of its DevTools protocol, with the standard library alone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.support.deadline import DEADLINE_S

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    "--headless=new", "--no-sandbox", "--no-first-run", "--remote-debugging-pipe", "--disable-gpu", "--disable-sync",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    # One process for all pages: to start one takes longer than most tests.
    "--renderer-process-limit=1", "--disable-site-isolation-trials",
]  # fmt: skip

# Collects what the Content-Security-Policy refused, before the page's own scripts run.
_COLLECT_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


# Chromium logs that it does not ask before a page is left on which only scripts have clicked.
_NOT_ASKED = "Blocked attempt to show a 'beforeunload'"


class Browser:
    """A Chromium with a profile of its own. Pages share it, as the tabs of a user do."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._n_sent = 0
        self._received = b""
        self._pages: dict[str, Page] = {}

    def open(self, url: str, *, is_first: bool = False) -> Page:
        """A new tab with this address, once the document has loaded. The first tab of a server clears its storage."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.send("Page.addScriptToEvaluateOnNewDocument", source=_COLLECT_VIOLATIONS)
        page.resize(1200)
        if is_first:
            parts = urlsplit(url)
            page.send("Storage.clearDataForOrigin", origin=f"{parts.scheme}://{parts.netloc}", storageTypes="all")
        page.go(url)
        return page

    def send(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send a command, and return its result. The events that come before it are passed to their pages."""
        id = self.post(method, session, **params)
        while (message := self._read()).get("id") != id:
            if "method" in message and message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].note(message["method"], message["params"])
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def post(self, method: str, session: str | None = None, **params: Any) -> int:
        """Send a command, and return its id."""
        assert self._process.stdin is not None
        self._n_sent += 1
        message = {"id": self._n_sent, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        self._process.stdin.flush()
        return self._n_sent

    def _read(self) -> Any:
        """The next result or event."""
        output = self._process.stdout
        assert output is not None
        while b"\0" not in self._received:
            assert select.select([output], [], [], DEADLINE_S)[0], "the browser does not respond"
            piece = os.read(output.fileno(), 1 << 16)
            assert piece, "the browser has ended"
            self._received += piece
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []  # The URLs of all requests of this page.
        self.sent: list[Any] = []  # The JSON bodies of its requests.
        self.errors: list[str] = []  # Uncaught exceptions and errors in the console, other than failed requests.

    def note(self, method: str, params: Any) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
            if "postData" in params["request"]:
                self.sent.append(json.loads(params["request"]["postData"]))
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded":
            entry = params["entry"]
            if entry["level"] == "error" and entry["source"] != "network" and not entry["text"].startswith(_NOT_ASKED):
                self.errors.append(entry["text"])
        elif method == "Page.javascriptDialogOpening":
            self._browser.post("Page.handleJavaScriptDialog", self._session, accept=True)

    def send(self, method: str, **params: Any) -> Any:
        return self._browser.send(method, self._session, **params)

    def resize(self, width: int, height: int = 800) -> None:
        """Give the window this size, and wait until the page is laid out for it."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.wait_for_frames()

    def wait_for_frames(self, n_frames: int = 2) -> None:
        """Wait until the page has been shown so many times."""
        frame = "new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))"
        for _ in range(n_frames):
            self.eval(frame)

    def go(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self) -> None:
        """Load the page again, once it would leave without a question, and wait until the old document is gone.

        The chat page asks while the browser has not opened its database, in which a conversation is saved.
        """
        self.wait("dispatchEvent(new Event('beforeunload', {cancelable: true}))")
        self.eval("window.isOld = true")
        self.send("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def eval(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise. $ and $$ are those of the console."""
        options = {"awaitPromise": True, "returnByValue": True, "includeCommandLineAPI": True}
        result = self.send("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript condition is true. It may raise before."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):  # Also if a navigation ends the scripts of a document.
                if self.eval(f"Boolean({condition})"):
                    return
            time.sleep(0.03)
        raise AssertionError(f"{condition} is not true in time; the page shows: {self.text('body')[:1500]}")

    def text(self, selector: str) -> str:
        """The text of the first element of this selector, as a user sees it."""
        # The inner text of an element that has not been rendered yet is empty.
        text = "(({ innerText, textContent }) => innerText || textContent)"
        return str(self.eval(f"{text}($({json.dumps(selector)}))"))

    def wait_for_text(self, selector: str, text: str) -> None:
        """Wait until the first element of this selector has this text in it."""
        self.wait(f"$({json.dumps(selector)}).innerText.includes({json.dumps(text)})")

    def do(self, *steps: str | tuple[str, str | int]) -> None:
        """Take steps as a user does.

        "selector" clicks the last such element, and "selector: text" the last one with this text. A selector with a
        text puts the focus into a field and replaces its text; a line break at the end presses Enter. A selector with
        a number waits until there are so many elements.
        """
        for step in steps:
            selector, given = step if isinstance(step, tuple) else (step, None)
            if isinstance(given, int):
                self.wait(f"$$({json.dumps(selector)}).length === {given}")
            elif given is None:
                selector, _, text = selector.partition(": ")
                has_text = f"e.textContent === {json.dumps(text)}" if text else "true"
                self.eval(f"$$({json.dumps(selector)}).filter((e) => {has_text}).at(-1).click()")
            else:
                self.eval(f"((e) => {{ e.focus(); e.select(); }})($({json.dumps(selector)}))")
                self.send("Input.insertText", text=given.removesuffix("\n"))
                if given.endswith("\n"):
                    self.press("Enter", 13)

    def press(self, key: str, code: int) -> None:
        """Press a key, with its Windows key code."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind, given in (("keyDown", text), ("keyUp", {})):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **given)

    def wheel(self, pixels: int, selector: str = "body") -> None:
        """Turn the wheel over the middle of an element, downwards or, with a negative number, upwards."""
        x, y = self._middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=pixels)

    def swipe(self, pixels: int, selector: str = "body") -> None:
        """Scroll with a finger on the middle of an element, downwards or, with a negative number, upwards."""
        x, y = self._middle(selector)
        for i in range(11):
            points = [{"x": x, "y": y - pixels * i / 10}]
            self.send("Input.dispatchTouchEvent", type="touchMove" if i else "touchStart", touchPoints=points)
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def _middle(self, selector: str) -> tuple[float, float]:
        box = self.eval(
            f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])"
            f"($({json.dumps(selector)}).getBoundingClientRect())"
        )
        return tuple(box)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with an empty profile."""
    assert CHROMIUM is not None
    # Chromium reads commands from descriptor 3 and writes results to 4.
    program = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ["sh", "-c", program, CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                browser = Browser(process)
                yield browser
                browser.send("Browser.close")
                process.wait(DEADLINE_S)
            finally:
                process.kill()
