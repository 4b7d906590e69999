"""The chat page around the messages: list, menu, dialogs, narrow windows, print, in a headless Chromium."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.page.pages import GATED, HAS_MODELS, IS_IDLE, page_of, page_with_answer, show_imported
from tests.support.browser import Page
from tests.support.fakes import endless
from tests.support.serving import ANY_PORT, generating

FOCUSED = "document.activeElement.id || document.activeElement.className"


def import_two(page: Page) -> None:
    for title in ("first subject that is long", "second subject that is long"):
        show_imported(page, {"role": "user", "content": title}, title=title)


@pytest.mark.parametrize("width", [320, 360, 800, 1600])
def test_nothing_is_cut_or_covered(browser, width):
    long = "word " * 30 + "x" * 300
    with page_with_answer(browser, lambda messages: []) as page:
        page.resize(width)
        show_imported(
            page, {"role": "user", "content": long}, {"role": "assistant", "content": f"{long}\n\n    {long}"}
        )
        page.do((".assistant .acts", 1))
        assert page.eval("$('#log').scrollWidth - $('#log').clientWidth") == 0
        assert page.eval("document.documentElement.scrollWidth") == width
        # The names of models have about twenty letters.
        assert page.eval("innerWidth > 480 || $('#model').clientWidth > 180")
        covered = """$$("button, select, textarea").filter((e) => e.checkVisibility({visibilityProperty: true}))
            .filter((e) => { const box = e.getBoundingClientRect();
                return box.top > 0 && box.bottom < innerHeight && box.right > innerWidth; }).map((e) => e.outerHTML)"""
        assert page.eval(covered) == []


def test_buttons_of_the_list_are_seen_where_there_is_no_pointer_and_titles_are_whole(browser):
    with page_with_answer(browser, lambda messages: []) as page:
        page.resize(360)
        import_two(page)
        page.do("#menu")
        assert page.eval("$$('#list .act').every((e) => e.checkVisibility({visibilityProperty: true}))")
        # A tap at the end of a title opens the conversation.
        box = "$('#list .pick').getBoundingClientRect()"
        page.wait(f"document.elementFromPoint({box}.right - 4, {box}.top + 8) === $('#list .pick')")
        assert page.eval("$('#list .pick').clientWidth") > 250


def test_menu_opens_and_closes_with_keys_and_says_so(browser):
    with page_with_answer(browser, lambda messages: []) as page:
        page.resize(360)
        import_two(page)
        page.send("Input.dispatchKeyEvent", type="keyDown", key="k", windowsVirtualKeyCode=75, modifiers=2)
        assert page.eval(FOCUSED) == "search"
        page.press("Escape", 27)
        state = "[$('#menu').ariaExpanded, $('main').inert, $('#side').checkVisibility({visibilityProperty: true})]"
        assert page.eval(state) == ["false", False, False]
        page.do("#menu")
        page.wait(f"{state}.join() === 'true,true,true'")
        page.press("Escape", 27)
        page.wait(f"{state}.join() === 'false,false,false'")
        assert page.eval(FOCUSED) == "menu"
        page.do("#menu", "#list .pick")
        page.wait(f"{state}.join() === 'false,false,false'")
        page.do("#menu")
        page.resize(1200)
        page.wait(f"{state}.join() === 'false,false,true'")


def test_focus_and_titles_after_a_rename_and_a_deletion(browser):
    with page_with_answer(browser, lambda messages: []) as page:
        import_two(page)
        page.do("#list .open .act: ✎", ("#list input", "New name\n"))
        assert page.eval("document.title") == "New name · localchat"
        assert page.eval("document.activeElement.title") == "New name"
        page.do("#list [aria-label='Delete New name']", "#ask button: Delete", ("#list li", 1))
        assert page.eval("document.activeElement.title") == "first subject that is long"
        page.do(("#search", "nowhere"))
        page.wait_for_text("#no-hits", "No conversation")
        page.do(("#search", " "), "#list .act: ✕", "#ask button: Delete", ("#list li", 0))
        assert page.eval(FOCUSED) == "new"


def test_nothing_moves_for_those_who_want_no_motion(browser):
    with page_of(browser, endless, **GATED) as (page, running):
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        page.do(("#input", "go\n"), (".waiting", 1))
        assert page.eval("document.getAnimations().length") == 0
        page.send("Emulation.setEmulatedMedia", features=[])
        page.wait("document.getAnimations().length")
        page.do("#stop")
        page.wait(IS_IDLE)
        running.gate.release(100_000)
        running.wait_until_idle()


def test_print_has_all_messages_and_nothing_else(browser):
    messages = [{"role": "user", "content": f"question {i}"} for i in range(60)]
    with page_with_answer(browser, lambda messages: []) as page:
        show_imported(page, *messages)
        page.send("Emulation.setEmulatedMedia", media="print")
        page.wait("$('#log').scrollHeight === $('#log').clientHeight")
        assert page.eval("$('#log').clientHeight > 60 * 40")
        hidden = ["#side", "#composer", "#model", "#open-settings", ".acts"]
        assert page.eval(f"{hidden}.filter((selector) => $(selector).checkVisibility())") == []
        page.send("Emulation.setEmulatedMedia", media="")


def test_key_is_asked_for_once_and_its_invisible_characters_are_named(browser):
    settings = replace(ANY_PORT, api_keys=("right",))
    with page_of(browser, generating("Yes."), "$('#key').open", settings=settings) as (page, _):
        page.do(("#key input", "right\u200b"), "#key button: Use this key")
        page.wait_for_text("#key .problem", "U+200B, the 6th")
        page.press("Escape", 27)
        page.wait("!$('#key').open")
        page.do(("#input", "open?\n"))
        page.wait("$('#key').open")
        page.do("#key button: Cancel")
        page.wait_for_text(".assistant .error", "key")
        page.wait_for_frames(20)
        assert not page.eval("$('#key').open")
        assert page.text(".user .text") == "open?"
        page.do(".assistant button: Try again")
        page.wait("$('#key').open")
        page.do(("#key input", " right "), "#key button: Use this key")
        page.wait(f"{HAS_MODELS} && $('.assistant .prose').innerText === 'Yes.'")


def test_theme_and_presets_are_kept(browser):
    with page_with_answer(browser, lambda messages: []) as page:
        page.do("#theme", "#theme")
        dark = page.eval("getComputedStyle(document.body).backgroundColor")
        page.do("#open-settings", ("#settings [name=temperature]", "0.1"), "#settings button: Save as preset")
        assert "needs a name" in page.text("#settings .problem")
        page.do(
            ("#settings [name=preset_name]", "exact"), "#settings button: Save as preset", "#settings button: Cancel"
        )
        page.reload()
        assert page.eval("getComputedStyle(document.body).backgroundColor") == dark
        page.wait(HAS_MODELS)
        page.do("#theme", "#open-settings")
        page.eval("""((field) => { field.value = "exact"; field.dispatchEvent(new Event("change")); })(
            $("#settings [name=preset]"))""")
        assert page.eval("$('#settings [name=temperature]').value") == "0.1"
        page.do("#settings button: ✕", "#settings button: Cancel")


def test_state_of_a_model_that_loads_is_shown(browser):
    with page_of(browser, generating("Yes."), is_ready=False) as (page, running):
        page.wait("$('#model').innerText.includes('unloaded')")
        running.may_load.clear()
        page.do(("#input", "open?\n"))
        page.wait_for_text("#status", "Loading Fake")
        running.may_load.set()
        page.wait(f"{IS_IDLE} && $('.assistant .prose').innerText === 'Yes.'")
        page.wait("$('#model').innerText === 'Fake'")
