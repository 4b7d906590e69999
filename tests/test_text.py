"""Reasoning in tags at the start of the content, and split surrogate pairs. Text is never lost (C4)."""

from __future__ import annotations

import pytest

from localchat.reply.assembly import Accumulator
from localchat.reply.text import SurrogateJoiner, ThinkSplitter

UNCLOSED = "the reasoning is never closed by </think>: all of the content is text"
STRAY = "the text has a </think> without <think>: is it a case for think_tags='prefilled'?"

# Mode, content, and the reasoning, text and warnings of the reply.
SPLITS: dict[str, tuple[str, str, str, str, list[str]]] = {
    "tag-first": ("auto", "<think>a</think>b", "a", "b", []),
    "blank-first": ("auto", " \n<think>\na\n</think>\n\nb", "a\n", "b", []),
    "no-tag": ("auto", "b", "", "b", []),
    "open-only": ("auto", "<think>\na", "", "<think>\na", [UNCLOSED]),
    "half-a-closing-tag-at-the-end": ("auto", "<think>a</thi", "", "<think>a</thi", [UNCLOSED]),
    "second-tag-is-text": ("auto", "<think>a</think>b<think>c</think>", "a", "b<think>c</think>", []),
    "other-tag": ("auto", "<thought>a</thought>b", "a", "b", []),
    "tags-do-not-mix": ("auto", "<thought>a</think>b", "", "<thought>a</think>b", [UNCLOSED, STRAY]),
    "indented": ("auto", "<think>a</think>\n \n    b\n", "a", "    b\n", []),
    "blanks-after-the-tag": ("auto", "<think>a</think> \n ", "a", "", []),
    "stray-in-code": ("auto", "```\na\n</think>\n```", "", "```\na\n</think>\n```", [STRAY]),
    "stray-first": ("auto", "</think>\nb", "", "</think>\nb", [STRAY]),
    "prefilled": ("prefilled", "a</think>b", "a", "b", []),
    "prefilled-and-opened-again": ("prefilled", "<think>a</think>b", "a", "b", []),
    "prefilled-never-closed": ("prefilled", " a", "", " a", [UNCLOSED]),
    "prefilled-half-a-tag": ("prefilled", "<thi", "", "<thi", [UNCLOSED]),
    "off": ("off", "<think>a</think>b", "", "<think>a</think>b", []),
    "blank-only": ("auto", "  ", "", "  ", []),
}


def split(mode: str, pieces: list[str], finish: str = "stop") -> tuple[str, str, list[str]]:
    accumulator = Accumulator(think_tags=mode)
    for piece in pieces:
        accumulator.add({"choices": [{"delta": {"content": piece}}]})
    accumulator.add({"choices": [{"delta": {}, "finish_reason": finish}]})
    accumulator.finish()
    reply = accumulator.reply()
    return reply.reasoning, reply.text, list(reply.warnings)


@pytest.mark.parametrize(("mode", "text", "reasoning", "content", "warnings"), SPLITS.values(), ids=SPLITS)
def test_c4_think_splitter(mode, text, reasoning, content, warnings):
    """Whole, by characters, and at every cut in two."""
    for pieces in [[text], list(text)] + [[text[:i], text[i:]] for i in range(len(text))]:
        assert split(mode, pieces) == (reasoning, content, warnings), pieces


@pytest.mark.parametrize(("mode", "content"), [("prefilled", "42"), ("auto", "<think>42")])
def test_reasoning_that_is_cut_by_a_limit_stays_reasoning(mode, content):
    warning = "the text ends inside <think>: the reasoning may contain the answer"
    assert split(mode, [content], "length") == ("42", "", [warning])


def test_think_splitter_holds_back_no_more_than_a_tag():
    splitter = ThinkSplitter()
    sent = "<think>" + "a<b" * 50
    out = "".join(text for character in sent for _, text in splitter.feed(character))
    assert len(sent) - len("<think>") - len(out) <= len("</think>") - 1


@pytest.mark.parametrize(
    ("pieces", "texts", "n_warnings"),
    [
        (["a", "é"], ["a", "é", ""], 0),
        (["\ud83d", "\ude00"], ["", "\U0001f600", ""], 0),
        (["x\ud83d", "\ude00y"], ["x", "\U0001f600y", ""], 0),
        (["\ud83d", "", "\ude00"], ["", "", "\U0001f600", ""], 0),
        (["\ud83d\ude00"], ["\U0001f600", ""], 0),
        (["\ud83d", "x"], ["", "\ufffdx", ""], 1),
        (["\ud83d", "\ud83d", "\ude00"], ["", "\ufffd", "\U0001f600", ""], 1),
        (["\ude00"], ["\ufffd", ""], 1),
        (["a\ud83d"], ["a", "\ufffd"], 1),
        (["\ud83d", "\U0001f600"], ["", "\ufffd\U0001f600", ""], 1),
    ],
)
def test_halves_are_joined_and_lone_ones_replaced(pieces: list[str], texts: list[str], n_warnings: int):
    warnings: list[str] = []
    joiner = SurrogateJoiner(warnings.append)
    assert [*map(joiner.feed, pieces), joiner.feed("", ended=True)] == texts
    assert len(warnings) == n_warnings
