# ruff: noqa: RUF001 (letters of mathematics and of other scripts)
"""What the chat page shows of a response in Markdown, in a headless Chromium."""

from __future__ import annotations

import json
import queue
import random
import re

import pytest

from tests.page.pages import RESPONSE, page_with_answer, show_imported
from tests.support.browser import Page
from tests.support.deadline import DEADLINE_S

# The source of a response, and the HTML of its blocks.
SHOWN = {
    "formatting": ("**a** *b* ~~c~~ `d`\\*", "<p><strong>a</strong> <em>b</em> <del>c</del> <code>d</code>*</p>"),
    "tildes": ("10~20 and 30~40", "<p>10~20 and 30~40</p>"),
    "types": ("map<U>(f), Stream<S>, <b>open", "<p>map&lt;U&gt;(f), Stream&lt;S&gt;, &lt;b&gt;open</p>"),
    "tags that format": ("<b>a <i>b</i></b><br>c", "<p><b>a <i>b</i></b><br>c</p>"),
    "operators": ("2*3*4 and __init__", "<p>2*3*4 and __init__</p>"),
    "entities": ("&lt;a&gt; `&lt;`", "<p>&lt;a&gt; <code>&amp;lt;</code></p>"),
    "other tags": ("<div>\n*x*\n</div>", '<p class="plain">&lt;div&gt;\n*x*\n&lt;/div&gt;</p>'),
    "unsafe link": ("[x](javascript:1) ![y](data:,)", "<p>[x](javascript:1) ![y](data:,)</p>"),
    "unused definition": ("[info]: started", '<p class="plain">[info]: started</p>'),
    "tasks": ("- [x] a\n- [ ] b", "<ul><li>☑ a</li><li>☐ b</li></ul>"),
    "numbers": ("7. a\n\n8. b", '<ol start="7"><li><p>a</p></li><li><p>b</p></li></ol>'),
    "surplus cells": (
        "a|b\n-|:-:\nx||y|z",
        '<div class="table" tabindex="0"><table><thead><tr><th>a</th><th align="center">b</th></tr></thead>'
        '<tbody><tr><td>x</td><td align="center"></td><td>y</td><td>z</td></tr></tbody></table></div>',
    ),
    "amounts": ("$5 and $10, $HOME/$USER, $ x $", "<p>$5 and $10, $HOME/$USER, $ x $</p>"),
    "unknown mathematics": ("\\(\\foo{x}\\) \\[a", "<p>\\(\\foo{x}\\) \\[a</p>"),
}
# Mathematics in TeX, and its MathML without attributes.
MATHEMATICS = {
    "\\(x_1^2\\)": "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>",
    "$a_i$": "<msub><mi>a</mi><mi>i</mi></msub>",
    "$$\\frac{1}{2}$$": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    "\\[\n\\sqrt[3]{x}\n\\]": "<mroot><mi>x</mi><mn>3</mn></mroot>",
    "\\(\\sum_{i}^n i\\)": "<mrow><munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover><mi>i</mi></mrow>",
    "\\(\\left( x \\right.\\)": "<mrow><mo>(</mo><mi>x</mi><mo></mo></mrow>",
    "\\(\\text{if $x$}\\)": None,
    "\\(\\frac12\\)": "<mfrac><mn>1</mn><mn>2</mn></mfrac>",
    "\\(\\overbrace{a}^n\\)": "<mover><mover><mi>a</mi><mo>⏞</mo></mover><mi>n</mi></mover>",
    "\\(\\sin^2 x\\)": "<mrow><msup><mo>sin</mo><mn>2</mn></msup><mi>x</mi></mrow>",
    "\\(\\mathbb{R}\\alpha\\)": "<mrow><mi>ℝ</mi><mi>α</mi></mrow>",
    "\\[\\begin{matrix} a & b \\\\ c \\end{matrix}\\]": "<mrow><mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd>"
    "</mtr><mtr><mtd><mi>c</mi></mtd></mtr></mtable></mrow>",
    "\\(\\text{if } x\\)": "<mrow><mtext>if&nbsp;</mtext><mi>x</mi></mrow>",
    "\\(f'\\le 3.5\\)": "<mrow><msup><mi>f</mi><mrow><mo>′</mo></mrow></msup><mo>≤</mo><mn>3.5</mn></mrow>",
    "\\(" + "{" * 100 + "}" * 100 + "\\)": None,
    "\\(a^b^c\\)": None,
    "\\({a\\)": None,
}
NESTED = ["> ", ">", "+ ", "1. ", "- ", "*_", "[", "<b>"]


def show(page: Page, *sources: str) -> None:
    """Show a conversation with these responses."""
    question = {"role": "user", "content": "?"}
    responses = [{"role": "assistant", "content": source, "finish": "stop"} for source in sources]
    show_imported(page, *[message for response in responses for message in (question, response)])
    page.do((".assistant .acts", len(sources)))


