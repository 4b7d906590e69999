"""python -m bench.page: how fast the chat page paints, and how much it works while a long answer grows, in Chromium.

The server is a stand-in with a given answer, so that only the page is measured.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from localchat.serving.http.endpoints import chat_page
from tests.support.browser import Browser, Page, chromium

N_LINES = 2000
TOKENS_PER_S = 60
MEASURED_S = 10
N_PAINTS = 15

WORDS = ["the", "page", "shows", "what", "a", "model", "writes", "while", "it", "writes"]

# The first lines of an answer, which come at once, and the token that follows them again and again.
ANSWERS: dict[str, tuple[Callable[[int], str], str, str]] = {
    "prose": (lambda i: f"Paragraph {i}: {' '.join(WORDS)}, *and so on*.\n\n", "", " word"),
    "code": (lambda i: f"    print({i}, 'a line of code')\n", "```python\n", " + word"),
    "list": (lambda i: f"- item {i} of a **list** that has `{N_LINES}` of them\n", "", " word"),
    "table": (lambda i: f"| {i} | a cell | *another* |\n", "| a | b | c |\n|---|---|---|\n", " word"),
}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/":
            text, headers = chat_page()
            self.reply(text, "text/html; charset=utf-8", headers)
        else:
            models = {"object": "list", "data": [{"id": "model", "object": "model", "owned_by": "localchat"}]}
            props = {"default_generation_settings": {"params": {}, "n_ctx": 100_000}}
            self.reply(json.dumps(props if self.path.endswith("/props") else models), "application/json", {})

    def reply(self, text: str, kind: str, headers: dict[str, str]) -> None:
        body = text.encode()
        self.send_response(200)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        line, start, token = ANSWERS[request["messages"][-1]["content"]]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.send_chunk(start + "".join(map(line, range(N_LINES))))
        end = time.perf_counter() + MEASURED_S + 5
        try:
            while time.perf_counter() < end:
                self.send_chunk(token)
                time.sleep(1 / TOKENS_PER_S)
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass  # The page has been closed.

    def send_chunk(self, text: str) -> None:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        body = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "model", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())


def first_paint_ms(browser: Browser, url: str) -> float:
    page = browser.open(url)
    page.wait("performance.getEntriesByName('first-contentful-paint').length")
    return float(page.eval("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def work_s(page: Page) -> float:
    """The processor time of the page's main thread so far."""
    metrics = page.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))


def work_share(browser: Browser, url: str, answer: str) -> float:
    """The share of a core that the page's main thread works while the answer grows."""
    page = browser.open(url)
    page.send("Performance.enable", timeDomain="threadTicks")
    page.wait("document.querySelector('#model').options.length")
    page.do(("#input", f"{answer}\n"))
    page.wait(f"document.querySelector('.assistant .prose')?.textContent.includes('{N_LINES - 1}')")
    page.eval("new Promise((resolve) => setTimeout(resolve, 3000))")  # the first lines are laid out
    started_at, before = time.perf_counter(), work_s(page)
    page.eval(f"new Promise((resolve) => setTimeout(resolve, {MEASURED_S * 1000}))")
    share = (work_s(page) - before) / (time.perf_counter() - started_at)
    page.go("about:blank#end")
    return share


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    with chromium() as browser:
        paints = sorted(first_paint_ms(browser, url) for _ in range(N_PAINTS))
        print(
            f"first paint: median {statistics.median(paints):.0f} ms, {paints[0]:.0f} to {paints[-1]:.0f}", flush=True
        )
        for answer in ANSWERS:
            share = work_share(browser, url, answer)
            print(f"{answer} of {N_LINES} lines at {TOKENS_PER_S} tokens/s: {share:.2f} of a core", flush=True)
    server.shutdown()


if __name__ == "__main__":
    main()
