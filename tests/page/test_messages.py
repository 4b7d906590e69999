"""What can be done with a message on the chat page, in a headless Chromium."""

from __future__ import annotations

import json

from tests.page.pages import GATED, IS_IDLE, RESPONSE, chat, page_of, show_imported, stream, tab_of, wait_for_response
from tests.support.fakes import endless
from tests.support.serving import LAST_MESSAGE, generating

CONTENTS = "JSON.stringify($$('.user .text, .assistant .prose').map((e) => e.textContent))"


def contents(page) -> list[str]:
    return json.loads(page.eval(CONTENTS))


def test_versions_of_a_response_stay_and_can_be_shown(browser):
    texts = ["first", "second", "third"]
    with page_of(browser, lambda *step: generating(texts[len(running.requests) - 1])(*step)) as (page, running):
        chat(page, "one", "first")
        for n, text in ((2, "second"), (3, "third")):
            page.do(".assistant button: Regenerate")
            wait_for_response(page, text)
            assert page.text(".version") == f"{n}/{n}"
        page.do("[aria-label='Earlier version']")
        wait_for_response(page, "second")
        page.reload()
        wait_for_response(page, "second")
        assert page.text(".version") == "2/3"
        page.do("[aria-label='Earlier version']")
        wait_for_response(page, "first")
        assert page.eval("$('[aria-label=\"Earlier version\"]').disabled")
        page.do("[aria-label='Later version']", "[aria-label='Later version']")
        wait_for_response(page, "third")


def test_stopped_response_is_continued_from_its_text(browser):
    template = "{% for m in messages %}{{ m.content }}|{% endfor %}"
    with page_of(browser, endless, chat_template=template, **GATED) as (page, running):
        stream(page, running)
        page.press("Escape", 27)
        page.wait(IS_IDLE)
        assert page.text("#announcer") == "Stopped."
        text = page.text(RESPONSE)
        running.gate.release(100_000)
        running.wait_until_idle()
        page.do("#open-settings", ("#settings [name=max_tokens]", "2"), "#settings button: Save")
        page.eval("$$('.assistant button').find((e) => e.textContent === 'Continue').focus()")
        page.press("Enter", 13)
        wait_for_response(page, text + "ab")
        assert page.eval("document.activeElement.id") == "input"
        assert page.sent[-1]["messages"][-1] == {"role": "assistant", "content": text}
        assert page.eval("$$('.assistant').length") == 1
        page.wait_for_text(".assistant .note", "cut at its token limit")


def test_messages_are_edited_and_deleted_alone(browser):
    with page_of(browser, generating("answer")) as (page, _):
        chat(page, "one", "answer")
        chat(page, "two", "answer")
        page.eval("$('.assistant').querySelectorAll('button')[1].click()")
        page.do((".editor textarea", "another **answer**"), ".editor button: Save")
        page.eval("$('.user').querySelectorAll('button')[1].click()")
        page.do((".editor textarea", "uno"), ".editor button: Save")
        assert contents(page) == ["uno", "another answer", "two", "answer"]
        page.do(".assistant button: Edit", (".editor textarea", "draft"))
        page.do(".user button: Delete", "#ask button: Cancel", ".user button: Delete", "#ask button: Delete")
        page.wait(f"{CONTENTS} === JSON.stringify(['uno', 'another answer', 'answer'])")
        page.reload()
        page.do((".message", 3), (".message:last-child .editor", 1), ".editor button: Cancel")
        chat(page, "three", "answer")
        sent = [(message["role"], message["content"]) for message in page.sent[-1]["messages"]]
        assert sent == [("user", "uno"), ("assistant", "another **answer**\n\nanswer"), ("user", "three")]


def test_question_after_a_failed_response_is_joined_with_the_one_before(browser):
    failed = {"role": "assistant", "content": "", "error": "It failed."}
    image = {"name": "a.txt", "text": "x"}
    with page_of(browser, generating("answer")) as (page, _):
        show_imported(page, {"role": "user", "content": "one", "media": [image]}, failed)
        chat(page, "two", "answer")
        assert page.sent[-1]["messages"] == [{"role": "user", "content": "a.txt:\n```\nx\n```\n\none\n\ntwo"}]


def test_each_response_names_its_model_and_is_checked_with_its_schema(browser):
    with page_of(browser, generating("[]")) as (page, _):
        chat(page, "before", "[]")
        page.do("#open-settings", ("#settings [name=schema]", '{"type": "array"}'), "#settings button: Save")
        chat(page, "with", "[]")
        page.do("#open-settings", ("#settings [name=schema]", '{"type": "object"}'), "#settings button: Save")
        page.reload()
        page.do((".assistant .acts", 2))
        assert page.eval("$$('.assistant').map((e) => e.querySelector('.note')?.textContent ?? '')") == [
            "",
            "The response matches the schema.",
        ]
        assert page.text(".assistant .stats").startswith("Fake, ")


def test_open_reasoning_stays_open_at_the_end_of_the_response(browser):
    model = generating("<think>" + "so " * 30 + "</think>" + "text " * 30)
    template = LAST_MESSAGE + "{% if enable_thinking is defined %}{% endif %}{# <think></think> #}"
    with page_of(browser, model, chat_template=template, **GATED) as (page, running):
        page.do(("#input", "go\n"))
        running.gate.release(60)
        page.wait("$('.reasoning summary')?.checkVisibility()")
        page.do(".reasoning summary")
        running.gate.release(1000)
        page.wait(IS_IDLE)
        assert page.eval("$('.reasoning').open")


def test_editor_stays_at_its_message_when_another_tab_deletes_one(browser):
    editors = "$$('.message').map((e) => e.querySelector('.editor textarea')?.value ?? '')"
    with page_of(browser, generating("answer")) as (page, running), tab_of(browser, running) as other:
        for text in ("one", "two"):
            chat(page, text, "answer")
        page.do(".user button: Edit", (".editor textarea", "zwei"))
        other.do(("#list li", 1), "#list .pick", (".message", 4))
        other.eval("$('.user').querySelectorAll('button')[2].click()")
        other.do("#ask button: Delete", (".message", 3))
        page.do((".message", 3))
        assert page.eval(editors) == ["", "zwei", ""]
        page.reload()
        page.do((".message", 3))
        assert page.eval(editors) == ["", "zwei", ""]
        page.do(".editor button: Cancel")


def test_settings_belong_to_their_conversation(browser):
    system = "$('#settings [name=system]').value"
    with page_of(browser, generating("answer")) as (page, _):
        chat(page, "one", "answer")
        page.do("#open-settings", ("#settings [name=system]", "Be brief."))
        page.send("Input.dispatchKeyEvent", type="keyDown", key="O", windowsVirtualKeyCode=79, modifiers=2 | 8)
        page.do("#settings button: Save", "#new", "#open-settings")
        assert page.eval(system) == ""
        page.do("#settings button: Cancel", "#list .pick", "#open-settings")
        assert page.eval(system) == "Be brief."
        page.do("#settings button: Cancel")
        for n_left in (1, 0):  # A conversation without messages is still no new one.
            page.do(".message button: Delete", "#ask button: Delete", (".message", n_left))
        page.do(
            ("#input", "draft"), "#open-settings", ("#settings [name=system]", "Be long."), "#settings .check input"
        )
        page.do("#settings button: Save", "#new", "#open-settings")
        assert page.eval(f"[{system}, $('#input').value]") == ["Be long.", ""]
        page.do("#settings button: Cancel")
