"""python -m bench.page: how fast the chat page paints, and how much it works while a long answer grows, in Chromium.

The server is a stand-in with a given answer, so that only the page is measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.browser import Browser, Page, chromium
from tests.support.page_server import page_server

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


def answer(messages: list[Any]) -> Iterator[str]:
    """The answer that the last message names: its first lines, and then tokens at a steady pace."""
    line, start, token = ANSWERS[messages[-1]["content"]]
    yield start + "".join(map(line, range(N_LINES)))
    end = time.perf_counter() + MEASURED_S + 5
    while time.perf_counter() < end:
        yield token
        time.sleep(1 / TOKENS_PER_S)


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
    with page_server(answer) as url, chromium() as browser:
        paints = sorted(first_paint_ms(browser, url) for _ in range(N_PAINTS))
        print(
            f"first paint: median {statistics.median(paints):.0f} ms, {paints[0]:.0f} to {paints[-1]:.0f}", flush=True
        )
        for name in ANSWERS:
            share = work_share(browser, url, name)
            print(f"{name} of {N_LINES} lines at {TOKENS_PER_S} tokens/s: {share:.2f} of a core", flush=True)


if __name__ == "__main__":
    main()
