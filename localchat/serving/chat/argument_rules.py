"""Rules for the arguments of tool calls: as JSON, one by one between tags, or in the notation of Gemma 4 or LFM2.

Between tags, a value is bare text without quotes, and the parser chooses its type by the schema. A value may be bare
text only if the parser turns this text into a value that matches the schema. If a layout cannot enforce a schema, the
arguments are one JSON object, which the parsers of all layouts accept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .dialects.call_layout import THE_NAME, ArgumentsLayout, CallLayout, ValueLayout
from .dialects.notation import GEMMA_QUOTE
from .dialects.values import ALL_TYPES, STRING, parameter_types
from .lark import ANY, Rules, containing, layout_regex, regex_literal, seq
from .schema_rules import json_rule

# Strings that no parser converts to a value of another type.
_CERTAINLY_TEXT = re.compile(r"(?!(true|false|none|null)\Z)[A-Za-z][\w .-]*", re.IGNORECASE)
_UNQUOTED_NAME = re.compile(r"[^\s{}\[\],:<\"]+")
# Keywords that do not restrict values.
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment")
)
_ANNOTATIONS |= {"$defs", "definitions", "$schema", "$id", "format_description", "nullable", "x-guidance"}
_OF_OBJECT = frozenset(("type", "properties", "required", "additionalProperties", "strict"))
_MAX_DEPTH = 20
_PYTHON_WORDS = {"boolean": "/True|False/", "null": "/None/"}


class NotExact(Exception):
    """The layout cannot enforce the schema."""


class ArgumentRules:
    """Makes the rules of arguments within one grammar."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def rule(self, parameters: dict[str, Any], layout: CallLayout) -> str:
        """The arguments of one tool in a layout. The schema is one of an object, and llguidance accepts it."""
        try:
            if layout.arguments is not None:
                return self._rules.rule(_Arguments(self._rules, parameters, layout).listed(layout.arguments))
            if layout.notation != "json":
                return self._rules.rule(_Arguments(self._rules, parameters, layout).native_value(parameters))
        except NotExact:
            pass
        return self._rules.rule(json_rule(parameters))


