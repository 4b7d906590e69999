"""Reasoning in tags at the start of the content, separated from the text."""

from __future__ import annotations

import pytest

from localchat.reply.assembly import Accumulator
from localchat.reply.think_tags import ThinkSplitter

SPLITS = {
    "tag-first": ("auto", "<think>a</think>b", "a", "b"),
    "blank-first": ("auto", " \n<think>\na\n</think>\n\nb", "a\n", "b"),
    "no-tag": ("auto", "b", "", "b"),
    "tag-later": ("auto", "b <think>a</think>", "", "b <think>a</think>"),
    "not-a-tag": ("auto", "<thin b", "", "<thin b"),
    "open-only": ("auto", "<think>a", "a", ""),
    "half-a-tag-at-the-end": ("auto", "b<think", "", "b<think"),
    "half-a-closing-tag-at-the-end": ("auto", "<think>a</thi", "a</thi", ""),
    "second-tag-is-text": ("auto", "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    "other-tag": ("auto", "<thought>a</thought>b", "a", "b"),
    "tags-do-not-mix": ("auto", "<thought>a</think>b", "a</think>b", ""),
    "stray-on-its-line": ("auto", "a\n</think>\nb", "a\n", "b"),
    "stray-at-line-end": ("auto", "a.</think>\n\nb", "a.", "b"),
    "stray-first": ("auto", "</think>\nb", "", "b"),
    "closing-in-a-sentence": ("auto", "use `</think>` here", "", "use `</think>` here"),
    "closing-at-the-very-end": ("auto", "ends with </think>", "", "ends with </think>"),
    "prefilled": ("prefilled", "a</think>b", "a", "b"),
    "prefilled-and-opened-again": ("prefilled", "<think>a</think>b", "a", "b"),
    "prefilled-never-closed": ("prefilled", "a", "a", ""),
    "prefilled-half-a-tag": ("prefilled", "<thi", "<thi", ""),
    "off": ("off", "<think>a</think>b", "", "<think>a</think>b"),
    "blank-only": ("auto", "  ", "", "  "),
    "empty": ("auto", "", "", ""),
}


@pytest.mark.parametrize(("mode", "text", "reasoning", "content"), SPLITS.values(), ids=SPLITS)
def test_think_splitter(mode, text, reasoning, content):
    """Whole, by characters, and at every cut in two."""
    for pieces in [[text], list(text)] + [[text[:i], text[i:]] for i in range(len(text))]:
        accumulator = Accumulator(think_tags=mode)
        for piece in pieces:
            accumulator.add({"choices": [{"delta": {"content": piece}}]})
        accumulator.add({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        accumulator.finish()
        assert (accumulator.reply().reasoning, accumulator.reply().text) == (reasoning, content), pieces


def test_think_splitter_holds_back_no_more_than_a_tag():
    splitter = ThinkSplitter()
    sent = "<think>" + "a<b" * 50
    out = "".join(text for character in sent for _, text in splitter.feed(character))
    assert len(sent) - len("<think>") - len(out) <= len("</think>") - 1


def test_think_splitter_has_three_modes():
    with pytest.raises(ValueError, match="think_tags must be one of auto, prefilled, off"):
        Accumulator(think_tags="yes")


@pytest.mark.parametrize(("mode", "content"), [("prefilled", "42"), ("auto", "<think>42")])
def test_text_that_ends_inside_think_is_kept_and_gives_a_warning(mode, content):
    accumulator = Accumulator(think_tags=mode)
    accumulator.add({"choices": [{"delta": {"content": content}, "finish_reason": "stop"}]})
    warnings = [event.text for event in accumulator.finish() if event.type == "warning"]
    assert warnings == ["the text ends inside <think>: the reasoning may contain the answer"]
    assert (accumulator.reply().text, accumulator.reply().reasoning) == ("", "42")
