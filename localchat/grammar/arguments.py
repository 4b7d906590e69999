"""Arguments that are written one by one, each in tags or the like and its value as bare text or as JSON.

Bare text has no quotes, so whoever reads it tells by the schema what it is. What would not be read back as a
value that fits the schema is not written so: then there is no such grammar, and the arguments are better
written as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Optional

from ..dialects.call_layout import ALL_TYPES, STRING, ArgumentsLayout, ValueLayout
from .any_order import MAX_ANY_ORDER, in_any_order
from .convert import Converter
from .document import Document, Place
from .errors import TooLarge
from .free_text import free_text
from .json_text import PlainEncoding
from .language import ANY_TEXT, Language, both, language_rules, other
from .notations import NOTATIONS, without
from .rules import EMPTY, NEVER, Expr, Literal, Rules, alt, seq
from .shapes import Branch, ObjectShape, Places, Shapes, array_shape, keywords
from .texts import written

# A string that nobody takes for another value, however it is read.
_SURELY_TEXT = re.compile(r"(?!(true|false|none|null)\Z)[A-Za-z][\w .-]*", re.IGNORECASE)

# The names that lead to a value within the arguments, None for the items of a list.
Path = tuple[Optional[str], ...]
# As which types a value at such a path (one argument for each name) is read where it is bare text.
ReadTypes = Callable[..., frozenset[str]]


def arguments_expr(
    rules: Rules,
    parameters: object,
    layout: ArgumentsLayout,
    read_types: ReadTypes,
    path: str = "#",
) -> Expr | None:
    """The arguments that fit a schema, if all of it can be kept to. Raises SchemaError."""
    return _Arguments(rules, Shapes(document := Document(parameters, path)), layout, read_types).expr(document.root)


class _Inexact(Exception):
    """What is written would not be read back as what the schema asks for."""


class _Arguments:
    def __init__(self, rules: Rules, shapes: Shapes, layout: ArgumentsLayout, read_types: ReadTypes):
        self._rules = rules
        self._shapes = shapes
        self._layout = layout
        self._read_types = read_types
        self._values = Converter(shapes, NOTATIONS[layout.notation](rules))
        # Any text that may be written in a way, with the mark that ends it, made once.
        self._texts: dict[ValueLayout, Expr] = {}
        # What is being written, so that what contains itself comes to an end.
        self._open: set[Places] = set()

    def expr(self, root: Place) -> Expr | None:
        try:
            members = self._members((root,), ())
        except (_Inexact, TooLarge):
            return None
        layout = self._layout
        return seq(written(self._rules, layout.begin), members, written(self._rules, layout.end))

    def _members(self, places: Places, path: Path) -> Expr:
        shape = self._shape(places)
        pairs = [(self._declared(shape, (*path, name)), name in shape.required) for name in shape.declared]
        return self._listed(pairs)

    def _shape(self, places: Places) -> ObjectShape:
        branches = self._shapes.branches(places)
        if len(branches) != 1 or branches[0].values is not None or branches[0].not_names or not branches[0].places:
            raise _Inexact
        shape = self._shapes.object_shape(branches[0].places)
        is_countable = shape.high is None and shape.low <= len(shape.required)
        if "object" not in branches[0].types or not is_countable or not (shape.declared or shape.is_closed()):
            raise _Inexact
        if self._has_other_names(shape):
            raise _Inexact
        return shape

    def _has_other_names(self, shape: ObjectShape) -> bool:
        """Whether names that are not declared have a schema: of those only JSON can write any.

        A bare `true` says no more than nothing does: calls are then written as the model knows it.
        """
        kinds = [*((pattern,) for pattern in shape.patterns()), *([] if shape.is_closed() else [()])]
        others = [self._shapes.at_patterns(shape.members, kind) for kind in kinds]
        told = [places for places in others if any(place.schema is not True for place in places)]
        return any(self._shapes.branches(places) for places in told)

    def _listed(self, pairs: list[tuple[Expr, bool]]) -> Expr:
        """The pairs in any order, or if they are many in theirs: `first` is what may come before any pair then,
        `more` what may come after one.
        """
        separator = written(self._rules, self._layout.separator)
        if 1 < len(pairs) <= MAX_ANY_ORDER:
            none = NEVER if any(is_required for _, is_required in pairs) else EMPTY
            return alt(none, in_any_order(self._rules, pairs, separator))
        first, more = EMPTY, EMPTY
        for pair, is_required in reversed(pairs):
            more = self._rules.add("arguments", more) if more != EMPTY else more
            first = alt(seq(pair, more), NEVER if is_required else first)
            more = alt(seq(separator, pair, more), NEVER if is_required else more)
        return first

    def _declared(self, shape: ObjectShape, path: Path) -> Expr:
        name = str(path[-1])
        if not re.fullmatch(self._layout.names, name) or not self._shapes.fits(shape.names, name):
            raise _Inexact
        return self._pair(self._shapes.at_name(shape.members, name), name, path)

    def _pair(self, places: Places, name: str, path: Path) -> Expr:
        values = alt(*(self._value(places, name, path, way) for way in self._layout.values))
        if values == NEVER:
            raise _Inexact
        before, after = (written(self._rules, text, name) for text in (self._layout.before_key, self._layout.after_key))
        return seq(before, Literal(name), after, values)

    def _value(self, places: Places, name: str, path: Path, way: ValueLayout) -> Expr:
        if way.types != ALL_TYPES:
            restriction = Place(f"#as-{'-'.join(sorted(way.types))}", {"type": sorted(way.types)})
            places = (*places, restriction)
        branches = self._shapes.branches(places)
        start, end = (written(self._rules, text, name) for text in (way.start, way.end))
        # Where the way itself says what it is for, the schema is not asked how to read it.
        tells = way.types != ALL_TYPES and way.tells_type
        read = way.types if tells else self._read_types(*path)
        if not branches or not (read <= way.types):
            return NEVER
        if not way.mark:
            return seq(start, self._on_line(self._values.value(places)), end)
        nested = self._nested(places, path, read)
        if nested is not None:
            return seq(start, nested, end)
        if not read & STRING:
            return seq(start, self._on_line(alt(self._values.value(places), *_words(branches))), end)
        if all(branch.values is not None for branch in branches):
            return seq(start, self._on_line(self._one_of(branches, way, read)), end)
        language: Language = ANY_TEXT
        if read == STRING:
            language = self._shapes.names(places) or ANY_TEXT
        elif not all(any(_is_open(branch, kind) for branch in branches) for kind in read):
            raise _Inexact
        if language == ANY_TEXT:
            return seq(start, self._up_to_mark(way), written(self._rules, way.end.removeprefix(way.mark), name))
        text = language_rules(self._rules, both(language, _bare_texts(way)), PlainEncoding(), name)
        # Of two line breaks one is not part of the text, so there must be one that is not.
        own_lines = Literal("\n") if self._layout.on_lines else EMPTY
        return seq(start, own_lines, text, own_lines, end)

    def _nested(self, places: Places, path: Path, read: frozenset[str]) -> Expr | None:
        """An object or a list written as arguments are; None if it is not, or would not be read back as it was."""
        places = self._shapes.direct(places)
        if not self._layout.item or read not in ({"object"}, {"array"}) or places in self._open:
            return None
        self._open.add(places)
        try:
            return self._members(places, path) if read == {"object"} else self._items(places, path)
        except (_Inexact, TooLarge):
            return None
        finally:
            self._open.discard(places)

    def _items(self, places: Places, path: Path) -> Expr:
        branches = self._shapes.branches(places)
        if len(branches) != 1 or branches[0].values is not None or branches[0].types != {"array"}:
            raise _Inexact
        shape = array_shape(branches[0].places)
        if shape.unique or shape.contained or shape.n_prefix or not shape.item(0):
            raise _Inexact
        item = self._rules.add("item", self._pair(shape.item(0), self._layout.item, (*path, None)))
        return self._rules.repeat(item, shape.low, shape.high)

    def _one_of(self, branches: tuple[Branch, ...], way: ValueLayout, read: frozenset[str]) -> Expr:
        """One of the values of a list."""
        values = [value for branch in branches for value in branch.values or ()]
        for text in (value for value in values if isinstance(value, str)):
            is_plain = way.mark not in text and text == text.strip("\n")
            is_another = way.not_start and text.startswith(way.not_start)
            if not is_plain or is_another or not (read == STRING or _SURELY_TEXT.fullmatch(text)):
                raise _Inexact
        return alt(*map(self._bare, values))

    def _bare(self, value: Any) -> Expr:
        if isinstance(value, str):
            return Literal(value) if value else EMPTY
        return alt(self._values.exactly(value), *_word(value))

    def _up_to_mark(self, way: ValueLayout) -> Expr:
        if way not in self._texts:
            self._texts[way] = self._any_text(way)
        return self._texts[way]

    def _any_text(self, way: ValueLayout) -> Expr:
        if not way.not_start:
            return free_text(self._rules, {way.mark: EMPTY}, may_end=False)
        return seq(language_rules(self._rules, _bare_texts(way), PlainEncoding(), "text"), Literal(way.mark))

    def _on_line(self, value: Expr) -> Expr:
        if not self._layout.on_lines or value == NEVER:
            return value
        line_break = self._rules.repeat(Literal("\n"), 0, 1)
        return seq(line_break, value, line_break)


def _bare_texts(way: ValueLayout) -> Language:
    """The texts that are read back as they are."""
    another = seq(Literal(way.not_start), ANY_TEXT) if way.not_start else NEVER
    return both(without(way.mark), other(another))


def _words(branches: tuple[Branch, ...]) -> list[Expr]:
    """Python's words for such values, which some templates print."""
    return [word for branch in branches for value in _constants(branch) for word in _word(value)]


def _constants(branch: Branch) -> list[Any]:
    if branch.values is not None:
        return list(branch.values)
    kinds = (("null", None), ("boolean", False), ("boolean", True))
    return [value for kind, value in kinds if kind in branch.types and value not in branch.not_values]


def _word(value: object) -> list[Expr]:
    return [Literal(str(value))] if value is None or isinstance(value, bool) else []


def _is_open(branch: Branch, kind: str) -> bool:
    """Whether every value of a type fits."""
    if branch.values is not None or branch.not_values or branch.not_names:
        return False
    kinds = {"integer", "number"} if kind == "integer" else {kind}
    says = (keywords(place) or frozenset() for place in branch.places)
    return bool(kinds & branch.types) and all(found <= {"type", "nullable"} for found in says)