class _Arguments:
    def __init__(self, rules: Rules, root: Mapping[str, Any], layout: CallLayout) -> None:
        self._rules = rules
        self._root = root
        self._notation = layout.notation
        # The parser stops at this marker also inside a string.
        self._end_marker = layout.ends[0]
        self._any_rule = ""
        self._definitions = {key: root[key] for key in ("$defs", "definitions", "x-guidance") if key in root}

    # --- one by one ---

    def listed(self, layout: ArgumentsLayout) -> str:
        schema = self._root
        properties = self._properties(schema)
        separator = layout_regex(layout.separator)
        pairs = [(self._pair(layout, name, prop), name in schema.get("required", ())) for name, prop in properties]
        return self._in_order(pairs, separator)

    def _in_order(self, pairs: list[tuple[str, bool]], separator: str) -> str:
        """The pairs in the order of the schema, each with whether it is required."""
        # Made from the last pair to the first: `first` is the text from this pair or a later one on, and `rest` is the
        # same after an earlier pair, with a separator before it.
        first = rest = ""
        between = f"/{separator}/" if separator else ""
        for pair, is_required in reversed(pairs):
            with_rest = self._rules.rule(seq(pair, rest))
            first = with_rest if is_required else f"({with_rest} | {first})" if first else f"({with_rest})?"
            rest = seq(between, with_rest) if is_required else f"({seq(between, with_rest)} | {seq(rest)})"
            first, rest = self._rules.rule(first), self._rules.rule(rest)
        return first or '""'

    def _properties(self, schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """The declared properties of an object, if no others are needed."""
        properties, others = schema.get("properties") or {}, schema.get("additionalProperties", True)
        is_plain = schema.keys() <= _OF_OBJECT | _ANNOTATIONS and isinstance(properties, dict)
        if not is_plain or not isinstance(others, bool) or not set(schema.get("required") or ()) <= properties.keys():
            raise NotExact
        if not properties and others:
            raise NotExact
        return list(properties.items())

    def _pair(self, layout: ArgumentsLayout, name: str, schema: Any) -> str:
        if not layout.can_name(name):
            raise NotExact
        schema, types = self._resolved(schema), parameter_types(self._root, name)
        options = [option for value in layout.values if (option := self._value(layout, value, name, schema, types))]
        if not options:
            raise NotExact
        return f"({' | '.join(options)})"

    def _value(self, of: ArgumentsLayout, layout: ValueLayout, name: str, schema: Any, types: frozenset[str]) -> str:
        """A value with the texts around it; "" if no value of the schema is written in this layout."""
        start, end = (layout_regex(text.replace(THE_NAME, name)) for text in (layout.start, layout.end))
        own = types & (layout.types | ({"integer"} if "number" in layout.types else set()))
        if not own:
            return ""
        if not layout.marker:
            if own in (ALL_TYPES, types):
                value = self.native_value(schema) if self._notation != "json" else self._json(schema)
            else:
                value = self._json({**_as_object(schema), "type": sorted(own)})
            return seq(f"/{start}/" if start else "", value, f"/{end}/" if end else "")
        line = r"\n?" if of.on_lines else ""
        if not own & STRING:
            # Some templates print the words of Python.
            words = [word for name, word in _PYTHON_WORDS.items() if name in own] if _is_free(schema) else []
            value = " | ".join([self._json(schema), *words])
            return seq(f"/{start}{line}/" if start + line else "", f"({value})", f"/{line}{end}/")
        if own != types:
            schema = {**_as_object(schema), "type": sorted(own)}
        values = _listed_values(schema)
        if values is not None:
            texts = [self._listed_value(value, own, layout) for value in values]
            return self._rules.regex(f"{start}{line}({'|'.join(texts)}){line}{end}")
        marker = regex_literal(layout.marker)
        also = [f"~/{regex_literal(layout.not_start)}{ANY}/"] if layout.not_start else []
        if not _is_free(schema):
            if own != STRING:
                raise NotExact
            also += text_sets(schema)
            line = r"\n" if of.on_lines else ""
        else:
            line = ""
        # The text and its end are one lexeme.
        text = self._rules.free_text([marker], *also)
        parts = [f"/{start}{line}/" if start + line else "", text, f"/{line}{end}/"]
        return self._rules.terminal(seq(*parts))

    def _listed_value(self, value: Any, types: frozenset[str], layout: ValueLayout) -> str:
        if not isinstance(value, str):
            return regex_literal(json.dumps(value))
        is_plain = layout.marker not in value and value == value.strip("\n")
        is_another_layout = layout.not_start and value.startswith(layout.not_start)
        if not is_plain or is_another_layout or not (types == STRING or _CERTAINLY_TEXT.fullmatch(value)):
            raise NotExact
        return regex_literal(value)

    def _json(self, schema: Any) -> str:
        """A value as JSON. References lead from the root to definitions only."""
        schema = _as_object(schema)
        references = re.findall(r'"\$ref": "([^"]*)"', json.dumps(schema))
        if not all(reference.startswith(("#/$defs/", "#/definitions/")) for reference in references):
            raise NotExact
        return self._rules.rule(json_rule({**self._definitions, **schema}))

    def _resolved(self, schema: Any) -> Any:
        """The schema that a single reference leads to."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict) or schema.keys() - _ANNOTATIONS != {"$ref"}:
                return schema
            _, *parts = str(schema["$ref"]).split("/")
            target: Any = self._root
            for part in parts:
                target = target.get(part) if isinstance(target, dict) else None
            if target is None:
                raise NotExact
            schema = target
        raise NotExact

    # --- the notations of Gemma 4 and LFM2 ---

    def native_value(self, schema: Any, depth: int = 0) -> str:
        schema = _as_object(self._resolved(schema))
        if depth > _MAX_DEPTH:
            raise NotExact
        values = _listed_values(schema)
        if values is not None:
            return self._rules.regex("|".join(regex_literal(self._constant(value)) for value in values))
        options = schema.get("anyOf")
        if isinstance(options, list) and schema.keys() - _ANNOTATIONS == {"anyOf"}:
            return "(" + " | ".join(self.native_value(option, depth + 1) for option in options) + ")"
        types = schema.get("type")
        if types is None and _is_free(schema):
            return self._native_any()
        if isinstance(types, list):
            return "(" + " | ".join(self.native_value({**schema, "type": name}, depth + 1) for name in types) + ")"
        if types == "string":
            return self._native_string(text_sets(schema))
        if types == "object":
            return self._native_object(schema, depth)
        if types == "array":
            if not schema.keys() <= {"type", "items"} | _ANNOTATIONS:
                raise NotExact
            if "items" not in schema:
                return self._native_list(self._native_any())
            return self._native_list(self._rules.rule(self.native_value(schema["items"], depth + 1)))
        if types == "boolean" and schema.keys() <= {"type"} | _ANNOTATIONS:
            return "/true|false/" if self._notation == "gemma" else "/True|False/"
        if types == "null":
            return "/null/" if self._notation == "gemma" else "/None/"
        if types in ("integer", "number"):
            return self._json(schema)
        raise NotExact

    def _native_object(self, schema: dict[str, Any], depth: int) -> str:
        others = schema.get("additionalProperties", True)
        if not schema.get("properties") and others is not False and not schema.get("required"):
            if not schema.keys() <= _OF_OBJECT | _ANNOTATIONS:
                raise NotExact
            return self._native_map(self._rules.rule(self.native_value(others, depth + 1)))
        properties = self._properties(schema)
        is_gemma = self._notation == "gemma"
        if is_gemma:
            properties.sort(key=lambda item: item[0].lower())
        pairs = []
        for name, prop in properties:
            if is_gemma and not _UNQUOTED_NAME.fullmatch(name):
                raise NotExact
            key = f"{name}:" if is_gemma else f"{json.dumps(name, ensure_ascii=False)}: "
            pair = seq(f"/{regex_literal(key)}/", f"({self.native_value(prop, depth + 1)})")
            pairs.append((pair, name in (schema.get("required") or ())))
        return seq("/\\{/", f"({self._in_order(pairs, ',' if is_gemma else ', ?')})", "/\\}/")

    def _native_any(self) -> str:
        if not self._any_rule:
            self._any_rule = name = self._rules.new_name("any")
            words = "/null|true|false/" if self._notation == "gemma" else "/None|True|False/"
            options = [self._native_string([]), self._json({"type": "number"}), words]
            options += [self._native_list(name), self._native_map(name)]
            self._rules.add(f"{name}: {' | '.join(options)}")
        return self._any_rule

    def _native_list(self, item: str) -> str:
        separator = "/,/" if self._notation == "gemma" else "/, ?/"
        return seq("/\\[/", f"({item} ({separator} {item})*)?", "/\\]/")

    def _native_map(self, value: str) -> str:
        if self._notation == "gemma":
            pair, separator = seq("/[A-Za-z0-9_.-]+:/", value), "/,/"
        else:
            pair, separator = seq(self._native_string([]), "/: ?/", value), "/, ?/"
        pair = self._rules.rule(pair)
        return seq("/\\{/", f"({pair} ({separator} {pair})*)?", "/\\}/")

    def _native_string(self, sets: list[str]) -> str:
        end = regex_literal(self._end_marker)
        if self._notation == "gemma":
            quote = regex_literal(GEMMA_QUOTE)
            text = self._rules.free_text([quote, end], *sets)
            return self._rules.terminal(f"/{quote}/ {text} /{quote}/")
        count = "*"
        if sets:
            length = re.fullmatch(r"/\(\?s:\.\)(\{\d+,\d*\})/", sets[0])
            if len(sets) > 1 or length is None:
                raise NotExact
            count = length[1]
        quoted = (rf"{q}([^{q}\\\x00-\x09\x0b-\x1f\x7f]|\\[{q}\\bnrt]){count}{q}" for q in "\"'")
        return self._rules.terminal(f"/{'|'.join(quoted)}/ & ~{containing(end)}")

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            if self._notation == "gemma" and GEMMA_QUOTE not in value:
                return GEMMA_QUOTE + value + GEMMA_QUOTE
            return json.dumps(value, ensure_ascii=False)
        is_word = value is None or isinstance(value, bool)
        return str(value) if is_word and self._notation == "python" else json.dumps(value)


def text_sets(schema: Mapping[str, Any]) -> list[str]:
    """The sets of texts, each a terminal, whose intersection are the strings that match a schema."""
    keywords = schema.keys() - _ANNOTATIONS - {"type"}
    if not keywords <= {"minLength", "maxLength", "pattern"}:
        raise NotExact
    sets = []
    if keywords & {"minLength", "maxLength"}:
        low, high = schema.get("minLength", 0), schema.get("maxLength", "")
        sets.append(f"/(?s:.){{{low},{high}}}/")
    pattern = schema.get("pattern")
    if pattern is not None:
        if not re.fullmatch(r"\^[^|/\n]*[^\\|/\n]\$", str(pattern)) or "\\b" in pattern:
            raise NotExact
        sets.append(f"/{pattern[1:-1]}/")
    return sets


def _as_object(schema: Any) -> dict[str, Any]:
    if schema is False:
        raise NotExact
    return schema if isinstance(schema, dict) else {}


def _listed_values(schema: Any) -> list[Any] | None:
    """The values of an enum or a constant; None if the schema is another one."""
    if not isinstance(schema, dict) or not schema.keys() & {"enum", "const"}:
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
        return schema is True or schema is None
    if isinstance(schema.get("anyOf"), list) and schema.keys() - _ANNOTATIONS == {"anyOf"}:
        return all(map(_is_free, schema["anyOf"]))
    return schema.keys() <= {"type"} | _ANNOTATIONS
