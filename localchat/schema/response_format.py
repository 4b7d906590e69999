"""The value that a call expects: its `response_format` for servers of all kinds, and the value in a reply. No I/O.

If a server refuses the response format, the request is repeated with a weaker one. The response is validated here
whatever the server enforces.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from ..errors import DoesNotFit, StatusError
from ..events import Reply
from ..texts import finite
from .shapes import whole_schema
from .targets import build_shape, target_shape
from .validator import Json, show
from .variants import (
    WRAPPED_NAME,
    can_be_strict,
    constraints_of,
    is_object_schema,
    object_schema,
    strict_schema,
    without_constraints,
)

_NAME_CHARS = 64  # The longest schema name that OpenAI accepts.

# The modes, in the order in which they are tried. Each is for servers that refuse the one before:
# strict: the schema by OpenAI's rules, which its constraint enforces; not for schemas of the program;
# schema: the schema as it is;
# types: the schema without the keywords that only constrain values, some of which many servers do not know;
# wrapped: the schema of an object that holds the value, for servers that accept objects only (not for object values);
# json_object: JSON without a schema, which a message describes;
# prompt: no response_format; only a message describes the schema.
_ALL_MODES = ("strict", "schema", "types", "wrapped", "json_object", "prompt")
_UNWRAPPED_MODES = ("strict", "schema", "types")  # The field has a schema of the value itself.

# Words of errors, in any case. Those about the response format, such as "'json_schema' is not supported".
_FORMAT_WORDS = re.compile(
    r"response_format|json_schema|json_object|schema|structured|grammar|strict|additionalprop", re.IGNORECASE
)
# Those about this schema, such as OpenAI's "Invalid schema for response_format 'a': In context=('properties', 'b'),
# 'default' is not permitted.", or "unsupported keyword", where another schema may be accepted.
_SCHEMA_WORDS = re.compile(
    r"invalid[\w\s]{0,9}schema|in context|\bstrict\b|permitted|keyword|additionalprop", re.IGNORECASE
)
_BEFORE_NAME = r"(?:[\"'`]|\bformat\W{1,3})"
_OBJECT_WORD = re.compile(r"\bobject\b", re.IGNORECASE)


class ExpectedValue:
    """The value that one call expects.

    `learned` are the modes that the server accepted, by the texts of the schemas: several calls may share it.
    """

    def __init__(self, target: Any, learned: MutableMapping[str, str] | None = None) -> None:
        self._shape = target_shape(target)
        self._schema = schema = whole_schema(self._shape)
        self._name = _schema_name(target)
        self._is_object = is_object_schema(schema)
        strict = None if isinstance(target, Mapping) else strict_schema(schema)
        # The schema in the field of each mode that has one.
        self._schemas: dict[str, Mapping[str, Any]] = {"schema": schema}
        if strict is not None and can_be_strict(strict):
            self._schemas["strict"] = strict
        types = without_constraints(schema)
        if types != schema:
            self._schemas["types"] = types
        if not self._is_object:
            self._schemas["wrapped"] = object_schema(schema)
        modes = [mode for mode in _ALL_MODES if mode in self._schemas or mode in ("json_object", "prompt")]
        self._learned = {} if learned is None else learned
        self._key = json.dumps(schema, sort_keys=True)
        # A type and a schema of the same text may have learned different modes: only types can be strict.
        learned_mode = self._learned.get(self._key)
        self._mode = learned_mode if learned_mode in modes else modes[0]
        self._weaker_modes = modes[modes.index(self._mode) + 1 :]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the reply: one if the server does not enforce the schema."""
        if self._mode not in ("json_object", "prompt"):
            return ()
        requested = "with response_format json_object" if self._mode == "json_object" else "in the prompt only"
        return (f"the server refused the JSON Schema: JSON was requested {requested}",)

    def apply(self, body: Json) -> Json:
        """The body of a request with the response format of the current mode."""
        if self._mode in self._schemas:
            is_strict = {"strict": True} if self._mode == "strict" else {}
            fields = {"name": self._name, "schema": self._schemas[self._mode], **is_strict}
            return {**body, "response_format": {"type": "json_schema", "json_schema": fields}}
        if "messages" in body:  # The prompt of /completions is continued as it is: it takes no instruction.
            body = {**body, "messages": self._with_instruction(body["messages"])}
        if self._mode == "json_object":
            return {**body, "response_format": {"type": "json_object"}}
        return {name: value for name, value in body.items() if name != "response_format"}

    def weaken(self, error: StatusError) -> bool:
        """Go to a weaker mode if the server refused the current one. Return False if there is no reason to repeat.

        An error that is not about the format: none. An object is needed: "wrapped". About this schema: the next mode.
        Any other error about the format: the next mode that has no schema of the value itself.
        """
        if not self._weaker_modes or not self._is_about_the_format(error.body):
            return False
        weaker = self._weaker_modes
        if self._mode in _UNWRAPPED_MODES and self._needs_an_object(error.body):
            weaker = weaker[weaker.index("wrapped") :]
        elif self._mode in _UNWRAPPED_MODES and not self._is_about_this_schema(error.body):
            # No other schema would be accepted either.
            weaker = [mode for mode in weaker if mode not in _UNWRAPPED_MODES]
        self._mode, *self._weaker_modes = weaker
        return True

    # What an error of the server says, by words of its text.

    def _is_about_the_format(self, text: str) -> bool:
        """Whether the server refuses the response format, as in "'json_schema' is not supported"."""
        return _FORMAT_WORDS.search(text) is not None or self._names_a_constraint(text)

    def _needs_an_object(self, text: str) -> bool:
        """Whether an object has to wrap the value, as in "schema must be of type 'object', got 'array'"."""
        return not self._is_object and _OBJECT_WORD.search(text) is not None

    def _is_about_this_schema(self, text: str) -> bool:
        """Whether the server may accept a simpler schema, as in "Invalid schema: 'uniqueItems' is not permitted"."""
        return _SCHEMA_WORDS.search(text) is not None or self._names_a_constraint(text)

    def accept(self) -> None:
        """Report that the server accepted the current mode, with which later calls begin."""
        self._learned[self._key] = self._mode

    def read(self, reply: Reply[Any]) -> Any:
        """The value in the text of a complete reply; None if it calls tools. Raises DoesNotFit, with the reply.

        The caller has raised an error for a reply that was cut, in which a number may be the beginning of a longer one.
        """
        if reply.tool_calls:
            return None
        try:
            return self._build(_parse(reply.text))
        except DoesNotFit as error:
            hint = f"; the model declined: {show(reply.refusal)}" if reply.refusal else ""
            message = f"the answer does not fit: {error}{hint}"
            raise DoesNotFit(message, path=error.path, text=reply.text, partial=reply) from error.__cause__

    def _build(self, value: Any) -> Any:
        """The value of the target. Raises DoesNotFit if the JSON is not valid."""
        is_wrapped = isinstance(value, dict) and value.keys() == {WRAPPED_NAME}
        if self._is_object or self._mode in _UNWRAPPED_MODES or not is_wrapped:
            return build_shape(self._shape, value)
        try:
            return build_shape(self._shape, value[WRAPPED_NAME])
        except DoesNotFit:
            # Without a constraint, the model may have generated the value without a wrapper, and a schema such as
            # `anyOf` may allow an object with a property of this name.
            with contextlib.suppress(DoesNotFit):
                return build_shape(self._shape, value)
            raise

    def _names_a_constraint(self, text: str) -> bool:
        """Whether the text of an error names a keyword or a format of the schema that the mode "types" leaves out.

        Many are words of English, such as `maximum`: these count in quotation marks, after the word "format" as in
        "unknown format: path", or if the text is about a schema.
        """
        is_about_a_schema = _SCHEMA_WORDS.search(text) is not None
        for name in constraints_of(self._schema):
            before = _BEFORE_NAME if name.islower() and not is_about_a_schema else r"\b"
            if re.search(rf"{before}{re.escape(name)}\b", text):
                return True
        return False

    def _with_instruction(self, messages: list[Json]) -> list[Json]:
        """The messages with the schema in the system message."""
        schema = json.dumps(object_schema(self._schema), ensure_ascii=False)
        text = f"Answer with JSON alone, without any other text. It has to be valid by this JSON Schema: {schema}"
        first = messages[0] if messages else {}
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]


_ON_THE_LINE = r"(?i:json)?[ \t]*(?=[{\[])"  # The beginning of JSON on the line of the fence.


def _parse(text: str) -> Any:
    """Parse JSON. Without a constraint, models often generate it in a fenced code block, which they may not close."""
    fenced = re.fullmatch(rf"\s*```(?:\w*\r?\n|{_ON_THE_LINE})(.*?)\r?\n?(?:```)?\s*", text, re.DOTALL)
    blocks = [fenced[1]] if fenced else re.findall(r"^```\w*\r?\n(.*?)\r?\n```", text, re.DOTALL | re.MULTILINE)
    try:
        # Other text around the only block introduces it.
        return json.loads(blocks[0] if len(blocks) == 1 else text, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise DoesNotFit(f"not JSON ({error})", path="$") from error


def _schema_name(target: Any) -> str:
    """The name of the schema, which OpenAI requires."""
    title = target.get("title") if isinstance(target, Mapping) else getattr(target, "__name__", None)
    name = re.sub(r"[^\w-]", "_", title if isinstance(title, str) else "", flags=re.ASCII)
    return name[:_NAME_CHARS] or "answer"
