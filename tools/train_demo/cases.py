"""Held-out test cases: a conversation, and a check of the output of the model.

Names, values and phrasings come from the held-out half of the split. The checks compare content (the call, the value,
the numbers), so that other models can be measured with the same cases. Only the checks of small talk, of questions
about localchat and of requests beyond the model compare with the sentences of this model.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .data import chat_skills, localchat_facts, memory, mixture, tool_calls, values
from .data.source import Source
from .dialogue import Dialogue, Message, user
from .everyday import everyday_requests

Judge = Callable[[str], dict[str, bool]]

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """A request, and the check of its output."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    thinking: bool | None
    # Returns whether the output passes, for each column of the table that the case belongs to.
    judge: Judge


def parse_calls(text: str) -> list[tuple[str, Any]]:
    """Names and arguments of the calls in an output; a call that cannot be parsed has the name ""."""
    calls = []
    for body in _CALL.findall(text):
        try:
            call = json.loads(body)
            calls.append((call["name"], call["arguments"]))
        except (ValueError, KeyError, TypeError):
            calls.append(("", None))
    return calls


def without_reasoning(text: str) -> str:
    """The output after its think block."""
    return text.split("</think>")[-1].strip()


def _call_judge(column: str, wanted: list[tuple[str, Any]]) -> Judge:
    def judge(text: str) -> dict[str, bool]:
        calls = parse_calls(text)
        names = [name for name, _ in calls] == [name for name, _ in wanted]
        if len(wanted) == 1:
            return {f"{column}: name": names, f"{column}: arguments": calls == wanted}
        return {column: calls == wanted}

    return judge


def _call_case(column: str, dialogue: Dialogue, thinking: bool | None = None) -> Case:
    at = next(i for i, message in enumerate(dialogue.messages) if message.get("tool_calls"))
    wanted = [(c["function"]["name"], c["function"]["arguments"]) for c in dialogue.messages[at]["tool_calls"]]
    return Case(dialogue.messages[:at], dialogue.tools, thinking, _call_judge(column, wanted))


def _last_case(dialogue: Dialogue, judge: Judge) -> Case:
    messages = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in dialogue.messages[:-1]]
    return Case(messages, dialogue.tools, None, judge)


def _exchange_case(column: str, exchange: chat_skills.Exchange, right: Callable[[str], bool]) -> Case:
    return Case([user(exchange.user)], None, None, lambda text: {column: right(text)})


def _numbers(text: str) -> list[str]:
    return re.findall(r"-?\d+", text)


def _result_case(source: Source) -> Case:
    """A result of named values or a list; the output must mention each value."""
    while True:
        dialogue = tool_calls.with_result(source)
        data, answer = _parsed(dialogue.messages[2]["content"]), dialogue.messages[3]["content"]
        if len(dialogue.messages) == 4 and data and answer.startswith(("The ", "I found")):
            break
    expected = [tool_calls.spoken_result(value) for value in (data.values() if isinstance(data, dict) else data)]
    return _last_case(dialogue, lambda text: {"answer from result": all(value in text for value in expected)})


def _parsed(output: str) -> Any:
    """The object or list that a tool returned; None for anything else."""
    try:
        data = json.loads(output)
    except ValueError:
        return None
    return data if isinstance(data, (dict, list)) else None


def _error_case(source: Source) -> Case:
    dialogue = tool_calls.with_result(source, failed=True)
    problem = dialogue.messages[-1]["content"].split(": ", 1)[1].rstrip(".")
    return _last_case(dialogue, lambda text: {"error told": problem in text and "tool_call" not in text})


def _memory_case(column: str, make: Callable[[Source], memory.Memory], source: Source) -> Case:
    statement, question, value = make(source)
    between = [mixture.chat_exchange(source) for _ in range(2)]
    messages = []
    for exchange in (statement, *between):
        messages += [user(exchange.user), {"role": "assistant", "content": exchange.answer}]
    return Case([*messages, user(question.user)], None, None, lambda text: {column: value in text})


def _reasoning_case(kind: str, source: Source) -> Case:
    """A closed think block with words if reasoning is requested, none if it is turned off."""
    exchange = mixture.chat_exchange(source)
    messages: list[Message] = [user(exchange.user)]
    if kind == "requested":
        messages.insert(0, {"role": "system", "content": source.phrase(mixture.THINK_ORDERS)})
    thinking = {"opened": True, "off": False}.get(kind)

    def judge(text: str) -> dict[str, bool]:
        if kind == "off":
            right = "think>" not in text and bool(text.strip())
        else:
            body = text if kind == "opened" else text[len("<think>") :] if text.startswith("<think>") else ""
            reasoning, _, answer = body.partition("</think>")
            right = bool(reasoning.strip()) and bool(answer.strip()) and "think>" not in answer
        return {f"thinking {kind}": right}

    return Case(messages, None, thinking, judge)


