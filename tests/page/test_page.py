"""The chat page in a headless Chromium, with the real HTTP server and engine, on fake models with given outputs."""

import base64
import functools
import json
import re
import socket
from dataclasses import replace

import pytest

from localchat.serving.http.status_endpoints import chat_page
from tests.page.pages import (
    GATED,
    HAS_MODELS,
    IS_IDLE,
    RESPONSE,
    chat,
    give,
    import_text,
    page_of,
    show_imported,
    start_with,
    stream,
    tab_of,
    wait_for_response,
)
from tests.support.fakes import FakeProjector, endless
from tests.support.media_files import png, wav
from tests.support.serving import ANY_PORT, BIG, LAST_MESSAGE, generating, serving

SEES = {**BIG, "modalities": ("image", "audio"), "projector": FakeProjector()}
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


def test_message_is_streamed_with_its_reasoning_and_kept_after_a_reload(browser):
    model = generating("<think>First, this.</think>Hello **you**")
    with page_of(browser, model, chat_template=REASONING) as (page, _):
        page.do(("#input", "にほん"))
        page.press("Enter", 229)  # These keys are those of an input method.
        page.press("Escape", 229)
        assert page.eval("$$('.message').length") == 0
        chat(page, "Hi <b>there</b>", "Hello you")
        assert page.text(".user .text") == page.text("#title") == "Hi <b>there</b>"
        assert page.text(".prose strong") == "you"
        assert re.fullmatch(r"Reasoned for \d+\.\d s", page.text(".reasoning summary"))
        assert page.eval("$('.reasoning .body').textContent").strip() == "First, this."
        assert not page.eval("$('.reasoning').open")
        assert "41 tokens" in page.text(".assistant .stats")
        assert "tokens" in page.text("#context")
        page.reload()
        wait_for_response(page, "Hello you")
        page.do(("#list li", 1))


@pytest.mark.parametrize(("is_cut", "shown"), [(False, "Stopped."), (True, "connection")], ids=["stopped", "cut"])
def test_response_that_ends_early_keeps_its_text_and_says_why(browser, is_cut, shown):
    with page_of(browser, endless, **GATED) as (page, running):
        stream(page, running)
        if is_cut:
            for connection in list(running.server.connections._states):
                connection.shutdown(socket.SHUT_RDWR)
        else:
            page.press("Escape", 27)
        page.wait_for_text(".assistant .error" if is_cut else ".assistant", shown)
        assert page.text(RESPONSE).startswith("abc")
        assert ("Try again" in page.text(".assistant .acts")) == is_cut
        running.gate.release(100_000)
        running.wait_until_idle()


def test_edit_and_regenerate_replace_what_follows(browser):
    texts = ["first", "second", "third"]
    with page_of(browser, lambda *step: generating(texts[len(running.requests) - 1])(*step)) as (page, running):
        chat(page, "one", "first")
        page.do(".assistant button: Regenerate")
        wait_for_response(page, "second")
        page.do(".user button: Edit", (".editor textarea", "two\n"), "#ask button: Remove")
        wait_for_response(page, "third")
        assert page.text(".user .text") == running.last_prompt == "two"


def test_settings_are_sent_and_the_schema_is_checked(browser):
    with page_of(browser, generating('{"a": 1}')) as (page, _):
        fields = {"temperature": "0.5", "top_k": "7", "max_tokens": "50", "seed": "3", "stop": "xx\nyy", "schema": "{"}
        typed = [(f"#settings [name={name}]", value) for name, value in fields.items()]
        page.do("#open-settings", *typed, "#settings button: Save")
        assert "not valid JSON" in page.text("#settings .problem")
        page.do(("#settings [name=schema]", '{"type": "object", "required": ["b"]}'), "#settings button: Save")
        page.wait("!$('#settings').open")
        chat(page, "json", '{"a": 1}')
        (sent,) = page.sent
        assert {**sent, "temperature": 0.5, "top_k": 7, "max_tokens": 50, "seed": 3, "stop": ["xx", "yy"]} == sent
        assert sent["response_format"]["json_schema"]["schema"] == {"type": "object", "required": ["b"]}


