"""A headless Chromium, driven through the pipe of its DevTools protocol, with the standard library alone."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DEADLINE_S = 20
OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]

# Collects what the Content-Security-Policy refused, before the page's own scripts run.
_COLLECT_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (e) => violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


class Browser:
    """A Chromium with a profile of its own. Pages share it, as the tabs of a user do."""

    def __init__(self, process: subprocess.Popen[bytes], to_browser: int, from_browser: int) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._last_id = 0
        self._lock = threading.Lock()
        self._results: dict[int, queue.Queue[Any]] = {}
        self._pages: dict[str, Page] = {}
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def open(self, url: str) -> Page:
        """A new tab with this address, once the document has loaded."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.send("Performance.enable", timeDomain="threadTicks")
        page.send("Page.addScriptToEvaluateOnNewDocument", source=_COLLECT_VIOLATIONS)
        page.send("Emulation.setDeviceMetricsOverride", width=1200, height=800, deviceScaleFactor=1, mobile=False)
        page.go(url)
        return page

    def send(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send a command, and return its result."""
        results: queue.Queue[Any] = queue.Queue()
        with self._lock:
            self._last_id += 1
            id = self._last_id
            self._results[id] = results
            message = {"id": id, "method": method, "params": params, **({"sessionId": session} if session else {})}
            data = json.dumps(message).encode() + b"\0"
            while data:
                data = data[os.write(self._to_browser, data) :]
        response = results.get(timeout=DEADLINE_S)
        assert "error" not in response, f"{method}: {response['error']}"
        return response["result"]

    def _read(self) -> None:
        with contextlib.suppress(OSError), open(self._from_browser, "rb", closefd=False) as stream:
            buffer = b""
            while piece := stream.read1(1 << 16):
                *messages, buffer = (buffer + piece).split(b"\0")
                for message in map(json.loads, messages):
                    if "id" in message:
                        self._results.pop(message["id"]).put(message)
                    elif message.get("sessionId") in self._pages:
                        self._pages[message["sessionId"]].note(message["method"], message["params"])


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        """The URLs of all requests of this page."""
        self.errors: list[str] = []
        """Uncaught exceptions and errors in the console, other than failed requests."""

    def note(self, method: str, params: Any) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:2000])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            if params["entry"]["source"] != "network":
                self.errors.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            answer = threading.Thread(
                target=self.send, args=("Page.handleJavaScriptDialog",), kwargs={"accept": True}, daemon=True
            )
            answer.start()

    def send(self, method: str, **params: Any) -> Any:
        return self._browser.send(method, self._session, **params)

    def go(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def eval(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript condition is true."""
        checked = f"try {{ return Boolean({condition}) }} catch {{ return false }}"
        expression = f"""new Promise((resolve) => {{
            const isTrue = () => {{ {checked} }};
            const end = Date.now() + {DEADLINE_S * 900};
            const look = () => (isTrue() || Date.now() > end ? resolve(isTrue()) : setTimeout(look, 15));
            look();
        }})"""
        while True:
            try:
                is_true = self.eval(expression)
            except AssertionError as error:  # a navigation has ended the old document's scripts
                if "navigated" not in str(error) and "destroyed" not in str(error):
                    raise
                continue
            assert is_true, f"{condition} is not true in time; the page shows: {self.text('body')[:1500]}"
            return

    def text(self, selector: str) -> str:
        """The text of the first element of this selector, as a user sees it."""
        # The inner text of an element that has not been rendered yet is empty.
        text = "(({ innerText, textContent }) => innerText || textContent)"
        return str(self.eval(f"{text}(document.querySelector({json.dumps(selector)}))"))

    def count(self, selector: str) -> int:
        return int(self.eval(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def click(self, selector: str, text: str | None = None) -> None:
        """Click the last element of this selector, or the last one with this text."""
        chosen = f"[...document.querySelectorAll({json.dumps(selector)})]"
        if text is not None:
            chosen += f".filter((e) => e.textContent === {json.dumps(text)})"
        self.eval(f"{chosen}.at(-1).click()")

    def type(self, selector: str, text: str) -> None:
        """Put the focus into a field, and replace its text."""
        self.eval(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select(); }})()")
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press a key, with its Windows key code."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind, given in (("keyDown", text), ("keyUp", {})):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **given)

    def enter(self) -> None:
        self.press("Enter", 13)

    def work_s(self) -> float:
        """The processor time of the page's main thread so far."""
        metrics = self.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with an empty profile."""
    assert CHROMIUM is not None
    child_reads, to_browser = os.pipe()
    from_browser, child_writes = os.pipe()

    def place_pipes() -> None:
        # Chromium reads commands from descriptor 3 and writes results to 4.
        first, second = os.dup(child_reads), os.dup(child_writes)
        os.dup2(first, 3)
        os.dup2(second, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            close_fds=False,
            preexec_fn=place_pipes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        browser = Browser(process, to_browser, from_browser)
        try:
            yield browser
        finally:
            with contextlib.suppress(Exception):
                browser.send("Browser.close")
            try:
                process.wait(DEADLINE_S)
            finally:
                process.kill()
                os.close(to_browser)
                os.close(from_browser)
