"""Events, values and errors: comparison, immutability, repr, pickling."""

from __future__ import annotations

import dataclasses
import pickle
import typing
from typing import Any

import pytest

from localchat import errors, events
from localchat.errors import LocalChatError, StatusError
from localchat.events import Choice, Reply, StreamEvent, ToolCall, Usage

CALL = ToolCall("call_1", "f", {"a": 1}, '{"a": 1}')
EXAMPLES = {
    "message_start": events.MessageStart("id", "model"),
    "content_delta": events.ContentDelta("a"),
    "reasoning_delta": events.ReasoningDelta("a"),
    "refusal_delta": events.RefusalDelta("a"),
    "tool_call_delta": events.ToolCallDelta(0, "call_1", "f", "{"),
    "tool_call": CALL,
    "logprobs": events.Logprobs(({"token": "a"},)),
    "usage": events.UsageEvent(Usage(1, 2, 3)),
    "message_stop": events.MessageStop("stop", "stop"),
    "warning": events.WarningEvent("odd"),
    "error": events.ErrorEvent("bad"),
}


def test_there_is_an_example_of_every_event():
    assert {type(example) for example in EXAMPLES.values()} == set(typing.get_args(StreamEvent))


@pytest.mark.parametrize(("name", "event"), EXAMPLES.items(), ids=EXAMPLES)
def test_event_is_a_frozen_value_that_compares_without_raw(name, event):
    assert (event.type, event.choice_index, event.raw) == (name, 0, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.choice_index = 1
    assert dataclasses.replace(event, raw={"a": 1}) == event
    assert ", raw=" not in repr(event)
    assert pickle.loads(pickle.dumps(event)) == event


@pytest.mark.parametrize("event", EXAMPLES.values(), ids=EXAMPLES)
def test_event_is_a_dataclass(event):
    """The functions of dataclasses accept it, although the module is not imported to make it."""
    fields = {field.name: field for field in dataclasses.fields(event)}
    assert dataclasses.is_dataclass(type(event))
    assert tuple(fields) == type(event).__match_args__ == tuple(vars(event))
    assert not fields["raw"].compare
    assert list(dataclasses.asdict(event)) == list(fields)
    if event.type not in ("tool_call", "logprobs"):  # These contain a dict.
        assert hash(dataclasses.replace(event, raw=1)) == hash(event)


@pytest.mark.parametrize("kind", [events.ContentDelta, events.ReasoningDelta], ids=["by hand", "general"])
def test_wrong_arguments_are_refused_like_those_of_a_function(kind):
    with pytest.raises(TypeError, match=r"missing.*'?delta"):
        kind()
    with pytest.raises(TypeError, match=r"(unexpected|wrong).*other"):
        kind("a", other=1)
    with pytest.raises(TypeError, match=r"(multiple values|too many)"):
        kind("a", delta="b")
    with pytest.raises(TypeError, match=r"(positional arguments|too many)"):
        kind("a", 0, None, 1)


def test_error_refuses_unknown_attributes():
    assert errors.TimedOut("x", kind="idle").kind == "idle"
    with pytest.raises(TypeError, match="TimedOut has no status"):
        errors.TimedOut("x", status=1)


def test_subclasses_work_plain_and_as_dataclasses():
    class Plain(events.ContentDelta):
        def __init__(self, delta: str) -> None:
            super().__init__(delta, 1)

    @dataclasses.dataclass(frozen=True)
    class More(events.ContentDelta):
        more: int = 0

    assert (Plain("a").delta, Plain("a").choice_index) == ("a", 1)
    assert (More("a", more=2).more, More("a").delta) == (2, "a")
    assert events.ContentDelta("a") == events.ContentDelta("a", raw=1)
    assert events.ContentDelta("a") != Plain("a")


def test_mutable_default_is_not_shared():
    assert Reply().headers is not Reply().headers
    assert ToolCall("1", "f", {}, "{}").extra is not ToolCall("1", "f", {}, "{}").extra


def test_tool_call_status_k18():
    assert CALL.status == "succeeded"
    assert dataclasses.replace(CALL, arguments=None, error="not JSON").status == "failed"


def test_reply_is_its_first_choice():
    choice = Choice(0, "text", "reasoning", "no", (CALL,), "tool_calls", "tool_use")
    reply = Reply((choice, Choice(1, "other")))
    assert str(reply) == reply.text == "text"
    assert (reply.reasoning, reply.refusal, reply.tool_calls) == ("reasoning", "no", (CALL,))
    assert (reply.finish_reason, reply.finish_reason_raw) == ("tool_calls", "tool_use")


def test_empty_reply_is_empty_text():
    assert (str(Reply()), Reply().finish_reason, Reply().tool_calls) == ("", None, ())


def error_classes() -> list[type[LocalChatError]]:
    named = [item for name, item in vars(errors).items() if not name.startswith("_")]
    return [item for item in named if isinstance(item, type) and issubclass(item, Exception)]


@pytest.mark.parametrize("error_class", error_classes(), ids=lambda error_class: error_class.__name__)
def test_error_is_in_the_tree_of_the_docstring_and_survives_pickle(error_class):
    assert issubclass(error_class, LocalChatError)
    assert errors.__doc__ is not None
    assert error_class.__name__ in errors.__doc__
    error = error_class("what to do")
    vars(error).update(partial=Reply((Choice(0, "so far"),)), kind="idle", status=404)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == ("what to do", vars(error))


def test_status_has_its_class():
    names = {400: "BadRequest", 401: "Authentication", 403: "PermissionDenied", 404: "NotFound", 409: "Conflict"}
    names |= {422: "Unprocessable", 429: "RateLimit", 500: "Server", 503: "Server", 599: "Server"}
    names |= {302: "Status", 418: "Status"}
    assert {status: StatusError.class_for(status).__name__.removesuffix("Error") for status in names} == names


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice(text="hi"), {"content": "hi"}),
        (Choice(text="hi", reasoning="Hm.", reasoning_field=None), {"content": "hi"}),
        (Choice(reasoning="Hm.", reasoning_field="reasoning_details"), {"content": "", "reasoning": "Hm."}),
        (Choice(refusal="no"), {"content": "", "refusal": "no"}),
    ],
)
def test_reply_as_a_message(choice: Choice, message: Any):
    assert Reply((choice,)).message == {"role": "assistant", **message}
