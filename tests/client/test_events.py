"""Events, values and errors: comparison, immutability, repr, pickling, JSON."""

import copy
import dataclasses
import json
import pickle
import typing
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from localchat import Timeout, ToolResult, errors, events
from localchat.errors import LocalChatError, StatusError
from localchat.events import Choice, Reply, StreamEvent, ToolCall, Usage

CALL = ToolCall("call_1", "f", {"a": 1}, '{"a": 1}')
EXAMPLES = {
    "message_start": events.MessageStart("id", "model"),
    "content_delta": events.ContentDelta("a"),
    "reasoning_delta": events.ReasoningDelta("a"),
    "refusal_delta": events.RefusalDelta("a"),
    "audio_delta": events.AudioDelta(b"\0", "a"),
    "tool_call_delta": events.ToolCallDelta(0, "call_1", "f", "{"),
    "tool_call": CALL,
    "logprobs": events.Logprobs(({"token": "a"},)),
    "annotations": events.Annotations(({"type": "url_citation"},)),
    "usage": events.UsageEvent(Usage(1, 2, 3)),
    "message_stop": events.MessageStop("stop", "stop"),
    "warning": events.WarningEvent("odd"),
    "error": events.ErrorEvent("bad"),
}


def names_in_patterns(value: Any) -> list[str]:
    """The fields in the order in which `case` has them: Python 3.9 has no `match`, and no attribute for it."""
    default = [field.name for field in dataclasses.fields(value)]
    return list(getattr(value, "__match_args__", default) or default)


@pytest.mark.parametrize(("name", "event"), EXAMPLES.items(), ids=EXAMPLES)
def test_event_is_an_immutable_value_that_compares_without_raw(name, event):
    assert (event.type, event.choice_index, event.raw) == (name, 0, None)
    with pytest.raises(AttributeError, match="choice_index"):
        event.choice_index = 1
    with pytest.raises(AttributeError, match="choice_index"):
        del event.choice_index
    other = dataclasses.replace(event, raw={"a": 1})
    assert (other, other.raw, event.raw) == (event, {"a": 1}, None)
    assert dataclasses.replace(event, choice_index=1) != event
    assert ", raw=" not in repr(event)
    assert pickle.loads(pickle.dumps(event)) == copy.deepcopy(event) == event
    assert tuple(vars(event)) == tuple(names_in_patterns(event))
    assert {type(example) for example in EXAMPLES.values()} == set(typing.get_args(StreamEvent))
    assert len({event, other, *EXAMPLES.values()}) == len(EXAMPLES)
    assert json.dumps(other.as_dict()).startswith(f'{{"type": "{name}"')


VALUES: dict[str, Any] = {
    **EXAMPLES,
    "tool_result": ToolResult(CALL, "a", value={1: print}),
    "usage value": Usage(1, 2, 3, raw={"a": 1}),
    "choice": Choice(text="a", tool_calls=(CALL,), audio=events.Audio("1", b"\0", "a")),
    "reply": Reply((Choice(text="a"),), parsed=[1], headers={"a": "b"}, error=LocalChatError("x")),
    "timeout": Timeout(3, connect=1, total=None),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_value_is_a_dataclass_that_can_be_copied_changed_and_pickled(value):
    names = [field.name for field in dataclasses.fields(value)]
    for same in (copy.copy(value), copy.deepcopy(value), dataclasses.replace(value), type(value)(**vars(value))):
        assert (type(same), vars(same).keys()) == (type(value), vars(value).keys())
        assert {name for name in names if str(getattr(same, name)) != str(getattr(value, name))} == set()
    assert pickle.loads(pickle.dumps(dataclasses.replace(value))).__class__ is type(value)
    assert list(dataclasses.asdict(value)) == names == list(vars(value)) == names_in_patterns(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, names[0], None)


def test_result_of_a_call_compares_without_the_value():
    assert hash(CALL) != hash(dataclasses.replace(CALL, id="2"))
    assert ToolResult(CALL, "a", value=1) == ToolResult(CALL, "a", value=2)


@pytest.mark.parametrize(
    ("values", "named"), [((), {}), (("a",), {"other": 1}), (("a",), {"delta": "b"}), (("a", 0, None, 1), {})]
)
def test_wrong_arguments_are_refused_like_those_of_a_function(values, named):
    for kind in (events.ContentDelta, events.ReasoningDelta):  # One has an __init__ of its own.
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_subclass_has_the_fields_of_its_base():
    class Other(events.ReasoningDelta):
        pass

    assert (Other("a").delta, Other("a").choice_index) == ("a", 0)
    assert Other("a") != events.ReasoningDelta("a")


def test_reply_is_its_first_choice():
    choice = Choice(0, "text", "reasoning", "no", (CALL,), "tool_calls", "tool_use")
    reply = Reply((choice, Choice(1, "other")))
    assert str(reply) == reply.text == "text"
    assert (reply.reasoning, reply.refusal, reply.tool_calls) == ("reasoning", "no", (CALL,))
    assert (reply.finish_reason, reply.finish_reason_raw) == ("tool_calls", "tool_use")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(text="hi"), {"content": "hi"}),
        (Choice(text="hi", reasoning="Hm.", reasoning_field=None), {"content": "hi"}),
        (Choice(text="hi", annotations=({"type": "url_citation"},)), {"content": "hi"}),
        (Choice(refusal="no"), {"content": "", "refusal": "no"}),
    ],
)
def test_reply_as_a_message(choice: Choice, message: Any):
    assert Reply((choice,)).message == {"role": "assistant", **message}


@dataclass
class Day:
    at: date


def test_values_as_json_have_neither_raw_fields_nor_headers():
    call = dataclasses.replace(CALL, extra={"signature": "s"}, raw={"x": 1})
    reply = Reply((Choice(text="hi", tool_calls=(call,)),), headers={"Set-Cookie": "x"}, raw={}, parsed=Day(date.max))
    shown = reply.as_dict()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["parsed"] == {"at": "9999-12-31"}
    assert not {"raw", "headers"} & {*shown, *shown["choices"][0]["tool_calls"][0]}
    result = ToolResult(CALL, "text", value=object()).as_dict()
    assert (result["type"], result["call"]["arguments"], "value" in result) == ("tool_result", {"a": 1}, False)


ERRORS = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, Exception)]
OF_PYTHON: Any = {errors.TimedOut: TimeoutError, errors.ConnectError: ConnectionError}


@pytest.mark.parametrize("error_class", ERRORS, ids=lambda error_class: error_class.__name__)
def test_error_is_one_of_the_package_and_survives_pickle(error_class):
    assert issubclass(error_class, LocalChatError)
    error = error_class("what to do")
    vars(error).update(partial=Reply((Choice(0, "so far"),)), kind="idle", status=404)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == ("what to do", vars(error))
    assert issubclass(error_class, OF_PYTHON.get(error_class, Exception))


def test_status_has_its_class():
    names = {400: "BadRequest", 401: "Authentication", 403: "PermissionDenied", 404: "NotFound", 409: "Conflict"}
    names |= {422: "Unprocessable", 429: "RateLimit", 500: "Server", 503: "Server", 599: "Server"}
    names |= {302: "Status", 418: "Status"}
    assert {status: StatusError.class_for(status).__name__.removesuffix("Error") for status in names} == names