def _value_case(source: Source) -> Case:
    """A value that is hard to copy: several words, punctuation, or another alphabet."""
    makers = (values.email, values.city, values.date, values.foreign, values.sentence, lambda s: str(values.decimal(s)))
    text = source.choice(makers)(source)
    return _exchange_case(
        "repeat hard values", chat_skills.Exchange(f"Repeat after me: {text}", text, ""), lambda answer: answer == text
    )


def _is_honest(text: str) -> dict[str, bool]:
    return {"honest about limits": text.startswith(chat_skills.I_CANNOT)}


def _limit_case(source: Source) -> Case:
    return Case([user(chat_skills.limits(source).user)], None, None, _is_honest)


def _talk_case(source: Source) -> Case:
    exchange = chat_skills.small_talk(source)
    right = next(kind.answers for kind in chat_skills.TALK if exchange.answer in kind.answers)
    return _exchange_case("small talk", exchange, lambda text: text in right)


def _written_cases() -> Iterator[Case]:
    """All held-out lines: small talk, questions about localchat, and requests beyond the model."""
    for kind in chat_skills.TALK:
        for line in kind.phrasings.lines.held_out:
            yield Case([user(line)], None, None, _is_one_of("small talk", kind.answers))
    for topic in localchat_facts.TOPICS:
        for line in topic.phrasings.lines.held_out:
            yield Case([user(line)], None, None, _is_one_of("questions", (topic.answer,)))
    for limit in chat_skills.LIMITS:
        for line in limit.phrasings.lines.held_out:
            yield Case([user(line)], None, None, _is_honest)


def _is_one_of(column: str, answers: Sequence[str]) -> Judge:
    return lambda text: {column: text in answers}


def _simple(column: str, make: Callable[[Source], chat_skills.Exchange]) -> Callable[[Source], Case]:
    def case(source: Source) -> Case:
        exchange = make(source)
        return _exchange_case(column, exchange, lambda text: text == exchange.answer)

    return case


def _count_case(source: Source) -> Case:
    exchange = chat_skills.count(source)
    return _exchange_case("count", exchange, lambda text: _numbers(text) == _numbers(exchange.answer))


def _no_tool_case(source: Source) -> Case:
    dialogue = tool_calls.no_tool_fits(source)
    judge: Judge = lambda text: {"no tool fits": "<tool_call>" not in text and bool(text)}  # noqa: E731
    return Case(dialogue.messages[:1], dialogue.tools, None, judge)


# Cases of trained lines, of which a sample is taken. Of the held-out lines, `_written_cases` takes all.
_WRITTEN_MAKERS = (_talk_case, _simple("questions", localchat_facts.question), _limit_case)
_MAKERS: tuple[Callable[[Source], Case], ...] = (
    lambda source: _call_case("1 tool", tool_calls.one_call(source, 1)),
    lambda source: _call_case("2 tools", tool_calls.one_call(source, 2)),
    lambda source: _call_case("3 tools", tool_calls.one_call(source, 3)),
    lambda source: _call_case("sample tools", tool_calls.one_call(source, 2, sample=True)),
    lambda source: _call_case("2 tools, thinking", tool_calls.one_call(source, 2), True),
    lambda source: _call_case("two calls", tool_calls.two_calls(source)),
    _no_tool_case,
    _result_case,
    _error_case,
    lambda source: _memory_case("recall name", memory.name, source),
    lambda source: _memory_case("recall fact", memory.fact, source),
    _simple("repeat", chat_skills.repeat),
    _value_case,
    _count_case,
    _simple("lists", chat_skills.make_list),
    _simple("small sums", chat_skills.small_sum),
    lambda source: _reasoning_case("opened", source),
    lambda source: _reasoning_case("requested", source),
    lambda source: _reasoning_case("off", source),
)


def everyday_cases() -> Iterator[Case]:
    """The requests that are written by hand, the same in every run."""
    for n_tools in (1, 2, 3):
        column = f"everyday requests, {n_tools} {'tool' if n_tools == 1 else 'tools'}"
        for request in everyday_requests(n_tools):
            yield Case([user(request.text)], request.tools, None, _call_judge(column, [request.call]))


def held_out_cases(n: int, held_out: bool = True) -> Iterator[Case]:
    """`n` cases of every skill. With `held_out` also every held-out line; else `n` trained lines of each kind."""
    if held_out:
        yield from _written_cases()
    for number, make in enumerate(_MAKERS if held_out else (*_WRITTEN_MAKERS, *_MAKERS)):
        source = Source(random.Random(1000 + number), held_out)
        for _ in range(n):
            yield make(source)
