"""Constraints on the real engine: the built-in model, sampled at random, generates only what they allow.

LOCALCHAT_ANSWERS sets the number of outputs for the main constraints. The other constraints get half as many.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.exchanges import ask
from tests.support.json_validator import is_valid

N_OUTPUTS = int(os.environ.get("LOCALCHAT_ANSWERS", "10"))
# The number of choices of a request. Each choice has its own seed.
N_CHOICES = 5
WILD: dict[str, Any] = {"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0}

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["good", "so-so", 'the "worst"', None]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,6}$"}, "maxItems": 3},
        "at": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
    "greet": PERSON,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]


def post(port: int, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    """The body, or the events of the stream."""
    body = {"messages": [{"role": "user", "content": "Call a tool: what is the weather in Rome?"}], **fields}
    status, found = ask(port, path, body)
    assert status == 200, found
    return found


def outputs_of(port: int, n_outputs: int, **fields: Any) -> Iterator[dict[str, Any]]:
    """`n_outputs` outputs, from requests that are alternately streamed or not."""
    for seed in range(0, n_outputs, N_CHOICES):
        is_streamed = seed // N_CHOICES % 2 == 1
        given = {**WILD, "n": min(N_CHOICES, n_outputs - seed), "seed": seed, "stream": is_streamed, **fields}
        found = post(port, **given)
        outputs = [{"content": "", "calls": [], "end": None} for _ in range(given["n"])]
        for choice in (choice for body in (found[:-1] if is_streamed else [found]) for choice in body["choices"]):
            output, part = outputs[choice["index"]], choice["delta" if is_streamed else "message"]
            output["content"] += part.get("content") or ""
            output["end"] = choice["finish_reason"] or output["end"]
            for function in (call["function"] for call in part.get("tool_calls", [])):
                if "name" in function:
                    output["calls"].append({"name": function["name"], "arguments": ""})
                output["calls"][-1]["arguments"] += function.get("arguments", "")
        yield from outputs


def are_valid(calls: list[Any]) -> bool:
    return all(call["name"] in SCHEMAS and is_valid(call["arguments"], SCHEMAS[call["name"]]) for call in calls)


Check = Callable[[dict[str, Any]], bool]


def is_calls(output: dict[str, Any]) -> bool:
    has_calls = output["end"] == "tool_calls" and output["calls"] and not output["content"]
    return bool(has_calls) and are_valid(output["calls"])


def is_text(test: Callable[[str], Any]) -> Check:
    return lambda output: output["end"] == "stop" and not output["calls"] and bool(test(output["content"]))


def is_cut_or(check: Check) -> Check:
    """The check of an output that may be cut, since the constraint does not limit its length."""
    return lambda output: output["end"] == "length" or check(output)


FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
IS_PERSON = is_text(lambda text: is_valid(text, PERSON))
CHOICES = ["yes", "no", 'a "third" way']
LIST, LISTED = 'root ::= item ("," item)*\nitem ::= [a-f]{2,4}', re.compile(r"[a-f]{2,4}(,[a-f]{2,4})*")

# The fields of the request, and the check of each output.
CONSTRAINTS: dict[str, tuple[dict[str, Any], Check]] = {
    "required": ({"tools": TOOLS, "tool_choice": "required"}, is_calls),
    "named": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "greet"}}},
        lambda output: is_calls(output) and {call["name"] for call in output["calls"]} == {"greet"},
    ),
    "json_schema": ({"response_format": FORMAT}, IS_PERSON),
    "json_object": (
        {"response_format": {"type": "json_object"}, "max_tokens": 100},
        is_cut_or(is_text(lambda text: isinstance(json.loads(text), dict))),
    ),
    "regex": ({"regex": r"\d{3}-[a-c]{1,4}"}, is_text(re.compile(r"\d{3}-[a-c]{1,4}").fullmatch)),
    "choice": ({"choice": CHOICES}, is_text(CHOICES.__contains__)),
    "grammar": ({"grammar": LIST, "max_tokens": 100}, is_cut_or(is_text(LISTED.fullmatch))),
    "schema or call": ({"tools": TOOLS, "response_format": FORMAT}, lambda one: is_calls(one) or IS_PERSON(one)),
    "auto": (
        {"tools": TOOLS, "max_tokens": 200, "temperature": 1},
        is_cut_or(lambda output: are_valid(output["calls"]) and "<tool_call>" not in output["content"]),
    ),
}  # fmt: skip
MAIN = ("required", "named", "json_schema")


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_output_follows_the_constraint_at_any_temperature(port: int, name: str):
    fields, check = CONSTRAINTS[name]
    n_outputs = N_OUTPUTS if name in MAIN else N_OUTPUTS // 2
    outputs = list(outputs_of(port, n_outputs, enable_thinking=False, **fields))
    assert len(outputs) == n_outputs
    assert [output for output in outputs if not check(output)] == []


@pytest.mark.parametrize(
    ("name", "enable_thinking"),
    [("required", True), ("json_schema", None), ("auto", True), ("auto", None)],
    ids=["required, open", "json_schema, possible", "auto, open", "auto, possible"],
)
def test_output_follows_the_constraint_after_reasoning(port: int, name: str, enable_thinking: Any):
    """The length of the reasoning is not limited, so the output may be cut."""
    fields, check = CONSTRAINTS[name]
    given = {**fields, "enable_thinking": enable_thinking, "max_tokens": 400, "temperature": 0.7}
    outputs = list(outputs_of(port, N_OUTPUTS // 2, **given))
    assert [output for output in outputs if not is_cut_or(check)(output)] == []
    assert any(output["end"] != "length" for output in outputs)


# Templates whose prompts open reasoning, each with what ends it.
OPENING = {
    "tags": (None, "\n</think>"),
    "channels": (
        "{{ tools }}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
        "<|start|>assistant<|channel|>analysis<|message|>",
        "<|end|>",
    ),
}
BUDGET = 7
MARKER_TEXTS = ["a<|end|>b<|start|>", "<|im_start|><|im_end|>", " </think> <tool_call>"]


@pytest.mark.parametrize("text", MARKER_TEXTS)
@pytest.mark.parametrize("template", OPENING)
def test_constrained_text_may_contain_markers(port: int, template: str, text: str):
    """The text may contain markers of the family and the text of control tokens."""
    thinking = {"enable_thinking": True, "chat_template": OPENING[template][0], "reasoning_budget_tokens": BUDGET}
    outputs = outputs_of(port, 4, choice=[text], **thinking)
    assert [output["content"] for output in outputs] == [text] * 4


@pytest.mark.parametrize("budget", [0, 1, BUDGET])
@pytest.mark.parametrize("template", OPENING)
def test_reasoning_ends_with_its_budget(port: int, template: str, budget: int):
    """The reasoning tokens are those of the budget, the budget message and the end tag."""
    source, end = OPENING[template]
    message = " So be it."
    fields = {"enable_thinking": True, "chat_template": source, "reasoning_budget_message": message, **WILD}
    n_closing = n_tokens(port, message, parse_special=False) + n_tokens(port, end)
    n_reached = 0
    for seed in range(4):
        given = {**fields, "seed": seed, "thinking_budget_tokens": budget, "max_tokens": 40}
        body = post(port, **given, ignore_eos=True)
        reasoning = body["choices"][0]["message"].get("reasoning_content") or ""
        n_reasoning = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
        if reasoning.endswith(message.strip()):
            n_reached += 1
            # Reasoning does not end within a character. A character outside ASCII may have up to four tokens.
            assert 0 <= n_reasoning - budget - n_closing <= (0 if reasoning.isascii() else 3)
            assert body["usage"]["completion_tokens"] == 40
        else:
            assert n_reasoning < budget + n_tokens(port, end)
    assert n_reached >= 2


def n_tokens(port: int, text: str, **fields: Any) -> int:
    return len(post(port, "/tokenize", content=text, add_special=False, **fields)["tokens"])


def test_completion_follows_the_constraint(port: int):
    body = post(port, "/v1/completions", prompt="Rome is", choice=["old", "new"], n=N_CHOICES, **WILD)
    assert {choice["text"] for choice in body["choices"]} <= {"old", "new"}
