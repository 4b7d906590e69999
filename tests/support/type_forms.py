"""The types that the client converts to schemas and builds values of, as one table for all versions of Python.

`python -m tests.support.type_forms` checks the table with the Python that runs it, and needs the standard library only.
"""

from __future__ import annotations

import collections
import collections.abc
import datetime
import decimal
import enum
import functools
import pathlib
import sys
import traceback
import typing
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Literal, NewType, Optional, Set, Tuple, TypedDict, Union

from localchat.errors import DoesNotFit
from localchat.schema.targets import build, json_schema
from tests.support import type_forms_base as base

STRING, INTEGER, NUMBER, NULL = ({"type": name} for name in ("string", "integer", "number", "null"))
MONEY = {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}

UserId = NewType("UserId", int)
Color = enum.Enum("Color", {"RED": "red", "BLUE": "blue"})


def any_of(*schemas: Any) -> Any:
    return {"anyOf": list(schemas)}


def array(items: Any, **keywords: Any) -> Any:
    return {"type": "array", "items": items, **keywords}


def pair(*items: Any) -> Any:
    every = items[0] if items[0] == items[1] else any_of(*items)
    return {**array(every), "prefixItems": list(items), "minItems": 2, "maxItems": 2}


@dataclass
class Node:
    value: int
    children: list[Node | None] | None = None
    names: dict[str, int | str] | None = None
    known: ClassVar[int | None] = 0


@dataclass
class Record(base.BaseRecord):
    """A record, whose first fields another module declares."""

    size: int | Literal["a|b", "any"] = "any"
    tags: List[str] = field(default_factory=list)


class Payment(base.OptionalPayment):
    payer: Color | None


Functional = TypedDict("Functional", {"class": "int | None", "is-paid": bool})


def modern(
    numbers: list[int | None],
    text: str | None = None,
    *,
    nested: Dict[str, "list['Node | None']"] = {},  # noqa: B006, UP037
    color: Color | Literal["none"] = "none",
    described: typing.Annotated[int | str, "a|b", "other"] = 0,
) -> Unknown:  # type: ignore[name-defined]  # noqa: F821  # Results are often types of `if TYPE_CHECKING`.
    """Do it."""


class Service:
    def method(self, number: int | None) -> None:
        """Do it."""

    @classmethod
    def of(cls, number: int | None) -> None:
        """Do it."""

    @staticmethod
    def plain(number: int | None) -> None:
        """Do it."""

    def __call__(self, number: int | None) -> None:
        """Do it."""


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    return call


def strings(number, names, node):
    """A function whose annotations are strings in objects, as of code without `from __future__ import annotations`."""


strings.__annotations__ = {
    "number": Optional["int | None"],
    "names": List["str | int"],
    "node": Union["Node", "int | None"],
}


def schema_object(required: list[str], **properties: Any) -> Any:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


NUMBER_ONLY = schema_object(["number"], number=any_of(INTEGER, NULL))

