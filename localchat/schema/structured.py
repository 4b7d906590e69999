"""Structured output: the `response_format` of a request, and the parsed value of the response. No I/O.

`ExpectedValue` belongs to one call. If a server refuses JSON Schema, the request is repeated in a weaker mode. The
response is validated here in every mode.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from ..errors import DoesNotFit, StatusError
from ..events import Reply
from .schema import build, can_be_strict, json_schema
from .validator import Json, show

_NAME_CHARS = 64  # The longest schema name that OpenAI accepts.

# The modes, in the order in which they are tried. Each is for servers that refuse the one before:
# json_schema: the schema of the value;
# wrapped: the schema of an object that holds the value, for servers that accept objects only (not for object values);
# json_object: JSON without a schema, which a message describes;
# prompt: no response_format; only a message describes the schema.
_MODES = ("json_schema", "wrapped", "json_object", "prompt")

# Matches the error of a server that refuses the response format.
_REFUSAL = re.compile(r"response_format|json_schema|json_object|schema|structured|grammar", re.IGNORECASE)


class ExpectedValue:
    """The requested value of one call. The module `schema` describes which targets there are."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._schema = json_schema(target)
        self._is_object = self._schema.get("type") == "object" or "properties" in self._schema
        # The current mode and those after it.
        self._modes = [mode for mode in _MODES if mode != "wrapped" or not self._is_object]

    @property
    def _mode(self) -> str:
        return self._modes[0]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the reply: one if the mode does not enforce the schema."""
        if self._mode in ("json_schema", "wrapped"):
            return ()
        requested = "with response_format json_object" if self._mode == "json_object" else "in the prompt only"
        return (f"the server refused the JSON Schema: JSON was requested {requested}",)

    def apply(self, body: Json) -> Json:
        """The body of a request with the response format of the current mode."""
        if self._mode in ("json_schema", "wrapped"):
            closed = None if isinstance(self._target, Mapping) else json_schema(self._target, strict=True)
            is_strict = self._mode == "json_schema" and can_be_strict(closed)
            schema = closed if is_strict else self._schema if self._mode == "json_schema" else self._object_schema()
            fields = {"name": _schema_name(self._target), "schema": schema, **({"strict": True} if is_strict else {})}
            return {**body, "response_format": {"type": "json_schema", "json_schema": fields}}
        if "messages" in body:  # The prompt of /completions is continued as it is: it takes no instruction.
            body = {**body, "messages": self._with_instruction(body["messages"])}
        if self._mode == "json_object":
            return {**body, "response_format": {"type": "json_object"}}
        return {name: value for name, value in body.items() if name != "response_format"}

    def weaken(self, error: StatusError) -> bool:
        """Go to the next mode if the server refused the current one. Return False if there is no reason to repeat."""
        if not _REFUSAL.search(error.body) or len(self._modes) == 1:
            return False
        del self._modes[0]
        return True

    def read(self, reply: Reply[Any]) -> Any:
        """The value in the text of a complete reply; None if it calls tools. Raises DoesNotFit, with the reply."""
        if reply.tool_calls:
            return None
        try:
            value = _parse(reply.text)
            if type(value) in (int, float) and reply.finish_reason == "length":
                raise DoesNotFit(f"{value} may be the beginning of a longer number", path="$")
            is_wrapped = self._mode != "json_schema" and not self._is_object
            if is_wrapped and isinstance(value, dict) and set(value) == {"value"}:
                value = value["value"]
            return build(self._target, value)
        except DoesNotFit as error:
            message = f"the answer does not fit: {error}{_hint(reply)}"
            raise DoesNotFit(message, path=error.path, text=reply.text, partial=reply) from error.__cause__

    def _object_schema(self) -> Json:
        """The schema of the value if it is an object, else that of an object {"value": ...} that holds the value."""
        if self._is_object:
            return self._schema
        inner = dict(self._schema)
        definitions: Json = {name: inner.pop(name) for name in ("$defs", "definitions") if name in inner}
        fields = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
        return {**fields, "additionalProperties": False, **definitions}

    def _with_instruction(self, messages: list[Json]) -> list[Json]:
        """The messages with the schema in the system message."""
        text = "Answer with JSON alone, without any other text. It has to be valid by this JSON Schema: " + json.dumps(
            self._object_schema(), ensure_ascii=False
        )
        first = messages[0] if messages else {}
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]


def corrected(prompt: Any, error: DoesNotFit) -> list[Json]:
    """The prompt of a repeated call: with the output that is not valid and a message with the errors."""
    prompt = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    output = [] if error.partial is None else [error.partial.message]
    text = f"{error}. Answer again, with the corrected JSON alone."
    return [*prompt, *output, {"role": "user", "content": text}]


def _parse(text: str) -> Any:
    """Parse JSON, also in a fenced code block, which models often generate without a constraint and may not close."""
    fenced = re.fullmatch(r"\s*```\w*\r?\n(.*?)\r?\n?(?:```)?\s*", text, re.DOTALL)
    try:
        return json.loads(fenced.group(1) if fenced else text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise DoesNotFit(f"not JSON ({error})", path="$") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON, or larger than any float")
    return number


def _hint(reply: Reply[Any]) -> str:
    """A likely reason why the text is not valid; empty if none is known."""
    if reply.refusal:
        return f"; the model declined: {show(reply.refusal)}"
    return "; it was cut at the limit of tokens: raise max_tokens" if reply.finish_reason == "length" else ""


def _schema_name(target: Any) -> str:
    """The name of the schema, which OpenAI requires."""
    title = target.get("title") if isinstance(target, Mapping) else getattr(target, "__name__", None)
    name = re.sub(r"[^\w-]", "_", title if isinstance(title, str) else "", flags=re.ASCII)
    return name[:_NAME_CHARS] or "answer"
