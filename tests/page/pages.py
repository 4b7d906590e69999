"""What the tests of the chat page share: a tab with the page of a new server, and what a user does in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.support.browser import Browser, Page
from tests.support.page_server import Answer, page_server
from tests.support.serving import BIG, Serving, serving

RESPONSE = ".assistant .prose"
HAS_MODELS = "$('#model').options.length"
IS_IDLE = "!$('#send').hidden && $('.assistant .acts')"
CONTENTS = "{% for message in messages %}{{ message.content }}{% endfor %}"
GATED = {**BIG, "is_gated": True}


@contextlib.contextmanager
def page_of(browser: Browser, model: Any, ready: str = HAS_MODELS, **options: Any) -> Iterator[tuple[Page, Serving]]:
    """A new tab with the page of a new server, once it is ready, and the server.

    Its chat template prints all messages. The model `echo` then repeats all of them.
    """
    options = {"chat_template": CONTENTS, **options}
    with serving(model, **options) as running, tab_at(browser, f"http://{running.address}/") as page:
        page.wait(ready)
        yield page, running


@contextlib.contextmanager
def page_with_answer(browser: Browser, answer: Answer) -> Iterator[Page]:
    """A new tab with the page of a server that streams these answers."""
    with page_server(answer) as url, tab_at(browser, url) as page:
        page.wait(HAS_MODELS)
        yield page


@contextlib.contextmanager
def tab_of(browser: Browser, running: Serving) -> Iterator[Page]:
    """A further tab with the page of this server."""
    with tab_at(browser, f"http://{running.address}/", is_first=False) as page:
        yield page


@contextlib.contextmanager
def tab_at(browser: Browser, url: str, *, is_first: bool = True) -> Iterator[Page]:
    """A new tab. At the end it has raised nothing, was refused nothing, and has asked no other server.

    The first tab of a server finds an empty storage: an earlier server of another test may have had the same port.
    """
    page = browser.open(url, is_first=is_first)
    yield page
    assert page.eval("violations") == []
    page.go("about:blank#end")
    assert [asked for asked in page.requests if not asked.startswith((url, "data:", "blob:", "about:"))] == []
    assert page.errors == [], page.errors


def wait_for_response(page: Page, text: str) -> None:
    """Wait until the last response is complete, and has this text."""
    page.wait(f"{IS_IDLE} && $$('{RESPONSE}').at(-1).innerText === {json.dumps(text)}")


def chat(page: Page, text: str, response: str) -> None:
    page.do(("#input", f"{text}\n"))
    wait_for_response(page, response)


def stream(page: Page, running: Serving) -> None:
    """Send a message to the gated model `endless`, and wait for a part of the response."""
    page.do(("#input", "go\n"))
    running.gate.release(12)
    page.wait(f"$('{RESPONSE}').innerText.startsWith('abc')")


def start_with(page: Page, script: str) -> None:
    """Load the page again, after a script of its own."""
    page.send("Page.addScriptToEvaluateOnNewDocument", source=script)
    page.reload()
    page.wait(HAS_MODELS)


def give(
    page: Page,
    files: dict[str, tuple[str, bytes]],
    field: str = "#attach-file",
    events: str = "change",
    text: str = "",
) -> None:
    """Give files, each with its media type, to a field, as the dialog ("change"), "paste" or "dragover drop" does.

    A paste may have a text, too. `isTextPasted` says whether the page has left it to the browser.
    """
    data = json.dumps([(content.decode("latin-1"), name, kind) for name, (kind, content) in files.items()])
    page.eval(
        f"""(() => {{
            const data = new DataTransfer();
            for (const [text, name, type] of {data})
                data.items.add(new File([Uint8Array.from(text, (c) => c.charCodeAt(0))], name, {{type}}));
            if ({json.dumps(text)}) data.setData("text/plain", {json.dumps(text)});
            const field = Object.assign($("{field}"), {{files: data.files}});
            const kinds = {{change: Event, paste: ClipboardEvent, dragover: DragEvent, drop: DragEvent}};
            for (const kind of "{events}".split(" ")) window.isTextPasted = field.dispatchEvent(new kinds[kind](
                kind, {{clipboardData: data, dataTransfer: data, bubbles: true, cancelable: true}}));
        }})()"""
    )


def import_text(page: Page, text: str) -> None:
    give(page, {"some.json": ("", text.encode())}, "#import-file")


def show_imported(page: Page, *messages: dict[str, Any], title: str = "Old") -> None:
    """Import a conversation, and show it."""
    import_text(page, json.dumps({"format": "localchat", "conversations": [{"title": title, "messages": messages}]}))
    pick = f"#list [title={json.dumps(title)}]"
    page.do((pick, 1), pick)