# Each with its name, the target, the schema (None if the value is enough), JSON, and its value (None for the JSON).
FORMS: list[tuple[str, Any, Any, Any, Any]] = [
    ("union", Union[int, str], any_of(INTEGER, STRING), "a", None),
    ("optional", Optional[int], any_of(INTEGER, NULL), None, None),
    ("any", Any, {}, [1, {"a": None}], None),
    ("object", object, {}, [1], None),
    ("none", None, NULL, None, None),
    ("new type", UserId, INTEGER, 3.0, 3),
    ("optional new type", Optional[UserId], any_of(INTEGER, NULL), 3, None),
    ("list", list, array({}), [1, "a"], None),
    ("list of typing", List[Optional[int]], array(any_of(INTEGER, NULL)), [1, None], None),
    ("list of builtins", list[Optional[int]], array(any_of(INTEGER, NULL)), [1, None], None),
    ("sequence", collections.abc.Sequence[int], array(INTEGER), [1], None),
    ("sequence of typing", typing.Sequence[int], array(INTEGER), [1], None),
    ("collection", collections.abc.Collection[int], array(INTEGER), [1], None),
    ("mutable sequence", typing.MutableSequence[int], array(INTEGER), [1], None),
    ("deque", collections.deque, array({}), [1], collections.deque([1])),
    ("deque of typing", typing.Deque[int], array(INTEGER), [1], collections.deque([1])),
    ("set", set[int], array(INTEGER, uniqueItems=True), [1, 2], {1, 2}),
    ("set of typing", Set[int], array(INTEGER, uniqueItems=True), [1, 2], {1, 2}),
    ("abstract set", typing.AbstractSet[int], array(INTEGER, uniqueItems=True), [1, 2], {1, 2}),
    ("frozenset", frozenset[int], array(INTEGER, uniqueItems=True), [1], frozenset({1})),
    ("tuple", Tuple[int, str], pair(INTEGER, STRING), [1, "a"], (1, "a")),
    ("tuple of builtins", tuple[int, int], pair(INTEGER, INTEGER), [1, 2], (1, 2)),
    ("tuple of any length", tuple[int, ...], array(INTEGER), [1, 2], (1, 2)),
    (
        "dict",
        dict[str, Optional[int]],
        {"type": "object", "additionalProperties": any_of(INTEGER, NULL)},
        {"a": 1},
        None,
    ),
    ("mapping", typing.Mapping[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": 1}, None),
    ("mutable mapping", typing.MutableMapping[str, int], None, {"a": 1}, None),
    ("literal", Literal["a|b", 1, None], {"enum": ["a|b", 1, None]}, "a|b", None),
    ("literal of an enum", Literal[Color.RED], {"type": "string", "enum": ["red"]}, "red", Color.RED),
    ("enum", Color, {"type": "string", "enum": ["red", "blue"]}, "red", Color.RED),
    ("annotated", typing.Annotated[int, 3, "a number"], {**INTEGER, "description": "a number"}, 3, None),
    ("unhashable metadata", typing.Annotated[int, [1]], INTEGER, 3, None),
    ("final", typing.Final[int], INTEGER, 3, None),
    ("date-time", datetime.datetime, None, "2024-05-06T07:08:09", datetime.datetime(2024, 5, 6, 7, 8, 9)),
    ("date", datetime.date, None, "2024-05-06", datetime.date(2024, 5, 6)),
    ("time", datetime.time, None, "07:08:09.5", datetime.time(7, 8, 9, 500000)),
    ("uuid", uuid.UUID, None, str(uuid.UUID(int=1)), uuid.UUID(int=1)),
    ("decimal", decimal.Decimal, MONEY, "1.50", decimal.Decimal("1.50")),
    ("path", pathlib.Path, None, "a/b", pathlib.Path("a/b")),
    (
        "recursive dataclass",
        Node,
        None,
        {"value": 1, "children": [None, {"value": 2}], "names": {"a": 1}},
        Node(1, [None, Node(2)], {"a": 1}),
    ),
    (
        "dataclass that inherits from another module",
        Record,
        None,
        {"price": "1", "note": {"text": "a"}, "size": 3},
        Record(decimal.Decimal(1), {"text": "a"}, 3),
    ),
    (
        "typed dict that inherits from another module",
        Payment,
        None,
        {"price": "1", "notes": ["a", {"text": "b"}], "payer": "red"},
        {"price": decimal.Decimal(1), "notes": ["a", {"text": "b"}], "payer": Color.RED},
    ),
    (
        "optional key that inherits from another module",
        Payment,
        None,
        {"price": None, "notes": [], "payer": None, "tip": 3},
        None,
    ),
    (
        "functional typed dict",
        Functional,
        {
            "type": "object",
            "properties": {"class": any_of(INTEGER, NULL), "is-paid": {"type": "boolean"}},
            "required": ["class", "is-paid"],
        },
        {"class": None, "is-paid": True},
        None,
    ),
    (
        "function",
        modern,
        None,
        {"numbers": [1, None], "nested": {"a": [None, {"value": 1}]}, "described": "a"},
        {"numbers": [1, None], "nested": {"a": [None, Node(1)]}, "described": "a"},
    ),
    (
        "function of another module",
        base.pay,
        None,
        {"price": "1", "notes": ["a"]},
        {"price": decimal.Decimal(1), "notes": ["a"]},
    ),
    (
        "function with strings in objects",
        strings,
        None,
        {"number": None, "names": [1, "a"], "node": {"value": 1}},
        {"number": None, "names": [1, "a"], "node": Node(1)},
    ),
    ("method", Service().method, NUMBER_ONLY, {"number": None}, None),
    ("class method", Service.of, NUMBER_ONLY, {"number": 3}, None),
    ("static method", Service.plain, NUMBER_ONLY, {"number": 3}, None),
    ("callable object", Service(), NUMBER_ONLY, {"number": 3}, None),
    ("wrapped function", logged(Service.plain), NUMBER_ONLY, {"number": 3}, None),
    ("partial function", functools.partial(modern, numbers=[1]), None, {"text": None}, None),
    ("builtin", round, schema_object(["number"], number={}, ndigits={"default": None}), {"number": 1.5}, None),
    (
        "builtin with keywords",
        pow,
        schema_object(["base", "exp"], base={}, exp={}, mod={"default": None}),
        {"base": 2, "exp": 3},
        None,
    ),
]

if sys.version_info >= (3, 10):
    FORMS += [
        ("bar", int | str, any_of(INTEGER, STRING), "a", None),
        ("bar with none", int | None, any_of(INTEGER, NULL), None, None),
        ("bar in a list", list[int | None], array(any_of(INTEGER, NULL)), [None], None),
        ("bar with a class", Node | None, None, {"value": 1}, Node(1)),
        ("bar with an enum", Color | None, None, "red", Color.RED),
        ("bar in annotated", typing.Annotated[int | None, "x"], {**any_of(INTEGER, NULL), "description": "x"}, 1, None),
        (
            "bar of annotations at run time",
            dataclass(type("Bare", (), {"__annotations__": {"a": int | None}})),
            None,
            {"a": 1},
            ...,
        ),
    ]


def failures() -> list[str]:
    """What is wrong, for each row that is."""
    found = []
    for name, target, schema, raw, value in FORMS:
        try:
            made = json_schema(target)
            if schema is not None and made != schema:
                found.append(f"{name}: the schema is {made}")
            json_schema(target, strict=True)
            built, expected = build(target, raw), raw if value is None else value
            if expected is not ... and (built != expected or type(built) is not type(expected)):
                found.append(f"{name}: the value is {built!r}")
        except (DoesNotFit, TypeError, AttributeError, NameError):
            found.append(f"{name}: {traceback.format_exc().splitlines()[-1]}")
    return found


if __name__ == "__main__":
    print("\n".join(failures()))