@pytest.mark.parametrize("way", ["streamed", "imported"])
def test_hostile_markdown_runs_nothing_and_loses_nothing(browser, way):
    source = HOSTILE * (5 if way == "streamed" else 65536 // len(HOSTILE) + 1)
    with page_of(browser, generating(source), n_ctx=8000, n_cells=10_000) as (page, _):
        if way == "streamed":
            page.do(("#input", "show\n"))
        else:
            show_imported(page, {"role": "user", "content": "show"}, {"role": "assistant", "content": source})
        page.wait(IS_IDLE)
        assert page.eval("window.hacked") is None
        shown = page.text(RESPONSE)
        for text in ("Vec<String>", "<script>window.hacked = 1</script>", "<iframe src=", "bold", "<svg onload="):
            assert text in shown
        assert page.eval("$$('.prose :is(script, iframe, svg, img, style)').length") == 0
        assert page.eval("['table', '.code'].map((e) => $$(`.prose ${e}`).length)") == [source.count("```html")] * 2
        links = page.eval("$$('.prose a').map((a) => a.getAttribute('href'))")
        assert {"https://example.com/page", "https://example.com/pixel.png"} == {link for link in links if link}


def test_a_wrong_key_is_refused_with_the_words_of_the_server(browser):
    settings = replace(ANY_PORT, api_keys=("right",))
    with page_of(browser, generating("Yes."), "$('#key').open", settings=settings) as (page, _):
        page.do(("#key input", "wrong\n"))
        page.wait_for_text("#key .problem", "refused this key")
        page.do(("#key input", "right\n"))
        page.wait(HAS_MODELS)
        chat(page, "open?", "Yes.")
        assert page.eval("JSON.parse(sessionStorage.getItem('key'))") == "right"
        assert "right" not in page.eval("JSON.stringify(localStorage)")


def test_errors_are_those_of_the_server(browser):
    with page_of(browser, generating("x"), n_ctx=64, n_cells=64) as (page, _):
        page.do(("#input", "long " * 60 + "\n"))
        page.wait_for_text(".assistant .error", "64")


def test_a_hundred_turns(browser):
    with page_of(browser, generating("- an *answer*"), n_ctx=4000, n_cells=8000) as (page, _):
        turns = [{"role": role, "content": f"{role} {i}"} for i in range(100) for role in ("user", "assistant")]
        show_imported(page, *turns)
        page.do((".message", 200), ("#input", "more\n"), (".message", 202))
        page.wait("!$('#send').hidden")
        assert page.eval("((log) => log.scrollHeight - log.scrollTop - log.clientHeight)($('#log'))") < 50


def test_imported_images_and_tool_calls_are_shown_and_sent_again(browser):
    image = {"name": "one.png", "url": f"data:image/png;base64,{base64.b64encode(png(30, 20)).decode()}"}
    question = {"role": "user", "content": "where?", "media": [image]}
    call = {"id": "c1", "name": "look<b>", "arguments": '{"at": "<i>Rome"}'}
    with page_of(browser, generating("after"), **SEES) as (page, _):
        show_imported(page, question, {"role": "assistant", "content": "", "calls": [call], "finish": "stop"})
        page.do((".assistant", 1), (".user .media img", 1))
        shown = page.eval("$('.assistant').textContent")
        assert "look<b>" in shown
        assert "<i>Rome" in shown
        chat(page, "and then?", "after")
        messages = page.sent[-1]["messages"]
        assert messages[0]["content"][0]["image_url"] == {"url": image["url"]}
        assert messages[1]["tool_calls"][0]["function"] == {"name": "look<b>", "arguments": call["arguments"]}
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
        for url in ("https://example.com/a.png", "javascript:1", "data:text/html,a"):
            bad = [{**question, "media": [{**image, "url": url}]}]
            import_text(page, json.dumps({"conversations": [{"messages": bad}]}))
            page.wait_for_text("#status", "that is not text or files")
            page.eval("$('#status span').textContent = ''")


def test_the_list_is_searched_renamed_deleted_exported_and_imported(browser):
    with page_of(browser, generating("An answer about bees")) as (page, _):
        for text in ("bees", "wasps"):
            page.do("#new")
            chat(page, text, "An answer about bees")
        page.do(("#search", "wasps"), ("#list li", 1), "#new", ("#list li", 2), "#list [title=wasps]")
        page.do("#list [aria-label='Rename wasps']", ("#list input", "Insects\n"))
        page.wait_for_text("#title", "Insects")
        for button, titles in (("[aria-label='Export bees']", {"bees"}), ("#export", {"bees", "Insects"})):
            page.eval("""void (window.exported = new Promise((resolve) => {
                URL.createObjectURL = (blob) => { resolve(blob.text()); return "data:,"; };
            }))""")
            page.do(button)
            exported = page.eval("exported")
            assert {conversation["title"] for conversation in json.loads(exported)["conversations"]} == titles
        page.do("#list [aria-label='Delete bees']", "#ask button: Delete", ("#list li", 1))
        import_text(page, exported)
        page.do(("#list li", 2))
        assert "1 imported, 1 were already here" in page.text("#status")
        import_text(page, '{"conversations": 3}')
        page.wait_for_text("#status", "has no list")


def test_two_tabs_share_the_conversations(browser):
    with page_of(browser, generating("Both see this")) as (page, running), tab_of(browser, running) as other:
        page.do(("#input", "from one tab\n"), (".assistant .acts", 1))
        other.wait("$('#list .pick')?.textContent === 'from one tab'")
        other.do("#list .pick")
        wait_for_response(other, "Both see this")
        other.do(("#input", "from the other\n"))
        page.do((".message", 4), (".assistant .acts", 2))


@pytest.mark.parametrize("where", ["here", "in another tab"])
def test_conversation_that_is_deleted_while_it_streams_stays_deleted(browser, where):
    with page_of(browser, endless, **GATED) as (page, running), tab_of(browser, running) as other:
        stream(page, running)
        tab = page if where == "here" else other
        tab.do(("#list li", 1), "#list .act: ✕", "#ask button: Delete")
        page.wait("!$('#list li') && !$('#send').hidden")
        page.reload()
        page.wait(HAS_MODELS)
        assert page.eval("$$('#list li').length") == 0
        running.gate.release(100_000)
        running.wait_until_idle()


def test_reload_keeps_the_text_so_far_and_what_is_being_written(browser):
    with page_of(browser, endless, **GATED) as (page, running):
        stream(page, running)
        running.gate.release(10)
        page.wait(f"$('{RESPONSE}').innerText.length > 18")
        shown = page.text(RESPONSE)
        # The end of the response leaves the field open.
        page.do("#list .act: ✎", ("#list input", "Letters"), ("#input", "and then"))
        assert page.text("#list .pick") == "Letters …"
        page.reload()
        page.do((".assistant", 1))
        assert page.text(RESPONSE).strip().startswith(shown.strip())  # More may have come before the reload.
        assert page.eval("$$('.assistant :is(.note, .error)').map((e) => e.textContent)") == [
            "The response was interrupted."
        ]
        assert page.eval("$('#input').value") == "and then"
        page.do("#new")
        assert page.eval("$('#input').value") == ""
        page.do(("#input", "new text"), "#list .pick", ".user button: Edit", (".editor textarea", "stop"))
        page.reload()
        page.do((".editor", 1))
        assert page.eval("$('.editor textarea').value") == "stop"
        page.do("#new")
        assert page.eval("$('#input').value") == "new text"


def test_earlier_responses_stay_until_another_has_begun(browser):
    with page_of(browser, generating("fine")) as (page, _):
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        set_network = functools.partial(page.send, "Network.emulateNetworkConditions", **speed)
        for n in (1, 2, 3):
            page.do(("#input", f"turn {n}\n"), (".assistant .acts", n))
            page.wait(IS_IDLE)
        page.eval("$$('.user button')[1].click()")
        page.do((".editor textarea", "other"))
        for is_offline, button, n_kept in ((True, "Cancel", 6), (True, "Remove", 6), (False, "Remove", 2)):
            set_network(offline=is_offline)
            page.eval("$('.editor textarea').focus()")
            page.press("Enter", 13)
            page.do(f"#ask button: {button}")
            page.wait(f"{IS_IDLE} && $$('.message').length === {n_kept}")
            if (button, n_kept) == ("Remove", 6):
                page.wait_for_text("#messages > .error", "cannot be reached")
                set_network(offline=False)
                page.reload()
                page.do((".message", 6))
        assert page.text(".user .text") == "other"
        assert page.eval("$$('#messages > .error, .editor').length") == 0
        set_network(offline=True)
        page.do(".assistant button: Regenerate", ("#messages > .error", 1))
        assert page.text(RESPONSE).strip() == "fine"


def test_models_that_are_not_loaded_are_listed_without_polling(browser):
    with page_of(browser, generating("x"), is_ready=False) as (page, _):
        start_with(page, "const real = setTimeout, waits = []; setTimeout = (f, s) => waits.push(s) && real(f, s)")
        page.wait("performance.getEntriesByName(new URL('props', location)).length")
        assert page.text("#status").strip() == ""
        assert page.eval("waits.filter((ms) => ms > 1000).length") == 0


BLOCK = """for (const name of ["localStorage", "sessionStorage", "indexedDB"]) Object.defineProperty(
    window, name, { get() { throw new DOMException("Access is denied", "SecurityError"); } });"""
FULL = """IDBObjectStore.prototype.put = Storage.prototype.setItem = () => {
    throw new DOMException("over", "QuotaExceededError"); }"""


@pytest.mark.parametrize(("script", "notice"), [(BLOCK, "stores nothing"), (FULL, "could not be saved")])
def test_page_works_without_storage_and_says_so(browser, script, notice):
    with page_of(browser, generating("Yes.")) as (page, _):
        start_with(page, script)
        chat(page, "open?", "Yes.")
        page.wait_for_text("#notice", notice)
        page.do(("#input", "draft"), "#new", "#list .pick")
        assert page.eval("$('#input').value") == "draft"
        page.errors.clear()  # The script's exceptions are raised in event handlers.


def test_the_page_is_one_file_without_links():
    text, headers = chat_page()
    assert len(text.encode()) <= 170_000
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert [name for name in ("src", "href", "onclick", "style") if f' {name}="http' in text] == []


@pytest.mark.parametrize(
    ("accept", "has_page", "is_page"),
    [("text/html,*/*;q=0.8", True, 1), ("application/json", True, 0), ("*/*", True, 0), ("text/html", False, 0)],
)
def test_what_is_at_the_root(accept, has_page, is_page):
    with serving(settings=replace(ANY_PORT, has_page=has_page)) as running:
        status, body = running.request("GET", "/", headers={"Accept": accept})
        assert (status, 'id="composer"' in body) == (200, is_page)


def test_images_and_sound_are_attached_shown_kept_and_sent_again(browser):
    files = {"one.png": ("image/png", png(30, 20)), "beep.wav": ("audio/wav", wav())}
    with page_of(browser, endless, **SEES) as (page, running):
        give(page, files)
        page.do(("#attached figure", 2))
        give(page, {"two.png": ("image/png", png(30, 20, 2))}, "#input", "paste")
        page.do(("#attached figure", 3))
        give(page, {"three.png": ("image/png", png(30, 20, 3))}, "#input", "dragover drop")
        page.do(("#attached figure", 4), "#attached [aria-label='Remove three.png']", ("#attached figure", 3))
        page.do("#open-settings", ("#settings [name=max_tokens]", "3"), "#settings button: Save", ("#input", "look\n"))
        wait_for_response(page, "abc")
        assert running.last_prompt == "<****>" * 3 + "look"
        page.do(("#attached figure", 0))
        page.reload()
        wait_for_response(page, "abc")
        assert page.eval("$$('.user .media img').map((image) => image.naturalWidth)") == [30, 30]
        assert page.text(".user figcaption") == "♪ beep.wav"
        page.do(".assistant button: Regenerate")
        page.wait(IS_IDLE)
        assert running.last_prompt == "<****>" * 3 + "look"
        page.do(".user button: Edit", (".editor textarea", "see"), ".editor button: Send again", "#ask button: Remove")
        page.wait_for_text(".user .text", "see")
        wait_for_response(page, "abc")
        assert running.last_prompt == "<****>" * 3 + "see"


def test_large_image_of_any_format_is_sent_alone_as_a_smaller_jpeg(browser):
    big, svg = png(3000, 1500, data=bytes(9001 * 1500)), b'<svg xmlns="http://www.w3.org/2000/svg" width="10"/>'
    with page_of(browser, endless, **SEES) as (page, running):
        give(page, {"big.png": ("image/png", big), "a.svg": ("image/svg+xml", svg)})
        page.do(("#attached figure", 1))
        assert page.eval("$('#attached img').src").startswith("data:image/jpeg;base64,")
        assert "a.svg cannot be attached" in page.text("#status")
        page.wait("$('#attached img').naturalWidth === 2048")
        page.do("#send")
        page.wait_for_text("#title", "big.png")
        page.wait(f"$('{RESPONSE}').innerText.length > 5")
        assert running.last_prompt == "<****>"
        page.do("#stop")
        page.wait(IS_IDLE)


@pytest.mark.parametrize("facts", [{}, {**SEES, "modalities": ("image",)}], ids=["text", "text and image"])
def test_files_that_the_model_does_not_take_are_refused_at_once(browser, facts):
    with page_of(browser, endless, **facts) as (page, _):
        name, file = ("beep.wav", ("audio/wav", wav())) if facts else ("one.png", ("image/png", png(30, 20)))
        for field, events in (("#attach-file", "change"), ("#input", "paste"), ("#log", "dragover drop")):
            give(page, {name: file}, field, events)
            kinds = "text and image" if facts else "text"
            page.wait_for_text("#status", f"{name} cannot be attached: this model takes {kinds}.")
            page.eval("$('#status span').textContent = ''")
        assert page.eval("$$('#attached figure').length") == 0
