"""Convert types to JSON Schema, also in OpenAI's strict form, and the text of a response to values of them. No I/O.

A target is a dataclass, a TypedDict, any other annotation that JSON can hold, a function (its parameters), a class with
`model_json_schema`, a schema as a dict, or the short form "name, age int". `json_schema` converts a target to a schema;
`build` validates JSON and makes the value. JSON that is not valid raises DoesNotFit with the path; a target that JSON
Schema cannot describe raises TypeError. `ExpectedValue` is the `response_format` of one call: if a server refuses JSON
Schema, the request is repeated in a weaker mode. The response is validated here in every mode.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import re
import typing
from collections.abc import Mapping
from typing import Any, Union

from ..errors import DoesNotFit, StatusError
from ..events import Reply
from .shapes import ABSENT, Field, Shape, described, document, plain, record, shape_of
from .signatures import evaluated_hints, read_function, without_return
from .validator import Json, show, validation_errors

_SHOWN_ERRORS = 3


def json_schema(target: Any, *, strict: bool = False) -> Json:
    """The JSON Schema of a target. `strict` applies OpenAI's rules: all properties are required, no others allowed."""
    try:
        schema = document(_target_shape(target))
    except RecursionError as error:
        raise TypeError(f"{target!r} contains itself: only a class may refer to itself") from error
    return _strict(schema) if strict else schema


def can_be_strict(schema: Any) -> bool:
    """Whether OpenAI accepts a schema of `_strict`: each part has a type, and no object has other properties."""
    if not isinstance(schema, Mapping) or schema.keys() & {"prefixItems", "uniqueItems", "oneOf", "allOf", "not"}:
        return False
    is_open = "object" in schema.get("type", ()) and schema.get("additionalProperties") is not False
    if is_open or not schema.keys() & {"$ref", "anyOf", "enum", "const", "type"}:
        return False
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    parts += [part for name in ("properties", "$defs") for part in schema.get(name, {}).values()]
    return all(map(can_be_strict, parts))


def build(target: Any, value: Any) -> Any:
    """Convert parsed JSON to a value of the target. Raises DoesNotFit if the JSON is not valid."""
    shape = _target_shape(target)
    try:
        errors = list(validation_errors(value, document(shape)))
        if not errors:
            return shape.build(value, "$")
    except RecursionError as error:
        raise DoesNotFit("$: nested too deeply") from error
    shown = "; ".join(map(str, errors[:_SHOWN_ERRORS]))
    more = f" (and {len(errors) - _SHOWN_ERRORS} more)" if len(errors) > _SHOWN_ERRORS else ""
    raise DoesNotFit(shown + more, path=errors[0].path)


def _target_shape(target: Any) -> Shape:
    if isinstance(target, str):
        return _short_form(target)
    if isinstance(target, Mapping):
        return plain(target)
    if not _is_function(target):
        return shape_of(target)
    name = getattr(target, "__name__", None) or type(target).__name__
    return record(id(target), name, "", lambda: _function_fields(target, name), dict)


def _strict(schema: Any) -> Any:
    """Apply OpenAI's rules for `strict`: closed objects, all properties required, no default, nothing beside a $ref."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: value if name in _VERBATIM else _strict(value) for name, value in schema.items()}
    closed.pop("default", None)
    for name in _BY_NAME:
        if isinstance(schema.get(name), dict):
            closed[name] = {key: _strict(value) for key, value in schema[name].items()}
    if "$ref" in schema:
        return {name: value for name, value in closed.items() if name in ("$ref", "$defs")}
    if isinstance(schema.get("properties"), dict):
        closed.update(required=list(schema["properties"]), additionalProperties=False)
    return closed


# Keywords whose values are not schemas, and keywords whose keys are names and not keywords.
_VERBATIM = frozenset({"enum", "const", "required", "examples", "dependentRequired"})
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")


def _is_function(target: Any) -> bool:
    if hasattr(target, "__supertype__"):  # In Python 3.9 a NewType is a function.
        return False
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return True
    known = isinstance(target, type) or typing.get_origin(target) or type(target).__module__ in ("typing", "types")
    return callable(target) and not known


def _function_fields(function: Any, name: str) -> list[Field]:
    inner, bound = function, {}
    if isinstance(function, functools.partial):  # Its bound arguments are not for the model.
        inner, bound = function.func, function.keywords
        function = functools.partial(inner, *function.args, **bound)  # Without `__wrapped__`, which has all parameters.
    hints = evaluated_hints(without_return(inspect.unwrap(inner if inspect.isroutine(inner) else type(inner).__call__)))
    texts = read_function(function)[1]
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in bound:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model can only give parameters by name, not {str(parameter)!r}")
        hint = hints.get(parameter.name, Any)
        if parameter.default is None and hint is not Any:
            hint = Union[hint, None]  # The model may pass the default too. Before Python 3.11, typing does this.
        shape = described(shape_of(hint), texts.get(parameter.name))
        fields.append(Field(parameter.name, shape, parameter.default is ABSENT, parameter.default))
    return fields


_SHORT_TYPES = {"": str, "str": str, "int": int, "float": float, "bool": bool}
# A text that is nothing but one of these words is a type of a response format or of a value.
_TYPES = "json json_object json_schema text str int float bool dict list object array string number integer boolean"


def _short_form(text: str) -> Shape:
    """Parse "name, age int, bio: one line": fields with type and description, separated by commas or lines."""
    if text.strip() in _TYPES.split():
        ways = "pass {'type': 'json_object'} for any JSON object, a type such as int for a value of it"
        raise ValueError(f"{text.strip()!r} is no field: {ways}, or '{text.strip()} str' for a field of this name")
    fields = []
    for part in filter(str.strip, text.split("\n" if "\n" in text.strip() else ",")):
        head, _, description = part.strip().partition(":")
        name, _, kind = " ".join(head.split()).partition(" ")
        if not name.isidentifier() or kind not in _SHORT_TYPES:
            raise ValueError(f"a field must be `name`, `name type` or `name type: description`, not {part.strip()!r}")
        fields.append(Field(name, described(shape_of(_SHORT_TYPES[kind]), description.strip())))
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"the short form needs fields of different names: {text!r}")
    return record(text, "answer", "", lambda: fields, dict)


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
        self._mode, *self._weaker_modes = (mode for mode in _MODES if mode != "wrapped" or not self._is_object)

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
        if not _REFUSAL.search(error.body) or not self._weaker_modes:
            return False
        self._mode = self._weaker_modes.pop(0)
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
            cut = "; it was cut at the limit of tokens: raise max_tokens" if reply.finish_reason == "length" else ""
            hint = f"; the model declined: {show(reply.refusal)}" if reply.refusal else cut
            message = f"the answer does not fit: {error}{hint}"
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
        schema = json.dumps(self._object_schema(), ensure_ascii=False)
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
