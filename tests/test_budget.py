"""How long a model may think: its tokens one by one, at every cut of the marks. Here a token is a piece of text."""

from __future__ import annotations

from typing import Any

import pytest

from localchat.dialects import FORMATS
from localchat.engine import ThinkingLimit
from localchat.engine.budget import ThinkingBudget
from localchat.generation.reasoning_limit import ThinkingDefaults, thinking_limit
from localchat.protocol.chat import ChatRequest

# What is forced, as tokens that no piece has.
CLOSING = (901, 902)
CLOSED = {901: b" enough", 902: b"</think>"}


def said(pieces: list[bytes], max_tokens: int, **members: object) -> bytes:
    """What comes of an answer of which these are the pieces, each a token."""
    limit = ThinkingLimit(max_tokens, CLOSING, "<think>", ("</think>", "<call>"), **members)  # type: ignore[arg-type]
    budget = ThinkingBudget(limit)
    text = b""
    for number, piece in enumerate([*pieces, b""]):
        while budget.forced is not None:
            text += CLOSED[budget.forced]
            budget.note(budget.forced, CLOSED[budget.forced])
        text += piece
        budget.note(number, piece)
    return text


def words(text: str) -> list[bytes]:
    """A token for each word and each mark."""
    return [part.encode() for part in text.replace("|", "\0|\0").split("\0") if part != "|"]


@pytest.mark.parametrize(
    ("text", "max_tokens", "expected"),
    [
        ("<think>|a|b|c|</think>|hi", 2, "<think>ab enough</think>c</think>hi"),
        ("<think>|a|b|c|</think>|hi", 3, "<think>abc enough</think></think>hi"),
        ("<think>|a|b|c|</think>|hi", 4, "<think>abc</think>hi"),
        ("<think>|a|b|c|<call>|x|y", 4, "<think>abc<call>xy"),
        ("<think>|a", 0, "<think> enough</think>a"),
        ("<thi|nk>|a|b", 1, "<think>a enough</think>b"),
        (" |\n|<think>|a|b", 1, " \n<think>a enough</think>b"),
        ("<think>x|a|b", 1, "<think>xa enough</think>b"),
        ("<think>|a|b</th|ink>hi|c|d", 4, "<think>ab</think>hicd"),
        ("a|b|c", 1, "abc"),
        ("hi |<think>|a|b|c", 1, "hi <think>abc"),
        ("<thing>|a|<think>|b|c", 1, "<thing>a<think>bc"),
        ("<think>|a|</think>|b|<think>|c|d|e", 2, "<think>a</think>b<think>cde"),
    ],
    ids=[
        "too long",
        "as long as it may be, with the end to come",
        "in time",
        "ended by a call",
        "none at all",
        "start in pieces",
        "white space first",
        "start with more",
        "end in pieces",
        "no thinking",
        "marks within text",
        "another mark",
        "once only",
    ],
)
def test_thinking_ends_with_its_budget(text: str, max_tokens: int, expected: str):
    assert said(words(text), max_tokens) == expected.encode()


TOOLS = ({"type": "function", "function": {"name": "now"}},)


@pytest.mark.parametrize(
    ("name", "members", "ends"),
    [
        ("qwen-coder", {"tools": TOOLS, "tool_choice": "auto"}, ("</think>", "<tool_call>", "<function=")),
        ("qwen-coder", {"tools": TOOLS, "tool_choice": "none"}, ("</think>",)),
        ("qwen-coder", {}, ("</think>",)),
        ("muse", {}, ("<|eom|>", "<|eot|>", "<|start|>")),
    ],
    ids=["calls", "calls that are forbidden", "no tools", "messages"],
)
def test_calls_end_thinking_only_where_they_can_be_made(name: str, members: dict[str, Any], ends: tuple[str, ...]):
    request = ChatRequest(messages=({"role": "user", "content": "hello"},), reasoning_budget=8, **members)
    limit = thinking_limit(request, FORMATS[name], "", lambda text, parse_special: [], ThinkingDefaults())
    assert limit is not None
    assert limit.ends == ends


@pytest.mark.parametrize(
    ("text", "max_tokens", "expected"),
    [
        ("a|b|c", 2, "ab enough</think>c"),
        ("a|</think>|b|c", 2, "a</think>bc"),
        ("a|b", 0, " enough</think>ab"),
        ("a|b|<think>|c", 1, "a enough</think>b<think>c"),
    ],
)
def test_thinking_that_the_prompt_opened_ends_too(text: str, max_tokens: int, expected: str):
    assert said(words(text), max_tokens, is_open=True) == expected.encode()


def test_thinking_in_several_parts_has_one_budget():
    text = "hi|<think>|a|b|</think>|c|<think>|d|e|<think>|f|</think>|g"
    expected = "hi<think>ab</think>c<think>d enough</think>e<think> enough</think>f</think>g"
    assert said(words(text), 4, may_repeat=True) == expected.encode()


def test_thinking_does_not_end_within_a_character():
    pieces = [b"<think>", b"a", "\u00e9".encode()[:1], "\u00e9".encode()[1:], b"b"]
    assert said(pieces, 2) == "<think>a\u00e9 enough</think>b".encode()


def test_nothing_is_forced_that_was_not_asked_for():
    limit = ThinkingLimit(1, (), "<think>", ("</think>",), is_open=True)
    budget = ThinkingBudget(limit)
    budget.note(1, b"a")
    assert budget.forced is None


def test_another_token_than_the_forced_one_is_a_mistake():
    budget = ThinkingBudget(ThinkingLimit(0, CLOSING, "<think>", ("</think>",), is_open=True))
    with pytest.raises(AssertionError):
        budget.note(1, b"a")
