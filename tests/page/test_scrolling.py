"""Where the chat page is scrolled, in a headless Chromium with wheel, keys and touch, while long answers arrive."""

from __future__ import annotations

import itertools
import queue

import pytest

from tests.page.pages import page_with_answer, show_imported
from tests.support.browser import Page
from tests.support.deadline import DEADLINE_S

WIDTHS = [360, 1600]
# The pixels between the end that is seen and the end of the messages, without those that the browser rounds.
DISTANCE = """((log) => Math.max(0, log.scrollHeight - log.scrollTop - log.clientHeight - 1))(
    document.querySelector("#log"))"""
# The first text that is seen, and its distance from the top of the window.
PLACE = """((top) => [...document.querySelectorAll("#log :is(p, li, td, pre, h2, .text)")]
    .map((element) => [element.textContent, Math.round(element.getBoundingClientRect().bottom)])
    .find(([, bottom]) => bottom > top + 5))($('#log').getBoundingClientRect().top)"""
# Records the largest distance from the end in any frame.
WATCH = f"""window.farthest = 0; (function watch() {{
    window.farthest = Math.max(farthest, {DISTANCE}); requestAnimationFrame(watch); }})()"""

# Resolves when the messages have not been scrolled for some frames.
SETTLED = """new Promise((resolve) => { let top = -1, n_still = 0; (function look() {
    const now = document.querySelector('#log').scrollTop; n_still = now === top ? n_still + 1 : 0; top = now;
    n_still > 5 ? resolve() : requestAnimationFrame(look); })(); })"""

BLOCKS = [
    "Words of paragraph {}, *some* of them `code`, so that it is longer than one line of a narrow window.\n\n",
    "## Heading {}\n\nText.\n\n",
    "- item {}\n- another\n  1. nested\n\n",
    "```python\nfor i in range({}):\n    print(i)\n```\n\n",
    "| a | b |\n|---|---|\n| {} | cell |\n\n",
    "> quoted {}\n\n",
]


def blocks_of_an_answer(n_blocks: int) -> list[str]:
    return [block.format(i) for i, block in zip(range(n_blocks), itertools.cycle(BLOCKS))]


def settle(page: Page) -> None:
    """Wait until the page has been shown, and no scrolling goes on."""
    page.wait_for_frames()
    page.eval(SETTLED)


@pytest.mark.parametrize("width", WIDTHS)
def test_view_follows_a_long_answer_and_opens_at_its_end(browser, width):
    text = "".join(blocks_of_an_answer(2500))
    pieces = [text[i : i + 500] for i in range(0, len(text), 500)]
    with page_with_answer(browser, lambda messages: pieces) as page:
        page.resize(width)
        page.eval(WATCH)
        page.do(("#input", "go\n"), (".assistant .acts", 1))
        settle(page)
        assert "Heading 2497" in page.text(".prose")
        assert (page.eval("farthest"), page.eval(DISTANCE)) == (0, 0)
        page.reload()
        page.do((".assistant .acts", 1))
        settle(page)
        assert page.eval(DISTANCE) == 0
        page.do("#new", "#list .pick", (".assistant .acts", 1))
        settle(page)
        assert page.eval(DISTANCE) == 0


SCROLLING = {
    "wheel": lambda page: page.wheel(-200, "#log"),
    "one pixel": lambda page: page.wheel(-1, "#log"),
    "finger": lambda page: page.swipe(-200, "#log"),
    "key": lambda page: page.press("PageUp", 33),
    "up and almost down": lambda page: (page.wheel(-200, "#log"), settle(page), page.wheel(180, "#log")),
}


@pytest.mark.parametrize(("way", "width"), [*zip(SCROLLING, itertools.cycle(WIDTHS))])
def test_reader_who_scrolls_stays_there_until_the_end_is_seen_again(browser, width, way):
    texts: queue.Queue[str] = queue.Queue()
    blocks = iter(blocks_of_an_answer(600))
    with page_with_answer(browser, lambda messages: iter(lambda: texts.get(timeout=DEADLINE_S), "")) as page:

        def add(n_blocks: int) -> None:
            """Let the server send so many blocks in small pieces, and wait until they are shown."""
            text = "".join(itertools.islice(blocks, n_blocks)) + "Some *words* of a"
            for i in range(0, len(text), 40):
                texts.put(text[i : i + 40])
            texts.put(f" paragraph {n_blocks}.\n\n")
            page.wait(f"$('.prose').innerText.trim().endsWith('paragraph {n_blocks}.')")
            settle(page)

        page.resize(width)
        page.do(("#input", "go\n"))
        add(100)
        assert page.eval(DISTANCE) == 0
        page.eval("$('#log').focus()")
        top = page.eval("$('#log').scrollTop")
        SCROLLING[way](page)
        page.wait(f"$('#log').scrollTop < {top}")
        settle(page)
        place = page.eval(PLACE)
        for n_blocks in (10, 11, 12):
            add(n_blocks)
            assert page.eval(PLACE) == place
        page.press("End", 35)
        page.wait(f"{DISTANCE} === 0")
        add(20)
        assert page.eval(DISTANCE) == 0
        texts.put("")
        page.do((".assistant .acts", 1))


def test_place_in_300_messages_stays_when_the_window_and_the_field_change(browser):
    answers = {"role": "assistant", "content": "".join(blocks_of_an_answer(12)), "finish": "stop"}
    messages = [{"role": "user", "content": f"question {i}"} if i % 2 == 0 else answers for i in range(300)]
    with page_with_answer(browser, lambda messages: []) as page:
        page.resize(1600)
        show_imported(page, *messages)
        page.do((".message", 300))
        for width in (360, 1600):
            page.resize(width)
            assert page.eval(DISTANCE) == 0
        page.do(("#input", "several lines\n" * 5 + "."))
        page.wait_for_frames()
        assert page.eval(DISTANCE) == 0
        page.do(("#input", "."))
        page.wheel(-30_000, "#log")
        settle(page)
        text, _ = page.eval(PLACE)
        for change in (
            lambda: page.resize(700),
            lambda: page.resize(360),
            lambda: page.resize(1600, 500),
            lambda: page.do(("#input", "several lines\n" * 5 + ".")),
            lambda: page.eval("void ($$('.message.user .acts')[3].style.height = '500px')"),
        ):
            change()
            page.wait_for_frames()
            assert page.eval(PLACE)[0] == text
        page.eval("void ($('#messages').lastChild.style.height = '9000px')")
        page.wait_for_frames()
        assert page.eval(PLACE)[0] == text
