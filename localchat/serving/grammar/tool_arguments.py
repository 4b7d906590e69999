"""Expressions for tool arguments that are written one by one between tags, with values as bare text or as JSON.

Bare text has no quotes: the parser chooses the type of the value by the schema. A value may be bare text only if the
parser turns this text into a value that matches the schema. If a layout cannot enforce a schema, `arguments_expr`
returns None, and the caller uses one JSON object for the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Optional

from ..chat.dialects.call_layout import ALL_TYPES, STRING, ArgumentsLayout, ValueLayout
from .any_order import MAX_ANY_ORDER, in_any_order
from .call_notations import notation_of
from .errors import TooLarge, errors_located
from .excluded_markers import exactly_without_markers, without_marker
from .expressions import EMPTY, NEVER, Expr, Literal, alt, seq
from .free_text import free_text
from .gbnf import Rules
from .intersection import Branch
from .layout_text import layout_text
from .merged_keywords import (
    AllOf,
    ObjectKeywords,
    array_keywords,
    object_keywords,
    property_schemas,
    undeclared_property_schemas,
)
from .regular_languages import ANY_TEXT, Language, PlainEncoding, complement, intersection, language_expr
from .schema_nodes import SchemaDocument, SchemaNode
from .schema_rules import SchemaConverter

# Strings that no parser converts to a value of another type.
_CERTAINLY_TEXT = re.compile(r"(?!(true|false|none|null)\Z)[A-Za-z][\w .-]*", re.IGNORECASE)

# The names on the way to a value within the arguments; None stands for the items of an array.
Path = tuple[Optional[str], ...]
# Returns the types that the parser may give a value in bare text; its positional arguments are a path.
ParsedTypes = Callable[..., frozenset[str]]


def arguments_expr(
    rules: Rules,
    parameters: object,
    layout: ArgumentsLayout,
    parsed_types: ParsedTypes,
    *,
    notation: str,
    end_marker: str,
    path: str,
) -> Expr | None:
    """The arguments that match a schema; None if the layout cannot enforce the schema. Raises SchemaError.

    See `schema_rule` for `notation`, `end_marker` and `path`.
    """
    with errors_located(path):
        document = SchemaDocument(parameters, path)
        converter = SchemaConverter(document, notation_of(rules, notation, None, end_marker))
        return _Arguments(converter, layout, parsed_types).expr(document.root)


class _NotExact(Exception):
    """The layout cannot enforce the schema: it cannot write some value, or a text would be parsed as a wrong value."""


class _Arguments:
    """Converts the schema of the arguments.

    A method raises _NotExact if the layout cannot enforce the schema, unless its docstring states a result for this.
    """

    def __init__(self, converter: SchemaConverter, layout: ArgumentsLayout, parsed_types: ParsedTypes):
        self._converter = converter
        self._rules = converter.rules
        self._resolver = converter.resolver
        self._layout = layout
        self._parsed_types = parsed_types
        # Intersections that are being converted, to stop at one that contains itself.
        self._open: set[AllOf] = set()

    def expr(self, root: SchemaNode) -> Expr | None:
        try:
            return self._properties((root,), ())
        except (_NotExact, TooLarge):
            return None

    # Objects and arrays

    def _properties(self, nodes: AllOf, path: Path) -> Expr:
        keywords = self._object_keywords(nodes)
        pairs = [(self._declared(keywords, (*path, name)), name in keywords.required) for name in keywords.declared]
        return self._listed(pairs)

    def _object_keywords(self, nodes: AllOf) -> ObjectKeywords:
        """The keywords of an object, if this layout can write every object that matches; otherwise raises _NotExact."""
        branches = self._resolver.branches(nodes)
        if len(branches) != 1 or branches[0].values is not None or branches[0].not_names or not branches[0].nodes:
            raise _NotExact
        keywords = object_keywords(branches[0].nodes)
        has_names = bool(keywords.declared) or keywords.is_closed()
        if "object" not in branches[0].types or keywords.limits_count() or not has_names:
            raise _NotExact
        if self._has_undeclared_names(keywords):
            raise _NotExact
        return keywords

    def _has_undeclared_names(self, keywords: ObjectKeywords) -> bool:
        """Whether undeclared names have a schema: only a JSON object can have such names.

        Undeclared names with the schema `true` do not count, like those without a schema: none is generated.
        """
        matching: list[tuple[str, ...]] = [(pattern,) for pattern in keywords.patterns()]
        if not keywords.is_closed():
            matching.append(())
        schemas = [undeclared_property_schemas(keywords.nodes, patterns) for patterns in matching]
        restricted = [nodes for nodes in schemas if any(node.schema is not True for node in nodes)]
        return any(self._resolver.branches(nodes) for nodes in restricted)

    def _listed(self, pairs: list[tuple[Expr, bool]]) -> Expr:
        """The pairs in any order, or in the order of the schema if there are more than `MAX_ANY_ORDER`."""
        separator = layout_text(self._rules, self._layout.separator)
        if 1 < len(pairs) <= MAX_ANY_ORDER:
            none = NEVER if any(is_required for _, is_required in pairs) else EMPTY
            return alt(none, in_any_order(self._rules, pairs, separator))
        # Made from the last pair to the first: `first` is the text from this pair or a later one on, and `rest` is the
        # same after an earlier pair, with a separator before it.
        first, rest = EMPTY, EMPTY
        for pair, is_required in reversed(pairs):
            rest = self._rules.add("arguments", rest) if rest != EMPTY else rest
            first = alt(seq(pair, rest), NEVER if is_required else first)
            rest = alt(seq(separator, pair, rest), NEVER if is_required else rest)
        return first

    def _declared(self, keywords: ObjectKeywords, path: Path) -> Expr:
        name = str(path[-1])
        if not re.fullmatch(self._layout.names, name) or not self._resolver.accepts(keywords.names, name):
            raise _NotExact
        return self._pair(property_schemas(keywords.nodes, name), name, path)

    def _pair(self, nodes: AllOf, name: str, path: Path) -> Expr:
        values = alt(*(self._value(nodes, name, path, layout) for layout in self._layout.values))
        if values == NEVER:
            raise _NotExact
        before = layout_text(self._rules, self._layout.before_key, name)
        after = layout_text(self._rules, self._layout.after_key, name)
        return seq(before, Literal(name), after, values)

    def _nested(self, nodes: AllOf, path: Path, types: frozenset[str]) -> Expr | None:
        """An object or an array that is written like the arguments; None if the layout cannot enforce its schema."""
        nodes = self._resolver.simplified(nodes)
        if not self._layout.item or types not in ({"object"}, {"array"}) or nodes in self._open:
            return None
        self._open.add(nodes)
        try:
            return self._properties(nodes, path) if types == {"object"} else self._items(nodes, path)
        except (_NotExact, TooLarge):
            return None
        finally:
            self._open.discard(nodes)

    def _items(self, nodes: AllOf, path: Path) -> Expr:
        branches = self._resolver.branches(nodes)
        if len(branches) != 1 or branches[0].values is not None or branches[0].types != {"array"}:
            raise _NotExact
        keywords = array_keywords(branches[0].nodes)
        if keywords.is_unique or keywords.contained or keywords.n_prefix or not keywords.item(0):
            raise _NotExact
        item = self._rules.add("item", self._pair(keywords.item(0), self._layout.item, (*path, None)))
        return self._rules.repeat(item, keywords.min_items, keywords.max_items)

    # Values

    def _value(self, nodes: AllOf, name: str, path: Path, layout: ValueLayout) -> Expr:
        """A value in one of the layouts; NEVER if this layout is not used for the schema."""
        if layout.types != ALL_TYPES:
            types = sorted(layout.types)
            nodes = (*nodes, SchemaNode(f"#as-{'-'.join(types)}", {"type": types}))
        branches = self._resolver.branches(nodes)
        # If the text of the layout names the type, the parser does not use the schema.
        is_typed = layout.types != ALL_TYPES and layout.names_type
        parsed_types = layout.types if is_typed else self._parsed_types(*path)
        if not branches or not parsed_types <= layout.types:
            return NEVER
        start = layout_text(self._rules, layout.start, name)
        end = layout_text(self._rules, layout.end, name)
        if not layout.end_marker:  # JSON
            return seq(start, self._on_lines(self._converter.value(nodes)), end)
        nested = self._nested(nodes, path, parsed_types)
        if nested is not None:
            return seq(start, nested, end)
        if not parsed_types & STRING:  # JSON, since bare text is only for strings
            words = alt(self._converter.value(nodes), *_python_words(branches))
            return seq(start, self._on_lines(words), end)
        if all(branch.values is not None for branch in branches):  # an enum
            return seq(start, self._on_lines(self._one_of(branches, layout, parsed_types)), end)
        language = self._bare_language(nodes, branches, parsed_types)
        if language == ANY_TEXT:
            after_marker = layout_text(self._rules, layout.end.removeprefix(layout.end_marker), name)
            return seq(start, self._up_to_marker(layout), after_marker)
        return seq(start, self._bare_text(language, layout, name), end)

    def _bare_language(self, nodes: AllOf, branches: tuple[Branch, ...], parsed_types: frozenset[str]) -> Language:
        """The texts that the parser converts to values that match the schema."""
        if parsed_types == STRING:
            return self._resolver.strings(nodes)
        if all(any(_allows_all(branch, name) for branch in branches) for name in parsed_types):
            return ANY_TEXT
        raise _NotExact

    def _bare_text(self, language: Language, layout: ValueLayout, name: str) -> Expr:
        """The bare text of the strings of a language."""
        language = exactly_without_markers(intersection(language, _not_another_layout(layout)), (layout.end_marker,))
        text = language_expr(self._rules, language, PlainEncoding(), name)
        # The parser removes one line break on each side, so the layout adds one that is not part of the text.
        line_break = Literal("\n") if self._layout.on_lines else EMPTY
        return seq(line_break, text, line_break)

    def _up_to_marker(self, layout: ValueLayout) -> Expr:
        """Any text and the marker that ends it. `Rules.once` keeps its rules, so that all arguments share them."""
        if not layout.not_start:
            return free_text(self._rules, {layout.end_marker: EMPTY}, may_end=False)
        language = intersection(without_marker(layout.end_marker), _not_another_layout(layout))
        return seq(language_expr(self._rules, language, PlainEncoding(), "text"), Literal(layout.end_marker))

    def _one_of(self, branches: tuple[Branch, ...], layout: ValueLayout, parsed_types: frozenset[str]) -> Expr:
        """One of the values that the schema lists."""
        values = [value for branch in branches for value in branch.values or ()]
        for text in (value for value in values if isinstance(value, str)):
            is_plain = layout.end_marker not in text and text == text.strip("\n")
            is_another_layout = layout.not_start and text.startswith(layout.not_start)
            if not is_plain or is_another_layout or not (parsed_types == STRING or _CERTAINLY_TEXT.fullmatch(text)):
                raise _NotExact
        return alt(*map(self._bare_constant, values))

    def _bare_constant(self, value: Any) -> Expr:
        """A string as bare text, another value as a constant of the notation or as a word of Python."""
        if isinstance(value, str):
            return Literal(value) if value else EMPTY
        return alt(self._converter.notation.constant(value), *_python_word(value))

    def _on_lines(self, value: Expr) -> Expr:
        """The value, with a line break on each side if the layout allows that."""
        if not self._layout.on_lines or value == NEVER:
            return value
        line_break = self._rules.repeat(Literal("\n"), 0, 1)
        return seq(line_break, value, line_break)


def _not_another_layout(layout: ValueLayout) -> Language:
    """The texts that the parser does not mistake for a value in another layout."""
    return complement(seq(Literal(layout.not_start), ANY_TEXT)) if layout.not_start else ANY_TEXT


def _python_words(branches: tuple[Branch, ...]) -> list[Expr]:
    """True, False and None in place of the constants that the schema allows, since some templates print these words."""
    return [word for branch in branches for value in _constants(branch) for word in _python_word(value)]


def _constants(branch: Branch) -> list[Any]:
    if branch.values is not None:
        return list(branch.values)
    constants = (("null", None), ("boolean", False), ("boolean", True))
    return [value for name, value in constants if name in branch.types and value not in branch.not_values]


def _python_word(value: object) -> list[Expr]:
    return [Literal(str(value))] if value is None or isinstance(value, bool) else []


def _allows_all(branch: Branch, name: str) -> bool:
    """Whether every value of a type matches the branch."""
    if branch.values is not None or branch.not_values or branch.not_names:
        return False
    names = {"integer", "number"} if name == "integer" else {name}
    assertions = (node.assertions() or frozenset() for node in branch.nodes)
    return bool(names & branch.types) and all(found <= {"type", "nullable"} for found in assertions)
