"""Grammars in the notation of llguidance: rules and terminals, prepared JSON Schemas, and grammars in GBNF."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from ..api.parts import child_schemas, subschemas, without_null_keywords
from .dialects.call_layout import A_BREAK, A_NUMBER, A_SPACE, AN_ID
from .dialects.values import ALL_TYPES

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
# Keywords whose schemas apply to the same value as the schema that has them.
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
# Keywords that only objects have, and keywords that restrict no value.
_OF_OBJECTS = frozenset(("properties", "required", "additionalProperties", "patternProperties", "propertyNames"))
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "$defs", "definitions", "$comment", "type"))
# Keywords that no grammar enforces.
_NOT_ENFORCED = frozenset(
    ("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames",
     "dependencies", "dependentSchemas", "dependentRequired", "unevaluatedItems", "unevaluatedProperties",
     "$dynamicRef", "$recursiveRef")
)  # fmt: skip
# A schema with none of these keywords of its own is refused for a schema inside it.
_SUSPECTS = frozenset(
    ("pattern", "patternProperties", "minProperties", "maxProperties", "allOf", "anyOf", "oneOf", "enum", "const",
     "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "minItems", "required")
)  # fmt: skip
# A pattern of a few whole names.
_NAMES = re.compile(r"\^(?:([\w-]+)|\((?:\?:)?([\w-]+(?:\|[\w-]+)*)\))\$", re.ASCII)
# The limits of a schema, whose compilation cannot be interrupted: the properties of an object and the patterns of their
# names, for which the time is quadratic, and the items of all lists that have a minimum or maximum.
_MAX_PROPERTIES, _MAX_PATTERNS, _MAX_ITEMS = 3000, 30, 100_000
# The limit of the pairs of a pattern and a property, each of which is compared.
_MAX_NAMES = 5000
# The limit of the branches of `oneOf` that are compared in pairs here; llguidance compares others.
_MAX_BRANCHES = 150
# What may be between the parts of JSON, as in llama.cpp: a space, or a line break with an indentation.
_SPACE = "[ ]|\\n[ ]{0,40}"
# To find the place of an error, this many times the text of the whole schema is compiled, and a minimum of characters.
_MAX_TRIED, _MIN_TRIED = 5, 20_000
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
        position = getattr(error, "pos", None)
        line = position.text.count("\n", 0, position.pos) + 1 if position else grammar.count("\n") + 1
        raise ValueError(f"it is not a grammar in GBNF: see line {line}") from error
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
    ending: set[str] = set()

    def ends(node: Any) -> bool:
        """Whether some text of a node is finite, given the rules that are known to be."""
        if isinstance(node, gbnf.RuleRefNode):
            return node.name in ending
        if isinstance(node, gbnf.RepetitionNode) and node.min_times == 0:
            return True
        if isinstance(node, gbnf.AlternativeNode):
            return any(map(ends, node.alternatives))
        return all(map(ends, node.children()))

    while found := [name for name in names if name not in ending and ends(rules[name].alternatives)]:
        ending.update(found)
    endless = next((name for name in names if name not in ending), None)
    if endless is not None:
        raise ValueError(f"no text of the rule {endless!r} is finite: it needs a part that does not refer to it")

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

    A keyword that is null is absent, unknown formats are annotations, and `nullable` adds a type. A schema with the
    keywords of objects alone is one of objects. An object that declares properties gets no others, unless the schema
    says that it may have others. Names from a short list are properties, so none is repeated.
    """
    return _Normalizer(without_null_keywords(schema)).result


