"""The usage has the tokens of the reasoning, and a budget ends the reasoning."""

import random
from typing import Any, cast

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.dialect import Dialect
from localchat.serving.chat.model import Model
from localchat.serving.chat.runs.start import reasoning_budget
from localchat.serving.core.events import ReasoningDelta
from localchat.serving.core.request import ChatRequest
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.reasoning import ReasoningTracker
from tests.support.dialect_outputs import GOLDEN, TOOLS, parse, parser, text_of
from tests.support.engines import client_of, events_of, output_of
from tests.support.fakes import FakeBackend, echo

# The tokens that a budget forces: a message, then the end tag of the family.
MESSAGE = 901
END = 902


def tracker(dialect: Dialect, max_tokens: int, prompt: str = "", tools: Any = TOOLS) -> ReasoningTracker:
    """A tracker that forces the tokens MESSAGE and END."""
    request = ChatRequest(tools=tools, tool_choice="auto", reasoning_budget=max_tokens, reasoning_budget_message="")
    budget = reasoning_budget(cast(Model, None), request, dialect, dialect.prompt_end(prompt).reasoning)
    assert budget is not None
    return ReasoningTracker(budget, (MESSAGE, END))


def written(pieces: list[bytes], max_tokens: int, name: str = "qwen-coder", **options: Any) -> bytes:
    """The output of a model that samples these tokens, with the tokens that the budget forces."""
    dialect = DIALECTS[name]
    forced = {MESSAGE: b" enough", END: dialect.reasoning.end.encode()}
    made = tracker(dialect, max_tokens, **options)
    text = b""
    for piece in [*pieces, b""]:
        while made.forced_token is not None:
            text += forced[made.forced_token]
            made.feed(forced[made.forced_token])
        text += piece
        made.feed(piece)
    return text


OPEN = {"prompt": "<think>\n"}
CALL = "<function=now></function>"

# For each case: the tokens, with `|` between them, the budget, the options of the tracker, and the output.
BUDGETS = {
    "over the budget": ("<think>|a|b|c|</think>|hi", 2, {}, "<think>ab enough</think>c</think>hi"),
    "ended by a call": (f"<think>|a|b|c|{CALL}|x|y", 4, {}, f"<think>abc{CALL}xy"),
    "ended by the marker of a call": ("<think>|a|<tool_call>|x|b|c", 2, {}, "<think>a<tool_call>xbc"),
    "no tools, no call": (f"<think>|a|{CALL}|x|y", 3, {"tools": ()}, f"<think>a{CALL}x enough</think>y"),
    "budget of zero": ("<think>|a", 0, {}, "<think> enough</think>a"),
    "start in pieces": ("<thi|nk>|a|b", 1, {}, "<think>a enough</think>b"),
    "end in pieces": ("<think>|a|b</th|ink>hi|c|d", 4, {}, "<think>ab</think>hicd"),
    "no reasoning": ("a|b|c", 1, {}, "abc"),
    "tags within text": ("hi |<think>|a|b|c", 1, {}, "hi <think>abc"),
    "once only": ("<think>|a|</think>|b|<think>|c|d", 2, {}, "<think>a</think>b<think>cd"),
    "opened by the prompt": ("a|b|c", 2, OPEN, "ab enough</think>c"),
}


@pytest.mark.parametrize(("text", "max_tokens", "options", "expected"), BUDGETS.values(), ids=BUDGETS)
def test_reasoning_ends_with_its_budget(text: str, max_tokens: int, options: dict[str, Any], expected: str):
    assert written([token.encode() for token in text.split("|")], max_tokens, **options) == expected.encode()


def test_reasoning_in_several_messages_has_one_budget():
    start, end, again = "<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant"
    pieces = [start, "a", "b", end, again + start, "d", "e", end, again + start, "f"]
    expected = f"{start}ab{end}{again}{start}d enough{end}e{end}{again}{start} enough{end}f"
    assert written([piece.encode() for piece in pieces], 4, "harmony") == expected.encode()


def test_reasoning_does_not_end_within_a_character():
    pieces = [b"<think>", b"a", "\u00e9".encode()[:1], "\u00e9".encode()[1:], b"b"]
    assert written(pieces, 2) == "<think>a\u00e9 enough</think>b".encode()


def test_end_is_forced_once_even_if_the_reasoning_stays_open():
    made = tracker(DIALECTS["hermes"], 1, **OPEN)
    for piece in (b"a", b"so", b"so", b"b", b"c"):
        made.feed(piece)
    assert (made.is_open, made.forced_token) == (True, None)


@pytest.mark.parametrize("name", GOLDEN)
def test_count_budget_and_parser_agree_however_the_output_is_cut(name: str):
    """The tokens of the reasoning that the parser reads are counted, and a budget of as many is enough."""
    dice = random.Random(name)
    for text in (GOLDEN[name], GOLDEN[name][: len(GOLDEN[name]) // 9]):
        for prompt in ("", DIALECTS[name].reasoning.start):
            data = text.encode()
            cuts = sorted({0, len(data), *dice.choices(range(len(data)), k=dice.randint(3, 60))})
            pieces = [data[a:b] for a, b in zip(cuts, cuts[1:])]
            output = output_of(pieces, parser(DIALECTS[name], prompt=prompt))
            events_of(output, *range(len(pieces)), end="length")
            n_tokens = output.usage().n_reasoning
            reasoning = text_of(parse([text], DIALECTS[name], prompt=prompt), ReasoningDelta)
            assert (n_tokens > 0) == bool(reasoning)
            assert written(pieces, n_tokens + 1, name, prompt=prompt) == data
            if reasoning and not DIALECTS[name].reasons_anywhere:
                end = DIALECTS[name].reasoning.end.encode()
                assert n_tokens == next((n for n in range(len(pieces)) if end in b"".join(pieces[:n])), len(pieces))
            if reasoning and len(reasoning) > 1:
                assert b"enough" in written([piece.encode() for piece in text], 1, name, prompt=prompt)


@pytest.mark.parametrize(
    ("fields", "defaults", "closing"),
    [
        ({"reasoning_budget": 0}, (None, ""), "\n</think>"),
        ({"reasoning_budget": 0, "reasoning_budget_message": "So."}, (3, "Enough."), "So.\n</think>"),
        ({}, (0, "Enough."), "Enough.\n</think>"),
        ({"reasoning_budget": -1}, (3, ""), None),
        ({}, (None, ""), None),
    ],
    ids=["request", "request and default", "default", "no limit for this request", "no limit"],
)
def test_budget_comes_from_the_request_or_the_server(fields: Any, defaults: Any, closing: str | None):
    with Engine(FakeBackend(echo)) as engine:
        model = Model("m", client_of(engine), reasoning_budget=defaults[0], reasoning_message=defaults[1])
        request = ChatRequest(messages=({"role": "user", "content": "hi"},), **fields)
        budget = reasoning_budget(model, request, DIALECTS["hermes"], "open")
    if closing is None:
        assert budget is None
        return
    assert budget is not None
    assert budget.markers.is_open
    assert "".join(text for text, _ in budget.closing) == closing
    assert [is_markup for _, is_markup in budget.closing] == [False, True]
