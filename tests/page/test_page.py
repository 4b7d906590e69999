"""The chat page in a headless Chromium, with the real HTTP server and engine, on fake models with given outputs."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from localchat.serving.http.endpoints import chat_page
from tests.support.browser import CHROMIUM, Browser, Page, chromium
from tests.support.fakes import FakeProjector, endless
from tests.support.media_files import png, wav
from tests.support.serving import ANY_PORT, BIG, LAST_MESSAGE, Serving, generating, serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt install chromium")

RESPONSE = ".assistant .prose"
HAS_MODELS = "document.querySelector('#model').options.length"
IS_IDLE = "!document.querySelector('#send').hidden && document.querySelector('.assistant .acts')"
# The template of a model that can reason, whose prompt is the last message.
REASONING = LAST_MESSAGE + "{% if enable_thinking is defined %}{% endif %}{# <think></think> #}"

HOSTILE = """# <img src=x onerror="window.hacked = 1">
<script>window.hacked = 1</script>
<iframe src="https://example.com"></iframe> Vec<String> and a <b>bold</b> word

Also <u>this</u> Vec<String>: [link](javascript:window.hacked=1) ![image](https://example.com/pixel.png) [good](https://example.com/page)
<svg onload="window.hacked = 1"><style>body { display: none }</style></svg>

| a | <b onclick="window.hacked = 1">b</b> |
|---|---|
| `1` | 2 |

```html
<script>window.hacked = 1</script>
```

"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextlib.contextmanager
def page_of(browser: Browser, model: Any, ready: str = HAS_MODELS, **options: Any) -> Iterator[tuple[Page, Serving]]:
    """A new tab with the page of a new server, once it is ready, and the server."""
    with serving(model, **options) as running:
        page = browser.open(f"http://127.0.0.1:{running.port}/")
        page.wait(ready)
        yield page, running
        leave(page, running)


def leave(page: Page, running: Serving) -> None:
    """Leave the page, which has raised nothing, was refused nothing, and has asked no other server."""
    assert page.eval("violations") == []
    page.go("about:blank#end")
    allowed = (f"http://127.0.0.1:{running.port}/", "data:", "blob:", "about:")
    assert [url for url in page.requests if not url.startswith(allowed)] == []
    assert page.errors == []


def say(page: Page, text: str) -> None:
    page.type("#input", text)
    page.enter()


def wait_for_response(page: Page, text: str) -> None:
    """Wait until the last response is complete, and has this text."""
    page.wait(f"{IS_IDLE} && [...document.querySelectorAll('{RESPONSE}')].at(-1).innerText === {json.dumps(text)}")


def stream(page: Page, running: Serving) -> None:
    """Send a message to the gated model `endless`, and wait for a part of the response."""
    say(page, "go")
    running.gate.release(12)
    page.wait(f"document.querySelector('{RESPONSE}').innerText.startsWith('abc')")


def give(page: Page, files: dict[str, tuple[str, bytes]], field: str = "#attach-file", events: str = "change") -> None:
    """Give files, each with its media type, to a field, as the dialog ("change"), "paste" or "dragover drop" does."""
    data = json.dumps({name: [kind, base64.b64encode(content).decode()] for name, (kind, content) in files.items()})
    page.eval(
        f"""(() => {{
            const data = new DataTransfer();
            for (const [name, [type, text]] of Object.entries({data})) {{
                data.items.add(new File([Uint8Array.from(atob(text), (c) => c.charCodeAt(0))], name, {{type}}));
            }}
            const field = Object.assign(document.querySelector("{field}"), {{files: data.files}});
            const kinds = {{change: Event, paste: ClipboardEvent, dragover: DragEvent, drop: DragEvent}};
            for (const kind of "{events}".split(" ")) field.dispatchEvent(new kinds[kind](
                kind, {{clipboardData: data, dataTransfer: data, bubbles: true, cancelable: true}}));
        }})()"""
    )


def import_text(page: Page, text: str) -> None:
    give(page, {"some.json": ("", text.encode())}, "#import-file")


def show_imported(page: Page, messages: list[dict[str, Any]]) -> None:
    """Import a conversation, and show it."""
    import_text(page, json.dumps({"format": "localchat", "conversations": [{"title": "Old", "messages": messages}]}))
    page.wait("document.querySelector('#list .pick').textContent === 'Old'")
    page.click("#list .pick")


def test_a_message_is_streamed_and_kept_after_a_reload(browser):
    with page_of(browser, generating("Hello **you**")) as (page, _):
        say(page, "Hi <b>there</b>")
        wait_for_response(page, "Hello you")
        assert page.text(".user .text") == "Hi <b>there</b>"
        assert page.eval("document.querySelector('.prose strong').textContent") == "you"
        assert "14 tokens" in page.text(".assistant .stats")
        assert "tokens" in page.text("#context")
        assert page.text("#title") == "Hi <b>there</b>"
        page.reload()
        wait_for_response(page, "Hello you")
        assert page.count("#list li") == 1


def test_stop_keeps_the_text_so_far(browser):
    with page_of(browser, endless, **BIG, is_gated=True) as (page, running):
        stream(page, running)
        page.press("Escape", 27)
        page.wait(IS_IDLE)
        running.gate.release(100_000)
        assert page.text(RESPONSE).startswith("abc")
        assert "Stopped." in page.text(".assistant")
        running.wait_until_idle()


def test_edit_and_regenerate_replace_what_follows(browser):
    texts = ["first", "second", "third"]
    with page_of(browser, lambda *step: generating(texts[len(running.requests) - 1])(*step)) as (page, running):
        say(page, "one")
        wait_for_response(page, "first")
        page.click(".assistant button", "Regenerate")
        wait_for_response(page, "second")
        page.click(".user button", "Edit")
        page.type(".editor textarea", "two")
        page.enter()
        wait_for_response(page, "third")
        assert page.text(".user .text") == "two"
        assert page.count(".message") == 2
        assert running.last_prompt == "two"


def test_settings_are_sent_and_the_schema_is_checked(browser):
    with page_of(browser, generating('{"a": 1}')) as (page, _):
        page.click("#open-settings")
        fields = {"temperature": "0.5", "top_k": "7", "max_tokens": "50", "seed": "3", "stop": "xx\nyy", "schema": "{"}
        for name, value in fields.items():
            page.type(f"#settings [name={name}]", value)
        page.click("#settings button", "Save")
        assert "not valid JSON" in page.text("#settings .problem")
        page.type("#settings [name=schema]", '{"type": "object", "required": ["b"]}')
        page.click("#settings button", "Save")
        page.wait("!document.querySelector('#settings').open")
        say(page, "json")
        page.wait(IS_IDLE)
        (sent,) = page.sent
        expected = {"temperature": 0.5, "top_k": 7, "max_tokens": 50, "seed": 3, "stop": ["xx", "yy"]}
        assert {name: sent.get(name) for name in expected} == expected
        assert sent["response_format"]["json_schema"]["schema"] == {"type": "object", "required": ["b"]}


def test_reasoning_is_folded_with_its_time(browser):
    with page_of(browser, generating("<think>First, this.</think>Then that."), chat_template=REASONING) as (page, _):
        say(page, "think")
        wait_for_response(page, "Then that.")
        assert page.text(".reasoning summary").startswith("Reasoned for 0.")
        assert page.eval("document.querySelector('.reasoning .body').textContent").strip() == "First, this."
        assert not page.eval("document.querySelector('.reasoning').open")


@pytest.mark.parametrize("way", ["streamed", "imported"])
def test_hostile_markdown_runs_nothing_and_loses_nothing(browser, way):
    source = HOSTILE * (5 if way == "streamed" else 65536 // len(HOSTILE) + 1)
    with page_of(browser, generating(source), n_ctx=8000, n_cells=10_000) as (page, _):
        if way == "streamed":
            say(page, "show")
        else:
            show_imported(page, [{"role": "user", "content": "show"}, {"role": "assistant", "content": source}])
        page.wait(IS_IDLE)
        assert page.eval("window.hacked") is None
        shown = page.text(RESPONSE)
        for text in ("Vec<String>", "<script>window.hacked = 1</script>", "<iframe src=", "bold", "<svg onload="):
            assert text in shown
        tags = page.eval("[...new Set([...document.querySelectorAll('.prose *')].map((e) => e.localName))].sort()")
        assert not {"script", "iframe", "svg", "img", "style"} & set(tags)
        assert page.count(".prose table") == page.count(".prose .code") == source.count("```html")
        links = page.eval("[...new Set([...document.querySelectorAll('.prose a')].map((a) => a.getAttribute('href')))]")
        assert {"https://example.com/page", "https://example.com/pixel.png"} == {link for link in links if link}


def test_a_wrong_key_is_refused_with_the_words_of_the_server(browser):
    asks = "document.querySelector('#key').open"
    with page_of(browser, generating("Yes."), asks, settings=replace(ANY_PORT, api_keys=("right",))) as (page, _):
        page.type("#key input", "wrong")
        page.click("#key button")
        page.wait("document.querySelector('#key .problem').textContent.includes('refused this key')")
        page.type("#key input", "right")
        page.click("#key button")
        page.wait(HAS_MODELS)
        say(page, "open?")
        wait_for_response(page, "Yes.")
        assert page.eval("JSON.parse(sessionStorage.getItem('key'))") == "right"
        assert "right" not in page.eval("JSON.stringify(localStorage)")


def test_a_server_that_goes_in_the_middle_leaves_the_text_and_an_error(browser):
    with page_of(browser, endless, **BIG, is_gated=True) as (page, running):
        stream(page, running)
        for connection in list(running.server.connections._states):
            connection.shutdown(socket.SHUT_RDWR)
        page.wait_for(".assistant .error", 1)
        assert page.text(RESPONSE).startswith("abc")
        assert "connection" in page.text(".assistant .error")
        assert "Try again" in page.text(".assistant .acts")


def test_errors_are_those_of_the_server(browser):
    with page_of(browser, generating("x"), n_ctx=64, n_cells=64) as (page, _):
        say(page, "long " * 60)
        page.wait_for(".assistant .error", 1)
        assert "64" in page.text(".assistant .error")


def test_a_hundred_turns(browser):
    with page_of(browser, generating("- an *answer*"), n_ctx=4000, n_cells=8000) as (page, _):
        turns = [{"role": role, "content": f"{role} {i}"} for i in range(100) for role in ("user", "assistant")]
        show_imported(page, turns)
        page.wait_for(".message", 200)
        say(page, "more")
        page.wait("document.querySelectorAll('.message').length === 202 && !document.querySelector('#send').hidden")
        rest = "(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight)"
        assert page.eval(f"{rest}(document.querySelector('#log'))") < 50


def test_tool_calls_are_shown_and_sent_again(browser):
    with page_of(browser, generating("after")) as (page, _):
        call = {"id": "c1", "name": "look<b>", "arguments": '{"at": "<i>Rome"}'}
        show_imported(
            page, [{"role": "user", "content": "where?"}, {"role": "assistant", "content": "", "calls": [call]}]
        )
        page.wait_for(".assistant", 1)
        shown = page.eval("document.querySelector('.assistant').textContent")
        assert "look<b>" in shown
        assert "<i>Rome" in shown
        say(page, "and then?")
        wait_for_response(page, "after")
        messages = page.sent[-1]["messages"]
        assert messages[1]["tool_calls"][0]["function"] == {"name": "look<b>", "arguments": call["arguments"]}
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]


def test_the_list_is_searched_renamed_deleted_exported_and_imported(browser):
    with page_of(browser, generating("An answer about bees")) as (page, _):
        for text in ("bees", "wasps"):
            page.click("#new")
            say(page, text)
            page.wait(IS_IDLE)
        page.type("#search", "wasps")
        page.wait_for("#list li", 1)
        page.type("#search", " ")
        page.wait_for("#list li", 2)
        page.eval("document.querySelector('#list [aria-label=\"Rename wasps\"]').click()")
        page.type("#list input", "Insects")
        page.enter()
        page.wait("document.querySelector('#title').textContent === 'Insects'")
        page.eval("""void (window.exported = new Promise((resolve) => {
            URL.createObjectURL = (blob) => { resolve(blob.text()); return "data:,"; };
        }))""")
        page.click("#export")
        exported = json.loads(page.eval("exported"))
        assert {one["title"] for one in exported["conversations"]} == {"bees", "Insects"}
        page.eval("document.querySelector('#list [aria-label=\"Delete bees\"]').click()")
        page.click("#ask button", "Delete")
        page.wait_for("#list li", 1)
        import_text(page, json.dumps(exported))
        page.wait_for("#list li", 2)
        assert "1 imported, 1 were already here" in page.text("#status")
        import_text(page, '{"conversations": 3}')
        page.wait("document.querySelector('#status').innerText.includes('has no list')")


def test_two_tabs_share_the_conversations(browser):
    with page_of(browser, generating("Both see this")) as (page, running):
        other = browser.open(f"http://127.0.0.1:{running.port}/")
        say(page, "from one tab")
        page.wait(IS_IDLE)
        other.wait("document.querySelector('#list .pick')?.textContent === 'from one tab'")
        other.click("#list .pick")
        wait_for_response(other, "Both see this")
        say(other, "from the other")
        page.wait_for(".message", 4)
        page.wait_for(".assistant .acts", 2)
        leave(other, running)


@pytest.mark.parametrize("where", ["here", "in another tab"])
def test_conversation_that_is_deleted_while_it_streams_stays_deleted(browser, where):
    with page_of(browser, endless, **BIG, is_gated=True) as (page, running):
        stream(page, running)
        tab = page if where == "here" else browser.open(f"http://127.0.0.1:{running.port}/")
        tab.wait_for("#list li", 1)
        tab.click("#list .act", "✕")
        tab.click("#ask button", "Delete")
        page.wait("!document.querySelector('#list li') && !document.querySelector('#send').hidden")
        page.reload()
        page.wait(HAS_MODELS)
        assert page.count("#list li") == 0
        running.gate.release(100_000)
        running.wait_until_idle()
        leave(tab, running)


def test_reload_keeps_the_text_so_far_and_what_is_being_written(browser):
    with page_of(browser, endless, **BIG, is_gated=True) as (page, running):
        stream(page, running)
        running.gate.release(10)
        page.wait(f"document.querySelector('{RESPONSE}').innerText.length > 18")
        shown = page.text(RESPONSE)
        page.click("#list .act", "✎")  # The end of the response leaves the field open.
        page.type("#list input", "Letters")
        page.type("#input", "and then")
        assert page.text("#list .pick") == "Letters …"
        page.reload()
        page.wait_for(".assistant", 1)
        assert page.text(RESPONSE).strip() == shown.strip()
        assert page.value("#input") == "and then"
        page.click("#new")
        assert page.value("#input") == ""
        page.type("#input", "new text")
        page.click("#list .pick")
        page.click(".user button", "Edit")
        page.type(".editor textarea", "stop")
        page.reload()
        page.wait_for(".editor", 1)
        assert page.value(".editor textarea") == "stop"
        page.click("#new")
        assert page.value("#input") == "new text"


def set_offline(page: Page, is_offline: bool) -> None:
    options = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.send("Network.emulateNetworkConditions", offline=is_offline, **options)


def test_earlier_responses_stay_until_another_has_begun(browser):
    with page_of(browser, generating("fine")) as (page, _):
        for n in (1, 2, 3):
            say(page, f"turn {n}")
            page.wait(f"{IS_IDLE} && document.querySelectorAll('.assistant .acts').length === {n}")
        page.eval("document.querySelectorAll('.user button')[1].click()")
        page.type(".editor textarea", "other")
        for is_offline, button, n_kept in ((True, "Cancel", 6), (True, "Remove", 6), (False, "Remove", 2)):
            set_offline(page, is_offline)
            page.eval("document.querySelector('.editor textarea').focus()")
            page.enter()
            page.click("#ask button", button)
            page.wait(f"{IS_IDLE} && document.querySelectorAll('.message').length === {n_kept}")
            if (button, n_kept) == ("Remove", 6):
                page.wait("document.querySelector('#log > .error')?.innerText.includes('cannot be reached')")
                set_offline(page, False)
                page.reload()
                page.wait_for(".message", 6)
        assert page.text(".user .text") == "other"
        assert page.count("#log > .error, .editor") == 0
        set_offline(page, True)
        page.click(".assistant button", "Regenerate")
        page.wait_for("#log > .error", 1)
        assert page.text(RESPONSE).strip() == "fine"


def test_enter_and_escape_of_an_input_method_do_nothing(browser):
    with page_of(browser, generating("x")) as (page, _):
        page.type("#input", "にほん")
        page.press("Enter", 229)
        page.press("Escape", 229)
        assert page.count(".message") == 0
        page.enter()
        wait_for_response(page, "x")


def test_models_that_are_not_loaded_are_listed_without_polling(browser):
    with serving(generating("x"), is_ready=False) as running:
        page = browser.open(f"http://127.0.0.1:{running.port}/")
        page.wait(HAS_MODELS)
        script = (
            "window.waits = []; const real = setTimeout; setTimeout = (f, s) => { waits.push(s); return real(f, s) }"
        )
        page.send("Page.addScriptToEvaluateOnNewDocument", source=script)
        page.reload()
        page.wait("performance.getEntriesByName(new URL('props', location)).length")
        page.wait(HAS_MODELS)
        assert page.text("#status").strip() == ""
        assert page.eval("waits.filter((ms) => ms > 1000).length") == 0
        leave(page, running)


BLOCK = """for (const name of ["localStorage", "sessionStorage", "indexedDB"]) Object.defineProperty(
    window, name, { get() { throw new DOMException("Access is denied", "SecurityError"); } });"""
FULL = """IDBObjectStore.prototype.put = Storage.prototype.setItem = () => {
    throw new DOMException("over", "QuotaExceededError"); }"""


@pytest.mark.parametrize(("script", "notice"), [(BLOCK, "stores nothing"), (FULL, "could not be saved")])
def test_page_works_without_storage_and_says_so(browser, script, notice):
    with page_of(browser, generating("Yes.")) as (page, _):
        page.send("Page.addScriptToEvaluateOnNewDocument", source=script)
        page.reload()
        page.wait(HAS_MODELS)
        say(page, "open?")
        wait_for_response(page, "Yes.")
        page.wait(f"document.querySelector('#notice').innerText.includes('{notice}')")
        page.type("#input", "draft")
        page.click("#new")
        page.click("#list .pick")
        assert page.value("#input") == "draft"
        page.errors.clear()  # The script's exceptions are raised in event handlers.


def test_the_page_is_one_file_without_links():
    text, headers = chat_page()
    assert len(text.encode()) < 155_000
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    for attribute in ("src=", "href=", "onclick=", "style="):
        assert f' {attribute}"http' not in text


@pytest.mark.parametrize(
    ("accept", "has_page", "is_page"),
    [("text/html,*/*;q=0.8", True, 1), ("application/json", True, 0), ("*/*", True, 0), ("text/html", False, 0)],
)
def test_what_is_at_the_root(accept, has_page, is_page):
    with serving(settings=replace(ANY_PORT, has_page=has_page)) as running:
        status, body = running.request("GET", "/", headers={"Accept": accept})
        assert (status, 'id="composer"' in body) == (200, is_page)


SEES = {**BIG, "modalities": ("image", "audio"), "projector": FakeProjector()}


def test_images_and_sound_are_attached_shown_kept_and_sent_again(browser):
    files = {"one.png": ("image/png", png(30, 20)), "beep.wav": ("audio/wav", wav())}
    with page_of(browser, endless, **SEES) as (page, running):
        give(page, files)
        page.wait_for("#attached figure", 2)
        give(page, {"two.png": ("image/png", png(30, 20, 2))}, "#input", "paste")
        page.wait_for("#attached figure", 3)
        give(page, {"three.png": ("image/png", png(30, 20, 3))}, "#input", "dragover drop")
        page.wait_for("#attached figure", 4)
        page.click("#attached [aria-label='Remove three.png']")
        page.wait_for("#attached figure", 3)
        page.click("#open-settings")
        page.type("#settings [name=max_tokens]", "3")
        page.click("#settings button", "Save")
        say(page, "look")
        wait_for_response(page, "abc")
        assert running.last_prompt == "<****>" * 3 + "look"
        page.wait_for("#attached figure", 0)
        page.reload()
        wait_for_response(page, "abc")
        assert page.count(".user .media img") == 2
        assert page.text(".user figcaption") == "♪ beep.wav"
        assert page.eval("[...document.querySelectorAll('.user img')].every((image) => image.naturalWidth === 30)")
        page.click(".assistant button", "Regenerate")
        page.wait(IS_IDLE)
        assert running.last_prompt == "<****>" * 3 + "look"
        page.click(".user button", "Edit")
        page.type(".editor textarea", "see")
        page.click(".editor button", "Send again")
        page.wait("document.querySelector('.user .text')?.innerText === 'see'")
        wait_for_response(page, "abc")
        assert running.last_prompt == "<****>" * 3 + "see"


def test_large_image_of_any_format_is_sent_alone_as_a_smaller_jpeg(browser):
    big, svg = png(3000, 1500, data=bytes(9001 * 1500)), b'<svg xmlns="http://www.w3.org/2000/svg" width="10"/>'
    with page_of(browser, endless, **SEES) as (page, running):
        give(page, {"big.png": ("image/png", big), "a.svg": ("image/svg+xml", svg)})
        page.wait_for("#attached figure", 1)
        assert page.eval("document.querySelector('#attached img').src").startswith("data:image/jpeg;base64,")
        assert "a.svg cannot be attached" in page.text("#status")
        page.wait("document.querySelector('#attached img').naturalWidth === 2048")
        page.click("#send")
        page.wait("document.querySelector('#title').innerText === 'big.png'")
        page.wait("document.querySelector('.assistant .prose').innerText.length > 5")
        assert running.last_prompt == "<****>"
        page.click("#stop")
        page.wait(IS_IDLE)


def test_images_are_imported(browser):
    url = f"data:image/png;base64,{base64.b64encode(png(30, 20)).decode()}"
    messages = [{"role": "user", "content": "look", "media": [{"name": "one.png", "url": url}]}]
    with page_of(browser, endless, **SEES) as (page, _):
        show_imported(page, [*messages, {"role": "assistant", "content": "I see", "finish": "stop"}])
        page.wait_for(".user .media img", 1)
        for other in ("https://example.com/a.png", "javascript:1", "data:text/html,a"):
            bad = [{**messages[0], "media": [{"name": "a", "url": other}]}]
            import_text(page, json.dumps({"conversations": [{"messages": bad}]}))
            page.wait("document.querySelector('#status').innerText.includes('that is not text or files')")
            page.eval("document.querySelector('#status span').textContent = ''")


def test_only_what_the_model_takes_can_be_attached(browser):
    with page_of(browser, endless) as (page, _):
        assert page.eval("document.querySelector('#attach').hidden")
        give(page, {"one.png": ("image/png", png(30, 20))}, "#input", "paste")
        assert page.count("#attached figure") == 0
    with page_of(browser, endless, **{**SEES, "modalities": ("image",)}) as (page, _):
        assert not page.eval("document.querySelector('#attach').hidden")
        give(page, {"beep.wav": ("audio/wav", wav())})
        page.wait("document.querySelector('#status').innerText.includes('this model takes text and image')")
        assert page.count("#attached figure") == 0