class _Normalizer:
    def __init__(self, root: Any) -> None:
        self._root = root
        # Definitions for use as a part of an object: these are open.
        self._open: dict[str, Any] = {}
        # The number of `oneOf` around the schema. Inside, nothing is closed: a closed object could match one branch
        # where open ones match two.
        self._n_exact = 0
        self.result = self._build(root)
        if self._open:
            self.result["$defs"] = {**self.result.get("$defs", {}), **self._open}

    def _build(self, node: Any, *, is_part: bool = False) -> Any:
        """The schema of a value; as a part of a combination, an object is left open."""
        if not isinstance(node, dict):
            return node
        node = {keyword: value for keyword, value in node.items() if not _is_default(keyword, value)}
        if node.keys() - _ANNOTATIONS == {"allOf"} and len(node["allOf"]) == 1 and "type" not in node:
            (only,) = node.pop("allOf")
            return self._build({**node, **only} if isinstance(only, dict) else only, is_part=is_part)
        if node.get("nullable") is True and "type" in node:
            types = node["type"] if isinstance(node["type"], list) else [node["type"]]
            node["type"] = [*types, *({"null"} - set(types))]
        if (
            not self._n_exact
            and "type" not in node
            and _OF_OBJECTS & node.keys()
            and not {"const", "enum", "$ref"} & node.keys()
        ):
            node["type"] = "object"
        _list_names(node)
        branches = node.get("oneOf", [])
        if (
            branches
            and "anyOf" not in node
            and all(_excludes(one, other, self._root) for i, one in enumerate(branches) for other in branches[:i])
        ):
            node = {("anyOf" if keyword == "oneOf" else keyword): value for keyword, value in node.items()}
        own = node.keys() - _ANNOTATIONS
        is_choice = len(own) == 1 and bool(own & {"anyOf", "oneOf", "$ref"})
        parts = list(_parts(node, self._root))
        is_combined = is_part or (len(parts) > 1 and not is_choice)
        new: dict[str, Any] = {}
        for keyword, value in node.items():
            is_inside = is_combined and keyword in _IN_PLACE
            self._n_exact += keyword == "oneOf"
            if keyword == "$ref" and (is_combined or self._n_exact):
                new[keyword] = self._opened(value)
            elif keyword in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
                new[keyword] = {name: self._build(child, is_part=is_inside) for name, child in value.items()}
            elif isinstance(value, list) and keyword in (*_IN_PLACE, "prefixItems", "items"):
                new[keyword] = [self._build(child, is_part=is_inside) for child in value]
            elif keyword in ("additionalProperties", "items", "additionalItems", "not", "if", "then", "else"):
                new[keyword] = self._build(value, is_part=is_inside)
            else:
                new[keyword] = value
            self._n_exact -= keyword == "oneOf"
        if not is_part and not is_choice and not self._n_exact:
            self._close(new, parts)
        return new

    def _opened(self, reference: str) -> str:
        """A reference to the same schema, as a part."""
        target, kind = target_of(reference, self._root), "exactly" if self._n_exact else "as a part"
        name = f"{reference} {kind}".replace("/", ".")
        if target is None:
            return reference
        if name not in self._open:
            self._open[name] = None
            self._open[name] = self._build(target, is_part=True)
        return f"#/$defs/{name.replace('~', '~0').replace('%', '%25').replace(' ', '%20').replace('#', '%23')}"

    def _close(self, new: dict[str, Any], parts: list[dict[str, Any]]) -> None:
        """Allow only the names that the parts of an object declare, if they declare any and allow no others."""
        declares = any(isinstance(part.get("properties"), dict) for part in parts)
        if not declares or any("additionalProperties" in part for part in parts):
            return
        if len(parts) > 1 and any("oneOf" in part for part in (new, *parts[1:])):
            return
        for keyword in ("properties", "patternProperties"):
            names = {name: True for part in parts for name in part.get(keyword, ())}
            if keyword == "properties":
                names.update({name: True for part in parts for name in part.get("required", ())})
            if names or keyword == "properties":
                new[keyword] = {**new.get(keyword, {}), **{n: True for n in names if n not in new.get(keyword, {})}}
        new["additionalProperties"] = False


def _is_default(keyword: str, value: Any) -> bool:
    """Whether a keyword restricts nothing, or is not one of JSON Schema."""
    if keyword == "propertyNames":
        return (
            value is True
            or (isinstance(value, dict) and value.keys() <= _ANNOTATIONS and "type" not in value)
            or (isinstance(value, dict) and value.keys() <= _ANNOTATIONS and "string" in value["type"])
        )
    is_unknown_format = keyword == "format" and str(value) not in _FORMATS
    return keyword == "x-guidance" or is_unknown_format or (keyword == "uniqueItems" and value is False)


