"""What the chat page stores and imports, and what other tabs and damaged data do to it, in a headless Chromium."""

from __future__ import annotations

import json

import pytest

from tests.page.pages import (
    GATED,
    HAS_MODELS,
    IS_IDLE,
    RESPONSE,
    chat,
    import_text,
    page_of,
    page_with_answer,
    show_imported,
    start_with,
    stream,
    tab_of,
)
from tests.support.fakes import endless
from tests.support.serving import generating

USER = {"role": "user", "content": "?"}
# Fields of a conversation that is refused, and what the page says of it.
REFUSED = {
    "number": ({"messages": [{**USER, "used": "xx"}]}, "messages[0].used is not a number"),
    "call": (
        {"messages": [USER, {**USER, "role": "assistant", "calls": [None]}]},
        "messages[1].calls[0] is not an object",
    ),
    "role": ({"messages": [{**USER, "role": "system"}]}, "messages[0].role is not user or assistant"),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0] has no content"),
    "no message": ({"messages": [7]}, "messages[0] is not an object"),
    "no list": ({"messages": "x"}, "messages is not a list"),
    "stop": ({"messages": [USER], "settings": {"stop": 7}}, "settings.stop is not a text"),
    "schema": ({"messages": [USER], "settings": {"schema": "{"}}, "settings.schema is not the JSON of an object"),
    "settings": ({"messages": [USER], "settings": [1]}, "settings is not an object"),
    "file": (
        {"messages": [{**USER, "media": [{"name": "a", "url": "http://a"}]}]},
        "messages[0].media[0].url is not a data",
    ),
    "version": ({"messages": [{**USER, "earlier": [3]}]}, "messages[0].earlier[0] is not an object"),
    "title": ({"messages": [USER], "title": {}}, "title is not a text"),
}
DAMAGED = [{"messages": 3}, {"messages": [{"role": "user", "content": None}]}, {"settings": 1, "messages": []}, {}]


def test_import_refuses_what_it_cannot_show_and_names_the_place(browser):
    with page_with_answer(browser, lambda messages: []) as page:
        for conversation, message in REFUSED.values():
            import_text(page, json.dumps({"conversations": [{"messages": [USER]}, conversation]}))
            page.wait_for_text("#status", f"conversations[1].{message}")
        assert page.eval("$$('#list li').length") == 0
        unknown = {**USER, "unknown": 1, "used": None, "at": 1}
        import_text(
            page, json.dumps({"conversations": [{"messages": [unknown], "unknown": 2, "id": "x", "revision": 5}]})
        )
        page.do(("#list .pick", 1), "#list .pick", (".message", 1))


def test_damaged_conversation_hides_no_other(browser):
    with page_of(browser, generating("Yes.")) as (page, _):
        chat(page, "whole", "Yes.")
        records = json.dumps([{**record, "id": f"{i}"} for i, record in enumerate(DAMAGED)])
        page.eval(f"""new Promise((resolve) => {{
            indexedDB.open("localchat").onsuccess = ({{ target: {{ result }} }}) => {{
                const transaction = result.transaction("conversations", "readwrite");
                for (const record of {records}) transaction.objectStore("conversations").put(record);
                transaction.oncomplete = resolve;
            }};
        }})""")
        page.reload()
        page.do(("#list li", 1), (".assistant .acts", 1))
        page.wait_for_text("#notice", f"cannot read, and does not show: {len(DAMAGED)}")


SILENT = "IDBFactory.prototype.open = () => ({})"
FULL = "IDBObjectStore.prototype.put = () => { throw new DOMException('', 'QuotaExceededError'); }"
BROKEN = "IDBObjectStore.prototype.put = () => { throw new DOMException('', 'UnknownError'); }"


@pytest.mark.parametrize(
    ("script", "notice"),
    [(SILENT, "stores nothing"), (FULL, "no more space for this page"), (BROKEN, "not be saved: UnknownError")],
    ids=["silent", "full", "broken"],
)
def test_response_is_shown_whatever_the_database_does(browser, script, notice):
    with page_of(browser, generating("Yes.")) as (page, _):
        start_with(page, script)
        chat(page, "open?", "Yes.")
        page.wait_for_text("#notice", notice)
        page.do(("#input", ""))


def test_response_in_another_tab_is_in_progress_there(browser):
    with page_of(browser, endless, **GATED) as (page, running):
        stream(page, running)
        with tab_of(browser, running) as other:
            other.do(("#list [title=go]", 1), "#list [title=go]")
            other.wait_for_text(".assistant .note", "being written in another tab")
            assert other.eval("$$('.assistant button').length") == 0
            other.do(("#input", "more\n"))
            assert other.eval("[$('#input').value, $$('.message').length]") == ["more", 2]
            page.do("#stop")
            page.wait(IS_IDLE)
            other.wait_for_text(".assistant .note", "Stopped.")
            other.wait("$('.assistant button')")
            assert other.text(RESPONSE) == page.text(RESPONSE)
            other.do(("#input", ""))
        running.gate.release(100_000)
        running.wait_until_idle()


