"""Grammar rules for the arguments of tool calls: as JSON, one by one, or in the notation of Gemma 4.

Between tags, a value is bare text without quotes, and the parser chooses its type by the schema. A value may be bare
text only if the parser turns this text into a value that matches the schema. If a layout cannot enforce a schema, the
arguments are one JSON object, which the parsers of all layouts accept.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from ...api.parts import target_of
from ..dialects.call_layout import ArgumentsLayout, CallLayout, ValueLayout, gemma_text
from ..dialects.values import GEMMA_QUOTE, STRING, parameter_types, value_json
from .json_schema import json_rule
from .lark import ANY, Rules, layout_regex, regex_literal, seq

# In the notation of Gemma 4: the quotes around strings, the names that undeclared fields get, and the names that
# declared fields may have.
_QUOTE = regex_literal(GEMMA_QUOTE)
_GEMMA_NAME = "/[A-Za-z0-9_.-]+:/"
_UNQUOTED_NAME = re.compile(r"[^\s{}\[\],:<\"]+")
# Keywords that do not restrict values.
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment")
)
_ANNOTATIONS |= {"$defs", "definitions", "$schema", "$id", "format_description", "nullable", "x-guidance"}
_OF_OBJECT = frozenset(("type", "properties", "required", "additionalProperties", "strict"))
# Values that some templates print as Python does.
_PYTHON_VALUES = {
    "boolean": "/True|False/",
    "null": "/None/",
    "string": r"/'([^'\\\x00-\x09\x0b-\x1f\x7f]|\\['\\bnrt])*'/",
}


class NotExact(Exception):
    """The layout cannot enforce the schema."""


def argument_rule(rules: Rules, parameters: dict[str, Any], layout: CallLayout) -> str:
    """The rule of the arguments of a tool. The schema is one of an object, and llguidance accepts it."""
    arguments = _Arguments(rules, parameters, layout)
    with contextlib.suppress(NotExact, RecursionError):  # RecursionError: the schema contains itself.
        if layout.arguments is not None:
            return rules.rule(arguments.one_by_one(layout.arguments))
        if layout.notation == "gemma":
            return rules.rule(arguments.gemma(parameters))
    return rules.rule(json_rule(parameters))


class _Arguments:
    def __init__(self, rules: Rules, root: Mapping[str, Any], layout: CallLayout) -> None:
        self._rules = rules
        self._root = root
        # The parser of Gemma's notation ends the call at this marker, even inside a string.
        self._end = regex_literal("".join(layout.ends[:1]))
        self._definitions = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """A schema in which a reference at the top is followed. Raises NotExact if other keywords are beside it."""
        if schema is True:
            return {}
        if not isinstance(schema, dict) or ("$ref" in schema and schema.keys() - _ANNOTATIONS != {"$ref"}):
            raise NotExact
        return self._resolved(target_of(schema["$ref"], self._root)) if "$ref" in schema else schema

    def _json(self, schema: dict[str, Any]) -> str:
        """A value as JSON. Its schema becomes a root, so it can only have references to definitions."""
        references = re.findall(r'"\$ref": "([^"]*)"', json.dumps(schema))
        if not all(reference.startswith(("#/$defs/", "#/definitions/")) for reference in references):
            raise NotExact
        return self._rules.rule(json_rule({**self._definitions, **schema}))

    def _properties(self, schema: Mapping[str, Any]) -> list[tuple[str, Any, bool]]:
        """The properties of an object, each with whether it is required. Raises NotExact if they do not describe it."""
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties", True)
        required = schema.get("required") or ()
        is_plain = schema.keys() <= _OF_OBJECT | _ANNOTATIONS and isinstance(others, bool)
        if not is_plain or not set(required) <= properties.keys() or (others and not properties):
            raise NotExact
        return [(name, value, name in required) for name, value in properties.items()]

    def _in_order(self, pairs: list[tuple[str, bool]], separator: str) -> str:
        # Made from the last pair to the first: `first` matches the pairs from here on if no pair precedes them, and
        # `rest` matches them after an earlier pair, with a separator before them.
        first = rest = ""
        between = f"/{separator}/" if separator else ""
        for pair, is_required in reversed(pairs):
            with_rest = self._rules.rule(seq(pair, rest))
            first = with_rest if is_required else f"({with_rest} | {first})" if first else f"({with_rest})?"
            rest = seq(between, with_rest) if is_required else f"({seq(between, with_rest)} | {seq(rest)})"
            first, rest = self._rules.rule(first), self._rules.rule(rest)
        return first or '""'

    def one_by_one(self, layout: ArgumentsLayout) -> str:
        properties = self._properties(self._root)
        pairs = [(self._argument(layout, name, schema), is_required) for name, schema, is_required in properties]
        return self._in_order(pairs, layout.separator)

    def _argument(self, layout: ArgumentsLayout, name: str, schema: Any) -> str:
        if not layout.can_name(name):
            raise NotExact
        schema, types = self._resolved(schema), parameter_types(self._root, name)
        options = []
        for value in layout.values:
            own = types & (value.types | ({"integer"} if "number" in value.types else set()))
            if own:
                start, end = (layout_regex(text, name) for text in (value.start, value.end))
                of_own = schema if own == types else {**schema, "type": sorted(own)}
                options.append(self._value(value, of_own, own, start, end, r"\n" if layout.on_lines else ""))
        if not options:
            raise NotExact
        return f"({' | '.join(options)})"

    def _value(
        self, layout: ValueLayout, schema: dict[str, Any], types: frozenset[str], start: str, end: str, line: str
    ) -> str:
        """A value between two texts. A line break may be on each side of it."""
        maybe_line = line and line + "?"
        if not (types & STRING and layout.marker):
            others = [other for name, other in _PYTHON_VALUES.items() if name in types] if _is_free(schema) else []
            value = f"({' | '.join([self._json(schema), *others])})"
            return seq(f"/{start}{maybe_line}/", value, f"/{maybe_line}{end}/" if maybe_line + end else "")
        values = _listed_values(schema)
        if values is not None:
            texts = [self._listed_text(value, types, layout) for value in values]
            return self._rules.regex(f"{start}{maybe_line}({'|'.join(texts)}){maybe_line}{end}")
        sets = [f"~/{regex_literal(layout.not_start)}{ANY}/"] if layout.not_start else []
        if _is_free(schema):
            line = ""  # The free text includes the line breaks.
        elif types == STRING:
            sets += _text_sets(schema)
        else:
            raise NotExact
        # The text and its end are one lexeme.
        text = self._rules.free_text([regex_literal(layout.marker)], *sets)
        return self._rules.terminal(seq(f"/{start}{line}/", text, f"/{line}{end}/"))

    def _listed_text(self, value: Any, types: frozenset[str], layout: ValueLayout) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        is_plain = layout.marker not in text and text == text.strip("\n")
        is_another_layout = layout.not_start and text.startswith(layout.not_start)
        if not is_plain or is_another_layout or json.loads(value_json(text, types)) != value:
            raise NotExact
        return regex_literal(text)

    def gemma(self, schema: Any) -> str:
        schema = self._resolved(schema)
        values = _listed_values(schema)
        if values is not None:
            return self._rules.regex("|".join(regex_literal(gemma_text(value)) for value in values))
        keywords, type_ = schema.keys() - _ANNOTATIONS, schema.get("type")
        options = schema.get("anyOf") if keywords == {"anyOf"} else None
        if isinstance(type_, list):
            options = [{**schema, "type": name} for name in type_]
        if isinstance(options, list):
            return "(" + " | ".join(self.gemma(option) for option in options) + ")"
        if not keywords:
            return self._gemma_any()
        if type_ == "object":
            return self._gemma_object(schema)
        if type_ == "string":
            text = self._rules.free_text([_QUOTE, self._end], *_text_sets(schema))
            return self._rules.terminal(f"/{_QUOTE}/ {text} /{_QUOTE}/")
        if type_ == "array" and keywords <= {"type", "items"}:
            return _repeated("[", self._rules.rule(self.gemma(schema.get("items", True))), "]")
        if type_ in ("boolean", "null", "integer", "number"):
            return self._json(schema)
        raise NotExact

    def _gemma_object(self, schema: dict[str, Any]) -> str:
        others = schema.get("additionalProperties", True)
        if not schema.get("properties") and others is not False and not schema.get("required"):
            if not schema.keys() <= _OF_OBJECT | _ANNOTATIONS:
                raise NotExact
            value = self._rules.rule(self.gemma(others))
            return _repeated("{", self._rules.rule(seq(_GEMMA_NAME, value)), "}")
        pairs = []
        for name, value, is_required in sorted(self._properties(schema), key=lambda item: item[0].lower()):
            if not _UNQUOTED_NAME.fullmatch(name):
                raise NotExact
            pairs.append((seq(f"/{regex_literal(name)}:/", f"({self.gemma(value)})"), is_required))
        return seq("/\\{/", f"({self._in_order(pairs, ',')})", "/\\}/")

    def _gemma_any(self) -> str:
        rules = {
            "start": f"TEXT | json | {_repeated('[', 'start', ']')} | {_repeated('{', 'pair', '}')}",
            "pair": f"{_GEMMA_NAME} start",
            "json": '%json {"type": ["number", "boolean", "null"]}',
            "TEXT": f"/{_QUOTE}/ INSIDE /{_QUOTE}/",
            "INSIDE": f"/{ANY}/ & ~/{ANY}({_QUOTE}|{self._end}){ANY}/",
        }
        return self._rules.rule("%lark {\n" + "\n".join(f"{name}: {body}" for name, body in rules.items()) + "\n}")


def _repeated(start: str, item: str, end: str) -> str:
    return seq(f"/\\{start}/", f"({item} (/,/ {item})*)?", f"/\\{end}/")


def _text_sets(schema: Mapping[str, Any]) -> list[str]:
    """The sets of texts, each a terminal, whose intersection are the strings that match a schema."""
    if not schema.keys() - _ANNOTATIONS <= {"type", "minLength", "maxLength", "pattern"}:
        raise NotExact
    sets = []
    if schema.keys() & {"minLength", "maxLength"}:
        sets.append(f"/(?s:.){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/")
    pattern = schema.get("pattern")
    if pattern is not None:
        if not re.fullmatch(r"\^[^|/\n]*[^\\|/\n]\$", str(pattern)) or "\\b" in pattern:
            raise NotExact
        sets.append(f"/{pattern[1:-1]}/")
    return sets


def _listed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of an enum or a constant; None if the schema is another one."""
    if not schema.keys() & {"enum", "const"}:
        return None
    if not schema.keys() <= {"enum", "const", "type"} | _ANNOTATIONS:
        raise NotExact
    values = [schema["const"]] if "const" in schema else schema["enum"]
    found = [value for value in values if parameter_types({"const": value}) & parameter_types(schema)]
    if not found or any(isinstance(value, (dict, list)) for value in found):
        raise NotExact
    return found


def _is_free(schema: Any) -> bool:
    """Whether every value of the types of the schema matches it."""
    if not isinstance(schema, dict):
        return schema is True
    keywords = schema.keys() - _ANNOTATIONS
    if keywords == {"anyOf"} and isinstance(schema["anyOf"], list):
        return all(map(_is_free, schema["anyOf"]))
    return keywords <= {"type"}