def test_what_is_not_certain_to_be_markdown_is_shown_as_it_is_written(browser):
    with page_with_answer(browser, lambda messages: []) as page:
        show(page, *[source for source, _ in SHOWN.values()])
        shown = page.eval(f"$$('{RESPONSE}').map((e) => [...e.children].map((block) => block.innerHTML).join(''))")
        assert dict(zip(SHOWN, shown)) == {name: html for name, (_, html) in SHOWN.items()}


def test_mathematics_is_rendered_or_shown_as_it_is_written(browser):
    with page_with_answer(browser, lambda messages: []) as page:
        show(page, *MATHEMATICS)
        shown = page.eval(f"$$('{RESPONSE}').map((e) => e.querySelector('math')?.innerHTML)")
        rendered = [html and re.sub(r"(<\w+)[^>]*", r"\1", html) for html in shown]
        assert dict(zip(MATHEMATICS, rendered)) == MATHEMATICS
        written = [source for source, html in MATHEMATICS.items() if html is None]
        texts = page.eval(f"$$('{RESPONSE}').filter((e) => !e.querySelector('math')).map((e) => e.textContent)")
        assert texts == written


def test_no_letter_of_a_random_text_is_lost(browser):
    rng = random.Random(1)
    words = [*"abcd", " ", *"*_~`<>|\\$#+-()[]{}^=:!", "\n", "\n\n", "<b>", "\\(", "\\)", "$$", "| ", "> "]
    sources = ["".join(rng.choices(words, k=rng.randrange(5, 60))) for _ in range(300)]
    sources = [source for source in sources if source.strip()]
    with page_with_answer(browser, lambda messages: []) as page:
        show(page, *sources)
        shown = page.eval(f"$$('{RESPONSE}').map((e) => e.textContent.replaceAll('Copy', ''))")
        letters = [re.sub(r"[^a-d]", "", source.replace("<b>", "")) for source in sources]
        assert [re.sub(r"[^a-d]", "", text.replace("<b>", "")) for text in shown] == letters


def test_nesting_without_end_is_shown_and_hides_no_conversation(browser):
    pieces = [piece for marker in NESTED for piece in (marker * 2500, "deep\n\n")]
    with page_with_answer(browser, lambda messages: pieces) as page:
        page.do(("#input", "nest\n"), (".assistant .acts", 1))
        assert page.eval(f"$('{RESPONSE}').textContent.match(/deep/g).length") == len(NESTED)
        show(page, *[marker * 2500 for marker in NESTED], "> " * 300 + "deep")
        assert page.eval("$$('.prose blockquote').length") < 100
        page.reload()
        page.do(("#list .pick", 2), (".assistant .acts", len(NESTED) + 1))


@pytest.mark.parametrize("way", ["streamed", "opened"])
def test_each_block_has_the_direction_of_its_text(browser, way):
    source = "שלום עולם\n\n- מים\n\n| שם |\n|---|\n| א |\n\nEnglish\n\n> العربية\n\n```\nשלום\n```\n"
    with page_with_answer(browser, lambda messages: list(source)) as page:
        if way == "streamed":
            page.do(("#input", "שלום\nhello\n"), (".assistant .acts", 1))
        else:
            show(page, source)
        directions = page.eval(
            f"$$('{RESPONSE} :is(p, li, table, blockquote, pre)').map((e) => getComputedStyle(e).direction)"
        )
        assert directions == ["rtl", "rtl", "rtl", "ltr", "rtl", "rtl", "ltr"]


def test_selection_and_focus_stay_while_the_text_grows_and_ends(browser):
    texts: queue.Queue[str] = queue.Queue()
    with page_with_answer(browser, lambda messages: iter(lambda: texts.get(timeout=DEADLINE_S), "")) as page:
        page.do(("#input", "go\n"))
        texts.put("# Title\n\nSome *words* and [a link](https://example.com/) and")
        page.wait("$('.prose a')")
        page.eval("$('.prose a').focus(), getSelection().selectAllChildren($('.prose em'))")
        for text in (" more.", "\n\n- a list", "\n\n[ref]: https://example.com/"):
            texts.put(text)
            page.wait(f"$('.prose').textContent.endsWith({json.dumps(text[-3:])})")
        texts.put("")
        page.do((".assistant .acts", 1))
        page.wait_for_frames()
        assert page.eval("[String(getSelection()), document.activeElement.href]") == ["words", "https://example.com/"]


def test_time_does_not_grow_with_the_square_of_a_text(browser):
    """A model that repeats itself until its token limit writes one long paragraph."""
    ratio = """((sign) => { const [short, long] = [5000, 40_000].map((n) => {
        const times = Array.from({ length: 3 }, () => {
            const start = performance.now(); marked.lexer(sign.repeat(n)); return performance.now() - start; });
        return Math.min(...times); }); return long / Math.max(10, short); })"""
    with page_with_answer(browser, lambda messages: []) as page:
        ratios = {
            sign: page.eval(f"{ratio}({json.dumps(sign)})") for sign in ("!", "_a", "a.", "*", "&", "[", "<", "`")
        }
        assert max(ratios.values()) < 24, ratios