# Steps that prepare a change of the conversation "one", the script of its last step, and what the page then shows.
CHANGES = {
    "sent": ([("#input", "two")], "$('#send').click()", "$$('.user .text')[1].textContent === 'two'"),
    "edited": (
        [".assistant button: Edit", (".editor textarea", "edited")],
        "$('.editor .main').click()",
        f"$('{RESPONSE}').textContent === 'edited'",
    ),
    "message deleted": ([".user button: Delete"], "$('#ask .main').click()", "$$('.message').length === 1"),
    "version": (
        [],
        "$('[aria-label=\"Earlier version\"]').click()",
        "$('.version').textContent === '1/2'",
    ),
    "renamed": (
        ["[aria-label='Rename one']", ("#list input", "renamed")],
        "$('#list input').blur()",
        "$('#list .pick').textContent === 'renamed' && $('#title').textContent === 'renamed'",
    ),
    "settings": (
        ["#open-settings", ("#settings [name=system]", "Be brief.")],
        "$('#settings .main').click()",
        "($('#open-settings').click(), $('#settings [name=system]').value === 'Be brief.')",
    ),
    "preset": (
        ["#open-settings", ("#settings [name=preset_name]", "brief")],
        "$('[data-do=save-preset]').click()",
        "($('#open-settings').click(), $$('#settings [name=preset] option').at(-1).value === 'brief')",
    ),
    "conversation deleted": (
        ["[aria-label='Delete one']"],
        "$('#ask .main').click()",
        "!$$('#list li').length && $('.empty')",
    ),
}


@pytest.mark.parametrize("size", [1, 200_000], ids=["small", "large"])  # Chromium stores a large value in a file.
@pytest.mark.parametrize(("steps", "change", "shown"), CHANGES.values(), ids=CHANGES)
def test_change_stays_if_the_page_is_loaded_again_at_once(browser, size, steps, change, shown):
    answer = {"role": "assistant", "content": "answer", "finish": "stop"}
    messages = [{"role": "user", "content": "x" * size}, {**answer, "earlier": [answer]}]
    with page_with_answer(browser, lambda messages: ["Yes."]) as page:
        show_imported(page, *messages, title="one")
        page.do(*steps)
        page.eval(f"(window.isOld = true, {change}, location.reload())")
        page.wait(f"!window.isOld && {HAS_MODELS} && {shown}")


def test_change_stays_if_the_tab_is_closed_at_once(browser):
    with page_of(browser, generating("answer")) as (page, running):
        chat(page, "one", "answer")
        closing = browser.open(f"http://{running.address}/")
        closing.do(("#list .pick", 1), "#list .pick", ".assistant button: Edit", (".editor textarea", "edited"))
        closing.do(".editor .main")
        closing.send("Page.close")
        page.reload()
        page.wait(f"$('{RESPONSE}')?.textContent === 'edited'")


def test_conversation_can_be_deleted_while_another_tab_changes_it(browser):
    with page_of(browser, generating("answer")) as (page, running), tab_of(browser, running) as other:
        chat(page, "one", "answer")
        other.do(("#list .pick", 1), "#list .pick", (".message", 2), "#list .act: ✕")
        chat(page, "two", "answer")
        other.do((".message", 4), "#ask button: Delete", ("#list li", 0), (".message", 0))
        page.do(("#list li", 0), (".message", 0))


def test_title_that_is_being_written_stays_until_it_is_done(browser):
    with page_of(browser, generating("answer")) as (page, running), tab_of(browser, running) as other:
        for text in ("one", "two"):
            page.do("#new")
            chat(page, text, "answer")
        other.do(("#list .pick", 2), "#list [title=one]", (".message", 2))
        page.do("[aria-label='Rename one']", ("#list input", "half"))
        chat(other, "more", "answer")  # moves it to the beginning of the list
        other.do("#list [title=two]")
        chat(other, "more", "answer")
        page.do((".message", 4))
        assert page.eval("[$('#list input').value, document.activeElement === $('#list input')]") == ["half", True]
        other.do("[aria-label='Delete one']", "#ask button: Delete", ("#list li", 1))
        chat(other, "and more", "answer")
        page.do((".message", 6), "#new", ("#list li", 1))


TITLES = "$$('#list .pick').map((e) => e.textContent).sort().join()"


def test_changes_of_two_tabs_both_stay(browser):
    with page_of(browser, generating("answer")) as (page, running):
        chat(page, "one", "answer")
        with tab_of(browser, running) as other:
            start_with(other, "BroadcastChannel.prototype.postMessage = () => {}")  # It has not arrived yet.
            other.do(("#list .pick", 1), "[aria-label='Rename one']", ("#list input", "renamed\n"))
        page.do(".assistant button: Edit", (".editor textarea", "edited"), ".editor .main")
        for _ in range(2):
            page.wait(f"{TITLES} === 'one (copy),renamed'")
            page.do("#list [title='one (copy)']")
            assert page.text(RESPONSE) == "edited"
            page.do("#list [title=renamed]")
            assert page.text(RESPONSE) == "answer"
            page.reload()


def test_change_in_another_tab_during_a_response_stays(browser):
    with page_of(browser, endless, **GATED) as (page, running):
        stream(page, running)
        with tab_of(browser, running) as other:
            other.do(("#list [title='go']", 1), "[aria-label='Rename go']", ("#list input", "renamed\n"))
            page.wait(f"{TITLES} === 'go (copy) …,renamed'")
            other.wait(f"{TITLES} === 'go (copy) …,renamed'")
            page.do("#stop")
            page.wait(IS_IDLE)
            other.wait(f"{TITLES} === 'go (copy),renamed'")
        running.gate.release(100_000)
        running.wait_until_idle()
