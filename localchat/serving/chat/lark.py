"""Grammars in the notation of llguidance: rules and terminals, prepared JSON Schemas, and grammars in GBNF."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from .dialects.call_layout import A_BREAK, A_NUMBER, A_SPACE, AN_ID

_PLACEHOLDERS = {
    A_NUMBER: "[0-9]{1,3}",
    A_BREAK: r"\n{0,2}",
    A_SPACE: r"\n? {0,16}",
    AN_ID: "[A-Za-z0-9_-]{1,64}",
}
ANY = "(?s:.*)"

# The parts of GBNF that are converted before llguidance reads them: texts, classes, comments, any character.
_GBNF_PART = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\r\n]*|\.', re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


# The formats that llguidance enforces. By the standard, all others are annotations.
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
# Keywords whose value is a schema, and keywords whose value is a list or an object of schemas.
_ONE = frozenset(("additionalItems", "additionalProperties", "items", "propertyNames"))
_SEVERAL = frozenset(("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "prefixItems"))
_SEVERAL |= {"allOf", "anyOf", "oneOf"}
# With one of these keywords, several schemas can apply to one object.
_COMBINED = frozenset(("allOf", "patternProperties", "unevaluatedProperties", "not", "if"))
# What may be between the parts of JSON, as in llama.cpp: a space, or a line break with an indentation.
_SPACE = "[ ]|\\n[ ]{0,40}"
# The limit of subschemas that are compiled to find the place of an error.
_MAX_TRIED = 200
# llguidance reads numbers as floats, which have all integers up to this one.
_MAX_INTEGER = 1 << 53


def regex_literal(text: str) -> str:
    """The regular expression of exactly this text, for use between slashes."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text).replace("\n", r"\n").replace("\0", r"\x00")


def layout_regex(text: str) -> str:
    """The regular expression of a text of a call layout, with its placeholders."""
    return "".join(_PLACEHOLDERS.get(char) or regex_literal(char) for char in text)


def seq(*parts: str) -> str:
    return " ".join(filter(None, parts)) or '""'


class Rules:
    """Collects the rules and terminals of one grammar. Equal bodies have one name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def rule(self, body: str) -> str:
        return self._named("rule", body)

    def terminal(self, body: str) -> str:
        """A lexeme: regular expressions between slashes and other terminals, joined by ` `, `|` and `&`."""
        return self._named("T", body)

    def regex(self, regex: str) -> str:
        return self.terminal(f"/{regex}/")

    def free_text(self, markers: Iterable[str], *also: str) -> str:
        """Any text that contains none of the markers, which are regular expressions, and is in all sets of `also`."""
        found = "|".join(dict.fromkeys(markers))
        return self.terminal(" & ".join([f"/{ANY}/", *also, *([f"~/{ANY}({found}){ANY}/"] if found else [])]))

    def render(self, start: str) -> str:
        return "\n".join([f"start: {start}", *(f"{name}: {body}" for body, name in self._names.items()), ""])

    def _named(self, prefix: str, body: str) -> str:
        if re.fullmatch(r"(rule|T)_\d+", body):
            return body
        return self._names.setdefault(body, f"{prefix}_{len(self._names)}")


# GBNF


def gbnf_rule(grammar: str) -> str:
    """The body of a rule: the text of a grammar in GBNF, the notation of llama.cpp.

    Raises:
        ValueError: The grammar is malformed, or has no rule `root`.
    """
    from llguidance import gbnf_to_lark as gbnf

    try:
        rules = gbnf.GrammarParser().parse(_GBNF_PART.sub(_gbnf_part, grammar))
    except Exception as error:  # the parser raises Exception, and IndexError at the end of the text
        raise ValueError(str(error)) from error
    names: dict[str, str] = {}

    def use(name: str) -> Any:
        """Give a rule a new name, link it to the rules to which it refers, and return it."""
        if name not in rules:
            raise ValueError(f"the rule {name!r} is not defined")
        rule = rules[name]
        if name not in names:
            rule.name = names[name] = f"gbnf_{len(names)}"
            rule.alternatives = rule.alternatives.simplify()
            link(rule.alternatives)
            if rule.alternatives.is_terminal():
                rule.rule_is_terminal, rule.name = True, rule.name.upper()
        return rule

    def link(node: Any) -> None:
        if isinstance(node, gbnf.RuleRefNode):
            node.target = use(node.name)
        for child in node.children():
            link(child)

    lines = [f"start: {use('root').name}"]

    def join_terminals(node: Any) -> None:
        """Make one terminal of adjacent ones: llguidance takes the longest text of each, even if another follows."""
        for child in node.children():
            join_terminals(child)
        if not isinstance(node, gbnf.SequenceNode):
            return
        nodes: list[Any] = []
        for is_terminal, group in itertools.groupby(node.nodes, key=lambda child: child.is_terminal()):
            parts = list(group)
            if is_terminal and len(parts) > 1:
                lines.append(f"JOINED_{len(lines)}: {gbnf.SequenceNode(parts)}")
                parts = [gbnf.RuleRefNode(lines[-1].partition(":")[0])]
            nodes += parts
        node.nodes = nodes

    for rule in map(rules.__getitem__, names):
        if not rule.rule_is_terminal:
            join_terminals(rule)
        lines.append(str(rule))
    return "%lark {\n" + "\n".join(lines) + "\n}"


def _gbnf_part(match: re.Match[str]) -> str:
    """A part of GBNF, rewritten without what the converter of llguidance does not know."""
    text = match[0]
    if text == ".":
        return f"[\\x00-{chr(0x10FFFF)}]"
    if text[0] == "#":
        return ""
    # In a class of a regular expression, && and ~~ would be operators.
    return _ESCAPE.sub(_gbnf_escape, re.sub(r"([&~])\1+", r"\1", text) if text[0] == "[" else text)


def _gbnf_escape(match: re.Match[str]) -> str:
    code = int(match[1] or match[2] or match[3] or "0", 16)
    return chr(min(code, 0x10FFFF)) if code >= 0x80 else f"\\x{code:02x}" if match.lastindex else match[0]


# JSON Schemas


def normalized(schema: Any) -> Any:
    """A schema in the keywords that llguidance knows.

    A keyword that is null is absent, unknown formats are annotations, and `nullable` adds a type. An object that
    declares properties gets no others, unless the schema says that it may have others.
    """
    text = json.dumps(schema)
    result = json.loads(text)
    _normalize(result, is_closed=not _COMBINED & set(re.findall(r'"(\w+)": ', text)))
    return result


def _normalize(node: Any, *, is_closed: bool) -> None:
    if not isinstance(node, dict):
        return
    for keyword, value in list(node.items()):
        is_unknown_format = keyword == "format" and str(value) not in _FORMATS
        is_default = keyword == "uniqueItems" and value is False
        is_absent = value is None and keyword not in ("const", "default")
        if keyword == "x-guidance" or is_unknown_format or is_default or is_absent:
            del node[keyword]
    if node.get("nullable") is True and "type" in node:
        types = node["type"] if isinstance(node["type"], list) else [node["type"]]
        node["type"] = [*types, *({"null"} - set(map(str, types)))]
    # If several schemas apply to one object, each closed one would refuse the properties of the others.
    is_alone = not node.keys() & {"anyOf", "oneOf", "$ref", "additionalProperties"}
    names, required = node.get("properties"), node.get("required", [])
    are_known = isinstance(names, dict) and isinstance(required, list) and set(map(str, required)) <= names.keys()
    if is_closed and is_alone and are_known:
        node["additionalProperties"] = False
    for _, child in _children(node):
        _normalize(child, is_closed=is_closed)


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside a schema, each with the JSON pointer to it."""
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if keyword in _ONE and isinstance(value, dict):
            yield f"/{keyword}", value
        elif keyword in _ONE | _SEVERAL and isinstance(value, (dict, list)):
            for name, child in value.items() if isinstance(value, dict) else enumerate(value):
                yield f"/{keyword}/{str(name).replace('~', '~0').replace('/', '~1')}", child


def loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the keywords that llguidance does not enforce; `oneOf` is `anyOf`."""
    return {**schema, "x-guidance": {"lenient": True, "coerce_one_of": True}}


def json_rule(schema: Any) -> str:
    """The body of a rule: JSON that matches a normalized schema."""
    if schema is True:
        schema = {}
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": {**schema.get("x-guidance", {}), "whitespace_pattern": _SPACE}}
    return f"%json {json.dumps(schema)}"


def error_in(grammar: str) -> str:
    """Why llguidance refuses a grammar; "" if it accepts it."""
    from llguidance import LLMatcher

    # The reason comes before a position in the notation of llguidance.
    reason = re.sub(r"^(at )?\d+\(\d+\): ", "", re.split(r"\n +\d+ \| ", LLMatcher.validate_grammar(grammar))[0])
    return reason.removeprefix("failed to compile JSON schema: ").strip()


def _inexact(value: Any) -> int | None:
    """An integer of a schema that llguidance would round; None if there is none."""
    if isinstance(value, dict):
        value = [item for name, item in value.items() if name not in ("default", "example", "examples")]
    if isinstance(value, list):
        return next((found for item in value if (found := _inexact(item)) is not None), None)
    return value if isinstance(value, int) and abs(value) > _MAX_INTEGER else None


def error_place(schema: Any) -> tuple[str, str]:
    """The JSON pointer of the innermost subschema that is refused, and the reason; "" if there is no error."""
    n_tried = itertools.count()
    definitions = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}

    def error_of(node: Any) -> str:
        if next(n_tried) > _MAX_TRIED:
            return ""
        integer = _inexact(node)
        if integer is not None:
            return f"{integer} is larger than 2^53, so it would be rounded"
        return error_in("start: " + json_rule({**definitions, **node} if isinstance(node, dict) else node))

    node, pointer, reason = schema, "", error_of(schema)
    while reason:
        found = next(((name, child, error) for name, child in _children(node) if (error := error_of(child))), None)
        if found is None:
            break
        name, node, reason = found
        pointer += name
    keyword = re.search(r'Unimplemented keys: \["([^"]+)"', reason)
    return (f"{pointer}/{keyword[1]}" if keyword else pointer), reason