def _list_names(node: dict[str, Any]) -> None:
    """Rewrite patterns of a few names as properties, and `propertyNames` as properties or as a pattern."""
    names, others = node.get("propertyNames"), node.get("additionalProperties", True)
    properties, patterns = dict(node.get("properties", {})), dict(node.get("patternProperties", {}))
    for pattern in filter(_NAMES.fullmatch, list(patterns)):
        match, schema = _NAMES.fullmatch(pattern), patterns.pop(pattern)
        for name in (match[1] or match[2]).split("|") if match else ():
            properties[name] = {"allOf": [properties[name], schema]} if name in properties else schema
        node["properties"] = properties
    if isinstance(names, dict) and not patterns:
        own = names.keys() - _ANNOTATIONS
        listed = [names["const"]] if own == {"const"} else names["enum"] if own == {"enum"} else None
        is_pattern = not properties and own and (own == {"pattern"} or own <= {"minLength", "maxLength"})
        if listed is not None and names.get("type", "string") == "string":
            texts = [name for name in listed if isinstance(name, str)]
            node["properties"] = {name: properties.get(name, others) for name in texts}
            node["additionalProperties"] = False
            del node["propertyNames"]
        elif is_pattern:
            length = f"^[\\s\\S]{{{int(names.get('minLength', 0))},{names.get('maxLength', '')}}}$"
            node["patternProperties"] = patterns = {names.get("pattern", length): others}
            node["additionalProperties"] = False
            del node["propertyNames"]
    if "patternProperties" in node:
        node["patternProperties"] = patterns
        if not patterns:
            del node["patternProperties"]


def _has_other_names(node: Any) -> bool:
    """Whether an object may have names other than those that the schema lists."""
    names = isinstance(node, dict) and (node.get("properties") or node.get("required") or node.get("patternProperties"))
    return bool(names) and node.get("additionalProperties", True) is not False


def _excludes(one: Any, other: Any, root: Any) -> bool:
    """Whether it is plain that no value matches both schemas: by the type, or by the value of a required property."""
    one, other = (target_of(node["$ref"], root) if isinstance(node, dict) and "$ref" in node else node
                  for node in (one, other))  # fmt: skip
    if not (isinstance(one, dict) and isinstance(other, dict) and "type" in one and "type" in other):
        return False
    both = [set(node["type"] if isinstance(node["type"], list) else [node["type"]]) for node in (one, other)]
    types = [names | ({"number"} if "integer" in names else set()) for names in both]
    if any(node.get("nullable") for node in (one, other)):
        return False
    if not types[0] & types[1]:
        return True
    for name in set(one.get("required", ())) & set(other.get("required", ())) if both == [{"object"}] * 2 else ():
        schemas = [node.get("properties", {}).get(name) for node in (one, other)]
        found = [
            s.get("enum", [s["const"]] if "const" in s else None) if isinstance(s, dict) else None for s in schemas
        ]
        texts = [set(values) for values in found if values and all(isinstance(value, str) for value in values)]
        if len(texts) == 2 and not texts[0] & texts[1]:
            return True
    return False


def _parts(node: Any, root: Any) -> Iterator[dict[str, Any]]:
    """The schemas that apply to the same value as a schema, with itself, through references."""
    stack, seen = [node], set()
    while stack:
        part = stack.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        stack.append(target_of(part["$ref"], root) if "$ref" in part else None)
        for keyword in _IN_PLACE:
            value = part.get(keyword)
            is_map = keyword.startswith("depend") and isinstance(value, dict)
            stack += value if isinstance(value, list) else value.values() if is_map and value else [value]


def target_of(reference: str, root: Any) -> Any:
    """The schema at a JSON pointer; None if there is none."""
    if not (reference + "/").startswith("#/"):
        return None
    for step in unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        is_index = isinstance(root, list) and step.isdecimal() and int(step) < len(root)
        root = root[int(step)] if is_index else root.get(step) if isinstance(root, dict) else None
    return root


def loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the keywords that llguidance does not enforce; `oneOf` is `anyOf`."""
    return {**schema, "x-guidance": {"lenient": True, "coerce_one_of": True}}


def json_rule(schema: Any) -> str:
    """The body of a rule: JSON that matches a normalized schema."""
    if schema is True:
        schema = {}
    if isinstance(schema, dict):
        options = {**schema.get("x-guidance", {}), "whitespace_pattern": _SPACE}
        if any(_has_other_names(node) for _, node in subschemas(schema)):
            options["json_allowed_escapes"] = 'nrbtf\\"'  # Else a listed name could be written with \u escapes.
        schema = {**schema, "x-guidance": options}
    return f"%json {json.dumps(schema)}"


# What llguidance says about a grammar that it refuses, and what the server says.
_REASONS = (
    (r"oneOf constraints", "the branches of 'oneOf' may overlap"),
    (r"not disjoint|disjoint", "two patterns of 'patternProperties' may match the same name"),
    (r"min/maxProperties", "'minProperties' and 'maxProperties' need all declared properties to be required"),
    (r"circular", "a reference to itself has other keywords beside it"),
    (r"[Uu]nsatisfiable|is empty|no lexeme", "no value matches it"),
    (r"too large|too many|limit|exceed|too big|fuel", "it is too large, or nested too deeply"),
    (r"look-?a|look-?b|backref", "patterns with look-around or back-references are not supported"),
    (r"regex|repetition|character class|escape|unclosed|unopened", "its regular expression is not supported"),
    (r"[Rr]eference|Pointer|[Uu]nresolv|[Rr]etriev|resource", "it has a '$ref' that leads to no part of the schema"),
    (r"number|integer|f64|Decimal|multiple", "a number in it is not supported"),
)


def error_in(grammar: str) -> str:
    """Why a grammar is refused, in the words of the server; "" if it is accepted."""
    from llguidance import LLMatcher

    reason = LLMatcher.validate_grammar(grammar).split("\n")[0]
    words = (text for pattern, text in _REASONS if re.search(pattern, reason))
    return next(words, "it cannot be read as a grammar") if reason else ""


def is_empty(grammar: str, start: str = "") -> bool:
    """Whether no text with this start matches a grammar, which is accepted or is refused for another reason."""
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    if matcher.is_error():
        return False
    n_taken = matcher.try_consume_tokens(list(start.encode())) if start else 0
    # The first 32 bytes of the mask are those of the 256 bytes; the end of the text follows.
    return n_taken < len(start) or not (matcher.is_accepting() or any(matcher.compute_bitmask()[:32]))


def _inexact(value: Any) -> int | None:
    """An integer of a schema that llguidance would round; None if there is none."""
    if isinstance(value, dict):
        value = [item for name, item in value.items() if name not in ("default", "example", "examples")]
    if isinstance(value, list):
        return next((found for item in value if (found := _inexact(item)) is not None), None)
    return value if isinstance(value, int) and abs(value) > _MAX_INTEGER else None


def _has_narrow_bounds(node: dict[str, Any]) -> bool:
    """Whether a number has an exclusive bound near the other one: llguidance includes a whole number there."""
    exclusive = [node.get(f"exclusive{name}", False) for name in ("Minimum", "Maximum")]
    low, high = (
        node.get(name) if isinstance(bound, bool) else bound for name, bound in zip(("minimum", "maximum"), exclusive)
    )
    return exclusive != [False, False] and low is not None and high is not None and 0 < high - low < 1


def _own_error(node: Any, root: Any, *, is_lenient: bool) -> tuple[str, str]:
    """The keyword of a schema that cannot be enforced, and the reason; "" if there is none."""
    if not isinstance(node, dict):
        return "", ""
    missing = next((name for name in sorted(_NOT_ENFORCED & node.keys()) if not is_lenient), "")
    if missing:
        return missing, f"'{missing}' is not supported"
    if str(node.get("$ref", "")).startswith("#/") and target_of(node["$ref"], root) is None:
        return "$ref", f"{node['$ref']!r} leads to no part of the schema"
    inner = {step.split("/")[1] for step, _ in child_schemas(node)}
    integer = _inexact({name: value for name, value in node.items() if name not in inner})
    if integer is not None:
        return "", f"{integer} is larger than 2^53, so it would be rounded"
    properties, patterns = node.get("properties", {}), node.get("patternProperties", {})
    for keyword, limit, n_found in (
        ("properties", _MAX_PROPERTIES, len(properties)),
        ("patternProperties", _MAX_PATTERNS, len(patterns)),
    ):
        if n_found > limit:
            return keyword, f"it has {n_found} names, the limit is {limit}"
    if node.get("type") != "integer" and _has_narrow_bounds(node):
        return "", "an exclusive bound that is less than 1 from the other bound is not supported"
    least, others = node.get("minProperties", 0), node.get("additionalProperties", True) is not False or patterns
    n_free = len(properties.keys() | set(node.get("required", ()))) if not others else None
    if n_free is not None and least > n_free:
        return "minProperties", f"'minProperties' is {least}, and the number of possible names is {n_free}"
    if others and not is_lenient and least > max(1, len(node.get("required", ())) + 1):
        return "minProperties", "'minProperties' of 2 or more can only be enforced for names that are listed"
    return "", ""


def _lacks_names(node: dict[str, Any]) -> bool:
    """Whether no name that is not listed matches a pattern for names, or none is left for other names."""
    patterns, listed = node["patternProperties"], dict.fromkeys(node.get("properties", ()), False)
    others = {"patternProperties": dict.fromkeys(patterns, False), "additionalProperties": True}
    tests = [{"patternProperties": {pattern: True}, "additionalProperties": False} for pattern in patterns]
    for test in [*tests, *([others] if _has_other_names(node) else [])]:
        if is_empty("start: " + json_rule({"type": "object", "properties": listed, "minProperties": 1, **test}), '{"'):
            return True
    return False


def _endless(schema: Any) -> bool:
    """Whether each value of a schema has another one inside it, without end. Raises RecursionError if nested deeply."""
    known: dict[int, bool] = {}

    def ends(node: Any) -> bool:
        if not isinstance(node, dict):
            return True
        if id(node) in known:
            return known[id(node)]
        known[id(node)] = False
        inner = {step: ends(child) for step, child in child_schemas(node)}
        result = "$ref" not in node or target_of(node["$ref"], schema) is None or ends(target_of(node["$ref"], schema))
        for keyword in ("anyOf", "oneOf"):
            branches = [inner[f"/{keyword}/{i}"] for i in range(len(node.get(keyword, ())))]
            result = result and (not branches or any(branches))
        result = result and all(inner[f"/allOf/{i}"] for i in range(len(node.get("allOf", ()))))
        if node.get("type") == "object":
            needed = set(node.get("required", ())) & node.get("properties", {}).keys()
            result = result and all(ends(node["properties"][name]) for name in needed)
        if node.get("type") == "array" and node.get("minItems", 0) > 0:
            result = result and inner.get("/items", True)
        known[id(node)] = result
        return result

    before = -1
    # A schema in a cycle counts as endless at first; each round knows more of those that end.
    while before != sum(known.values()):
        before = sum(known.values())
        known = {key: True for key, value in known.items() if value}
        is_ended = ends(schema)
    return not is_ended


def error_place(schema: Any) -> tuple[str, str]:
    """The JSON pointer of the innermost subschema that is refused, and the reason; "" if there is no error."""
    is_lenient = isinstance(schema, dict) and bool(schema.get("x-guidance", {}).get("lenient"))
    n_items = n_names = n_pairs = 0
    for pointer, node in subschemas(schema):
        keyword, reason = _own_error(node, schema, is_lenient=is_lenient)
        n_items += max(node.get("maxItems", 0), node.get("minItems", 0)) if isinstance(node, dict) else 0
        n_pairs += len(node.get("properties", ())) ** 2 if isinstance(node, dict) else 0
        if not reason and n_pairs > _MAX_PROPERTIES**2:
            reason = (
                f"its large objects have too many properties together; the limit of one object is {_MAX_PROPERTIES}"
            )
        if not reason and n_items > _MAX_ITEMS:
            reason = f"'minItems' and 'maxItems' of the schema add up to {n_items}, the limit is {_MAX_ITEMS}"
        if not reason and isinstance(node, dict) and node.get("patternProperties"):
            n_names += len(node["patternProperties"]) * (len(node.get("properties", ())) + 50)
            if n_names > _MAX_NAMES:
                reason = "it has too many patterns and properties"
            elif _lacks_names(node):
                keyword, reason = "patternProperties", "a pattern matches only names that are in 'properties', or all"
        if reason:
            return f"{pointer}/{keyword}" if keyword else pointer, reason
    if _endless(schema):
        return "", "no value of it is finite"
    reason = error_in("start: " + json_rule(schema))
    if not reason or not isinstance(schema, dict):
        return "", reason
    # Without references, so that each part is compiled without the definitions; the innermost parts come first.
    left, parts = max(_MAX_TRIED * len(json.dumps(schema)), _MIN_TRIED), []
    for pointer, node in reversed(list(subschemas(schema))[1:]):
        if isinstance(node, dict) and (_SUSPECTS & node.keys() or not {str(node.get("type", "null"))} <= ALL_TYPES):
            node = {**node, "x-guidance": schema.get("x-guidance", {})}
            text = re.sub(r'"\$ref": "[^"]*"', '"title": ""', json_rule(node))
            left -= len(text)
            if left > 0:
                parts.append((pointer, text))

    def error_of(some: list[tuple[str, str]]) -> str:
        rules = [f"r{i}: {text}" for i, (_, text) in enumerate(some)]
        return error_in("\n".join([f"start: {' | '.join(f'r{i}' for i in range(len(some)))}", *rules]))

    if not parts or not error_of(parts):
        return "", reason
    while len(parts) > 1:
        half = parts[: len(parts) // 2]
        parts = half if error_of(half) else parts[len(parts) // 2 :]
    return parts[0][0], error_of(parts) or reason
