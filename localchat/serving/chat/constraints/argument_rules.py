r"""Grammar rules for the arguments of tool calls: one by one, or as one JSON object.

Between tags, a value is bare text without quotes, and the parser chooses its type by the schema. A value may be bare
text only if the parser turns this text into a value that matches the schema. If a format cannot enforce a schema, the
arguments are one JSON object, which the parsers of all formats accept.

The rules of the family of Qwen3-Coder for three arguments: a required string `city`, and two that may be left out, an
enum `unit` and an integer `days`.

    rule_10: T_9 rule_7
    rule_7: rule_5 | rule_3                                       `after_other` of `unit`
    rule_5: T_4 rule_3
    rule_3: rule_1 | ""                                           `after_other` of `days`
    T_9: /\n{0,2}<parameter=city>/ T_8 /<\/parameter>/            `city`, as bare text
    T_8: /(?s:.*)/ & ~/(?s:.*)(<\/parameter>)(?s:.*)/             any text without the end tag
    T_4: /\n{0,2}<parameter=unit>\n?(C|F)\n?<\/parameter>/       `unit`, as listed texts
    rule_1: /\n{0,2}<parameter=days>\n?/ rule_0 /\n?<\/parameter>/
    rule_0: %json {"type": "integer"}                             `days`, as JSON
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...schema.compiler import json_rule
from ...schema.patterns import whole_text
from ...schema.types import STRING, allows_all_of_its_types, restrictions, types_at, types_of, with_integers
from ...schema.walk import DEFINITIONS, subschemas, target_of
from ..dialects.argument_format import ArgumentFormat, ValueFormat
from ..dialects.bare_text import value_json
from ..dialects.call_format import CallFormat
from ..dialects.values import GEMMA_QUOTE
from .lark import ANY, Rules, regex_literal, seq, text_regex

# The arguments of Gemma 4, which are in braces. Lists and objects in them are JSON, which the parser accepts too.
_GEMMA = ArgumentFormat(after_key=":", separator=",", line_breaks=False, quotes=(GEMMA_QUOTE, GEMMA_QUOTE))
# The keywords of a schema whose arguments can be written one by one.
_ONE_BY_ONE = frozenset(("type", "properties", "required", "additionalProperties", "strict"))
# The limit of arguments one by one: the rule of each refers to that of the next one, and llguidance, which follows them
# on the stack, ends the process with 1,200 rules and 8 MB of stack.
_MAX_ARGUMENTS = 200
# The characters of rules with a copy of the definitions: a minimum, and how many times the text of the schema.
_MIN_COPIED, _MAX_COPIES = 30_000, 4
# Values that some templates print as Python does.
_PYTHON_VALUES = {
    "boolean": "/True|False/",
    "null": "/None/",
    "string": r"/'([^'\\\x00-\x09\x0b-\x1f\x7f]|\\['\\bnrt])*'/",
}


class NotExact(Exception):
    """The format cannot enforce the schema."""


def argument_rule(rules: Rules, parameters: dict[str, Any], format: CallFormat) -> str:
    """The rule of the arguments of a tool. The schema is one of an object, and llguidance accepts it."""
    with contextlib.suppress(NotExact, RecursionError):  # RecursionError: a reference leads to itself.
        if format.arguments is not None:
            return rules.rule(_Arguments(rules, parameters, format.arguments).one_by_one())
        if format.notation == "gemma":
            # The models write the names in alphabetical order. The parser ends a call at its marker, even in a text.
            properties = sorted(parameters.get("properties", {}).items(), key=lambda item: item[0].lower())
            root = {**parameters, "properties": dict(properties)}
            return rules.rule(seq(r"/\{/", _Arguments(rules, root, _GEMMA, format.ends[:1]).one_by_one(), r"/\}/"))
    # The format has no other notation, or cannot enforce the schema.
    return rules.rule(json_rule(parameters))


@dataclass
class _Arguments:
    rules: Rules
    root: Mapping[str, Any]  # The schema of the arguments.
    format: ArgumentFormat
    ends: Sequence[str] = ()  # Markers that no text may contain.
    n_copied: int = 0  # The characters of rules that have a copy of the definitions.

    def one_by_one(self) -> str:
        """The arguments in the order of the schema. Raises NotExact if its properties do not describe all of them."""
        properties, others = self.root.get("properties", {}), self.root.get("additionalProperties", True)
        required = self.root.get("required", ())
        is_plain = restrictions(self.root) <= _ONE_BY_ONE and isinstance(others, bool)
        if not is_plain or not set(required) <= properties.keys() or (others and not properties):
            raise NotExact
        if len(properties) > _MAX_ARGUMENTS:
            raise NotExact
        # Made from the last argument to the first. `at_start` has the arguments from this one on if none precedes them,
        # and `after_other` has them after another argument, with a separator before them. For a required argument A and
        # an optional one B, with commas between them:
        #
        #     B    at_start: (B)?            after_other: ("," B | "")
        #     A    at_start: A ("," B | "")  after_other: "," A ("," B | "")
        at_start = after_other = ""
        separator = f"/{self.format.separator}/" if self.format.separator else ""
        for name, schema in reversed(properties.items()):
            arguments = self.rules.rule(seq(self._argument(name, schema), after_other))
            next_arguments = seq(separator, arguments)
            if name in required:
                at_start, after_other = arguments, next_arguments
            else:
                at_start = f"({arguments} | {at_start})" if at_start else f"({arguments})?"
                after_other = f"({next_arguments} | {seq(after_other)})"
            at_start, after_other = self.rules.rule(at_start), self.rules.rule(after_other)
        return at_start or '""'

    def _argument(self, name: str, schema: Any) -> str:
        if not self.format.can_name(name):
            raise NotExact
        schema, types = self._resolved(schema), types_at(self.root, name)
        options: list[str] = []
        covered: frozenset[str] = frozenset()
        for value in self.format.values:
            value_types = types & with_integers(value.types)
            if value_types:
                value_schema = schema
                if value_types != types:
                    value_schema = {**({} if allows_all_of_its_types(schema) else schema), "type": sorted(value_types)}
                with contextlib.suppress(NotExact):
                    options.append(self._value(value, value_schema, value_types, name))
                    covered |= value_types
        if not options or covered != types:
            raise NotExact
        return f"({' | '.join(options)})"

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """A schema in which a reference at the top is followed. Raises NotExact if other keywords are beside it."""
        if schema is True:
            return {}
        if not isinstance(schema, dict) or ("$ref" in schema and restrictions(schema) != {"$ref"}):
            raise NotExact
        return self._resolved(target_of(schema["$ref"], self.root)) if "$ref" in schema else schema

    def _value(self, format: ValueFormat, schema: dict[str, Any], types: frozenset[str], name: str) -> str:
        """A value between the two texts of its format. A line break may be on each side of it."""
        line_break = r"\n?" if self.format.value_on_lines else ""
        start, end = text_regex(format.start, name) + line_break, line_break + text_regex(format.end, name)
        if not (types & STRING and format.has_bare_text):
            return seq(f"/{start}/", self._json_value(schema, types), f"/{end}/" if end else "")
        values = _listed_values(schema)
        if values is not None:
            texts = "|".join(self._listed_text(value, types, format) for value in values)
            return self.rules.regex(f"{start}({texts}){end}")
        return self._bare_text(format, schema, types, name)

    def _bare_text(self, format: ValueFormat, schema: dict[str, Any], types: frozenset[str], name: str) -> str:
        """A value that is bare text: any value, or the strings that match a schema."""
        bodies = [f"~/{regex_literal(format.not_start)}{ANY}/"] if format.not_start else []
        # A text without restrictions includes the line breaks.
        line_break = r"\n" if self.format.value_on_lines and not allows_all_of_its_types(schema) else ""
        start, end = text_regex(format.start, name) + line_break, line_break + text_regex(format.end, name)
        if not allows_all_of_its_types(schema):
            if types != STRING:
                raise NotExact
            bodies += _string_restrictions(schema)
        # The text and its end are one lexeme.
        text = self.rules.free_text(map(regex_literal, (format.marker, *self.ends)), *bodies)
        return self.rules.terminal(seq(f"/{start}/", text, f"/{end}/"))

    def _json_value(self, schema: dict[str, Any], types: frozenset[str]) -> str:
        """A value as JSON; if its schema allows any value of its types, also as Python prints it."""
        python = (
            [body for type_name, body in _PYTHON_VALUES.items() if type_name in types]
            if allows_all_of_its_types(schema)
            else []
        )
        return f"({' | '.join([self._json(schema), *python])})"

    def _json(self, schema: dict[str, Any]) -> str:
        """A value as JSON. Its schema becomes a root, so it can only have references to definitions."""
        parts = [part for _, part in subschemas(schema) if isinstance(part, dict)]
        references = [part["$ref"] for part in parts if "$ref" in part]
        if not all(reference.startswith(("#/$defs/", "#/definitions/")) for reference in references):
            raise NotExact
        options = {"x-guidance": self.root["x-guidance"]} if "x-guidance" in self.root else {}
        definitions = {keyword: self.root[keyword] for keyword in DEFINITIONS if references and keyword in self.root}
        rule = json_rule({**definitions, **options, **schema})
        # Each argument with a reference has a copy of all definitions.
        self.n_copied += len(rule) if definitions else 0
        if self.n_copied > _MIN_COPIED and self.n_copied > _MAX_COPIES * len(json.dumps(self.root)):
            raise NotExact
        return self.rules.rule(rule)

    def _listed_text(self, value: Any, types: frozenset[str], format: ValueFormat) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        is_plain = not any(marker in text for marker in (format.marker, *self.ends)) and text == text.strip("\n")
        is_another_format = format.not_start and text.startswith(format.not_start)
        if not is_plain or is_another_format or json.loads(value_json(text, types)) != value:
            raise NotExact
        return regex_literal(text)


def _string_restrictions(schema: Mapping[str, Any]) -> list[str]:
    """Bodies of terminals: the strings that match all of them are those that match a schema."""
    if not restrictions(schema) <= {"type", "minLength", "maxLength", "pattern"}:
        raise NotExact
    bodies = []
    if schema.keys() & {"minLength", "maxLength"}:
        bodies.append(f"/(?s:.){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/")
    if "pattern" in schema:
        pattern = whole_text(schema["pattern"])
        if pattern is None:
            raise NotExact
        bodies.append(f"/{pattern}/")
    return bodies


def _listed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of an enum or a constant; None if the schema is another one."""
    if not schema.keys() & {"enum", "const"}:
        return None
    if not restrictions(schema) <= {"enum", "const", "type"}:
        raise NotExact
    values = [schema["const"]] if "const" in schema else schema["enum"]
    allowed = [value for value in values if types_of(value) & types_at(schema)]
    if not allowed or any(isinstance(value, (dict, list)) for value in allowed):
        raise NotExact
    return allowed
