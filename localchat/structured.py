"""Answers that hold a value: how a `response_format` asks a server for it, and how it is read and checked. No I/O.

`ExpectedValue` belongs to one call. A server that refuses JSON Schema is asked again in a weaker mode; the answer is
checked here in any mode.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import DoesNotFit, StatusError
from .events import Reply
from .schema import build, is_schema, json_schema
from .validator import TYPE_NAMES, show

if TYPE_CHECKING:
    from .options import CallOptions

Json = dict[str, Any]

_NAME_CHARS = 64

# The ways to ask, each for servers that refuse the one before: a schema; a schema of an object that holds the value,
# where only objects are taken; JSON without a schema, which the prompt then describes; the prompt alone.
_MODES = ("json_schema", "wrapped", "json_object", "prompt")

# What a refusal of the response format mentions.
_REFUSAL = re.compile(r"response_format|json_schema|json_object|schema|structured|grammar", re.IGNORECASE)


class ExpectedValue:
    """The value that an answer is to hold; see schema for what `target` may be."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self._mode = _MODES[0]
        self._schema: Json = {} if is_ready_made(target) else json_schema(target)
        self._is_object = self._schema.get("type") == "object" or "properties" in self._schema

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the reply about the way in which the value was asked for."""
        if self._mode in ("json_schema", "wrapped"):
            return ()
        asked = "JSON without a schema" if self._mode == "json_object" else "JSON in the prompt alone"
        return (f"the server refused the JSON Schema: it was asked for {asked}",)

    def apply(self, body: Json) -> Json:
        """The body of a request that asks for the value."""
        if self._mode == "json_schema":
            return {**body, "response_format": response_format(self.target)}
        if self._mode == "wrapped":
            schema = {"name": _answer_name(self.target), "schema": self._asked_schema()}
            return {**body, "response_format": {"type": "json_schema", "json_schema": schema}}
        if "messages" in body:  # In the text of a completion no instruction has a place.
            body = {**body, "messages": self._described(body["messages"])}
        if self._mode == "json_object":
            return {**body, "response_format": {"type": "json_object"}}
        return {name: value for name, value in body.items() if name != "response_format"}

    def weaken(self, error: StatusError) -> bool:
        """Whether to ask again in the next mode: the server refused the one that was used."""
        if is_ready_made(self.target) or not _REFUSAL.search(error.body):
            return False
        later = _MODES[_MODES.index(self._mode) + 1 :]
        if self._mode == "json_schema" and self._is_object:
            later = later[1:]
        if not later:
            return False
        self._mode = later[0]
        return True

    def read(self, reply: Reply[Any]) -> Any:
        """The value of a complete reply; None if it calls tools.

        Raises:
            DoesNotFit: The text is not JSON, or not what was asked for.
        """
        return read_reply(self.target, reply, wrapped=self._mode != "json_schema" and not self._is_object)

    def _asked_schema(self) -> Json:
        """The schema as the server or the model gets it: that of an object."""
        if self._is_object:
            return self._schema
        inner = dict(self._schema)
        definitions: Json = {name: inner.pop(name) for name in ("$defs", "definitions") if name in inner}
        fields = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
        return {**fields, "additionalProperties": False, **definitions}

    def _described(self, messages: list[Json]) -> list[Json]:
        text = "Answer with JSON alone, without any other text. It has to be valid by this JSON Schema: " + json.dumps(
            self._asked_schema(), ensure_ascii=False
        )
        first = messages[0] if messages else {}
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]


def corrected(given: CallOptions, error: DoesNotFit) -> CallOptions:
    """The options of a call that asks again: with what the model wrote, and what is wrong with it."""
    prompt = [{"role": "user", "content": given.prompt}] if isinstance(given.prompt, str) else list(given.prompt)
    wrote = [] if error.partial is None else [error.partial.message]
    text = f"{error}. Answer again, with the corrected JSON alone."
    return given._replace(prompt=[*prompt, *wrote, {"role": "user", "content": text}])


def response_format(target: Any) -> Json:
    """The field of the request that asks for JSON of this target. A ready-made one is left as it is."""
    if is_ready_made(target):
        return dict(target)
    described: Json = {"name": _answer_name(target), "schema": json_schema(target, strict=not is_schema(target))}
    if not is_schema(target):
        described["strict"] = True
    return {"type": "json_schema", "json_schema": described}


def read_reply(target: Any, reply: Reply[Any], wrapped: bool = False) -> Any:
    """The value that the text of a reply holds; None if it calls tools instead, or the target is ready-made.

    Args:
        wrapped: Whether an object {"value": ...} was asked for, that holds it.

    Raises:
        DoesNotFit: The text is not JSON, or not what was asked for; `text` and `partial` hold it.
    """
    if is_ready_made(target) or reply.tool_calls:
        return None
    try:
        value = _parse(reply.text)
        if type(value) in (int, float) and reply.finish_reason == "length":
            raise DoesNotFit(f"{value} may be the beginning of a longer number", path="$")
        if wrapped and isinstance(value, dict) and set(value) == {"value"}:
            value = value["value"]
        return build(target, value)
    except DoesNotFit as error:
        message = f"the answer does not fit: {error}{_reason(reply)}"
        raise DoesNotFit(message, path=error.path, text=reply.text, partial=reply) from error.__cause__


def _parse(text: str) -> Any:
    """JSON, also from a fenced block: models that were not held to the format like to put it in one."""
    fenced = re.fullmatch(r"\s*```\w*\n(.*?)\n?```\s*", text, re.DOTALL)
    try:
        return json.loads(fenced.group(1) if fenced else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DoesNotFit(f"not JSON ({error})", path="$") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _reason(reply: Reply[Any]) -> str:
    """A likely reason why an answer does not fit; empty if the reply has none."""
    if reply.refusal:
        return f"; the model declined: {show(reply.refusal)}"
    return "; it was cut at the limit of tokens: raise max_tokens" if reply.finish_reason == "length" else ""


def is_ready_made(target: Any) -> bool:
    """Whether this is a response_format already, perhaps one of a server's own: schemas have types of JSON."""
    kind = target.get("type") if is_schema(target) else None
    return isinstance(kind, str) and kind not in TYPE_NAMES.values()


def _answer_name(target: Any) -> str:
    """The name that OpenAI demands for a schema."""
    title = target.get("title") if is_schema(target) else getattr(target, "__name__", None)
    name = re.sub(r"[^\w-]", "_", title if isinstance(title, str) else "", flags=re.ASCII)
    return name[:_NAME_CHARS] or "answer"
