"""The value that a call expects: its `response_format` for servers of all kinds, and the value in a reply. No I/O.

If a server refuses the response format, the request is repeated with a weaker one. The response is validated here
whatever the server enforces.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from ..errors import DoesNotFit, StatusError
from ..events import Reply
from .shapes import document
from .targets import build_shape, target_shape
from .validator import Json, show
from .variants import can_be_strict, constraints_of, strict_schema, without_constraints

_NAME_CHARS = 64  # The longest schema name that OpenAI accepts.

# The modes, in the order in which they are tried. Each is for servers that refuse the one before:
# strict: the schema by OpenAI's rules, which its constraint enforces; not for schemas of the program;
# schema: the schema as it is;
# types: the schema without the keywords that only constrain values, some of which many servers do not know;
# wrapped: the schema of an object that holds the value, for servers that accept objects only (not for object values);
# json_object: JSON without a schema, which a message describes;
# prompt: no response_format; only a message describes the schema.
_SCHEMA_MODES = ("strict", "schema", "types")
_ALL_MODES = (*_SCHEMA_MODES, "wrapped", "json_object", "prompt")

# Matches the error of a server that refuses the response format.
_REFUSAL = re.compile(r"response_format|json_schema|json_object|schema|structured|grammar|strict|additionalprop", re.I)
# Matches the error of a server that knows JSON Schema and refuses this schema.
_REFUSED_SCHEMA = re.compile(r"invalid[\w\s]{0,9}schema|in context|\bstrict\b|permitted|keyword|additionalprop", re.I)
_REFUSED_ROOT = re.compile(r"\bobject\b", re.I)


class ExpectedValue:
    """The value that one call expects.

    `learned` are the modes that the server accepted, by the texts of the schemas: several calls may share it.
    """

    def __init__(self, target: Any, learned: MutableMapping[str, str] | None = None) -> None:
        self._shape = target_shape(target)
        self._schema = schema = document(self._shape)
        self._name = _schema_name(target)
        self._is_object = schema.get("type") == "object" or "properties" in schema
        self._strict = None if isinstance(target, Mapping) else strict_schema(schema)
        self._types = without_constraints(schema)
        useless = {
            "strict": not can_be_strict(self._strict),
            "types": self._types == schema,
            "wrapped": self._is_object,
        }
        modes = [mode for mode in _ALL_MODES if not useless.get(mode, False)]
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
        schemas = {"strict": self._strict, "schema": self._schema, "types": self._types, "wrapped": self._wrapped()}
        if self._mode in schemas:
            is_strict = {"strict": True} if self._mode == "strict" else {}
            fields = {"name": self._name, "schema": schemas[self._mode], **is_strict}
            return {**body, "response_format": {"type": "json_schema", "json_schema": fields}}
        if "messages" in body:  # The prompt of /completions is continued as it is: it takes no instruction.
            body = {**body, "messages": self._with_instruction(body["messages"])}
        if self._mode == "json_object":
            return {**body, "response_format": {"type": "json_object"}}
        return {name: value for name, value in body.items() if name != "response_format"}

    def weaken(self, error: StatusError) -> bool:
        """Go to the next mode if the server refused the current one. Return False if there is no reason to repeat."""
        if not self._weaker_modes or not (_REFUSAL.search(error.body) or self._names_a_constraint(error.body)):
            return False
        weaker = self._weaker_modes
        if self._mode in _SCHEMA_MODES:
            # "schema must be of 'type: \"object\"', got 'type: \"array\"'": an object has to wrap the value.
            if not self._is_object and _REFUSED_ROOT.search(error.body):
                weaker = weaker[weaker.index("wrapped") :]
            # "response_format.type 'json_schema' is not supported": no other schema would be accepted either. But after
            # "Invalid schema: 'uniqueItems' is not permitted" the next mode, with a simpler schema, is tried.
            elif not (_REFUSED_SCHEMA.search(error.body) or self._names_a_constraint(error.body)):
                weaker = [mode for mode in weaker if mode not in _SCHEMA_MODES]
        self._mode, *self._weaker_modes = weaker
        return True

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
            value = _parse(reply.text)
            is_wrapped = self._mode in ("wrapped", "json_object", "prompt") and not self._is_object
            if is_wrapped and isinstance(value, dict) and set(value) == {"value"}:
                value = value["value"]
            return build_shape(self._shape, value)
        except DoesNotFit as error:
            hint = f"; the model declined: {show(reply.refusal)}" if reply.refusal else ""
            message = f"the answer does not fit: {error}{hint}"
            raise DoesNotFit(message, path=error.path, text=reply.text, partial=reply) from error.__cause__

    def _names_a_constraint(self, text: str) -> bool:
        """Whether the text of an error names a keyword or a format of the schema that the mode "types" leaves out."""
        return any(re.search(rf"\b{re.escape(name)}\b", text) for name in constraints_of(self._schema))

    def _wrapped(self) -> Json:
        """The schema of the value if it is an object, else that of an object {"value": ...} that holds the value."""
        if self._is_object:
            return self._schema
        inner = dict(self._schema)
        definitions: Json = {name: inner.pop(name) for name in ("$defs", "definitions") if name in inner}
        fields = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
        return {**fields, "additionalProperties": False, **definitions}

    def _with_instruction(self, messages: list[Json]) -> list[Json]:
        """The messages with the schema in the system message."""
        schema = json.dumps(self._wrapped(), ensure_ascii=False)
        text = f"Answer with JSON alone, without any other text. It has to be valid by this JSON Schema: {schema}"
        first = messages[0] if messages else {}
        if first.get("role") == "system" and isinstance(first.get("content"), str):
            return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]


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


def _schema_name(target: Any) -> str:
    """The name of the schema, which OpenAI requires."""
    title = target.get("title") if isinstance(target, Mapping) else getattr(target, "__name__", None)
    name = re.sub(r"[^\w-]", "_", title if isinstance(title, str) else "", flags=re.ASCII)
    return name[:_NAME_CHARS] or "answer"
