"""Conversion of types to schemas and of JSON to values, and the path in every validation error."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Dict, FrozenSet, List, Literal, NewType, Optional, Set, Tuple, TypedDict, Union
from uuid import UUID

import pytest

from localchat.errors import DoesNotFit
from localchat.schema.docstrings import read_docstring
from localchat.schema.response_format import ExpectedValue
from localchat.schema.targets import build, json_schema
from tests.client.test_vendor import python
from tests.support.documents import ROOT, run
from tests.support.growth import assert_linear

__all__ = ["python"]  # A fixture: used by name.

UserId = NewType("UserId", int)
LOOP = NewType("LOOP", int)
LOOP.__supertype__ = LOOP  # As `type LOOP = LOOP`, which older Pythons cannot parse.
Color = enum.Enum("Color", {"RED": "red", "BLUE": "blue"})
Size = enum.IntEnum("Size", {"SMALL": 1, "LARGE": 2})


@dataclass
class Address:
    street: str
    zip: Optional[str] = None


@dataclass
class Person:
    """Someone.

    Attributes:
        name: What they are called.
    """

    name: str
    age: Annotated[int, "in years"]
    home: Address
    tags: List[str] = field(default_factory=list)
    color: Color = Color.RED
    secret: int = field(default=0, init=False)


@dataclass
class Node:
    value: int
    kids: List[Node] = field(default_factory=list)
    parent: Optional[Node] = None


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError(f"{self.number} is not positive")


class Movie(TypedDict):
    title: str
    year: int


class Loose(TypedDict, total=False):
    title: str


def schema_object(required: List[str], **properties: Any) -> Any:
    return {"type": "object", "properties": properties, "required": required}


def of_format(name: str) -> Any:
    return {"type": "string", "format": name}


def shown(value: Any) -> str:
    """An id that is the same in every process: in Python 3.9 a NewType is a function, whose repr has its address."""
    return getattr(value, "__name__", None) or str(value)


COLOR = {"type": "string", "enum": ["red", "blue"]}
STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
PAIR = {"type": "array", "prefixItems": [INTEGER, STRING], "items": {"anyOf": [INTEGER, STRING]}}
PAIR |= {"minItems": 2, "maxItems": 2}
TIME = datetime.datetime(2024, 5, 6, 7, 8, 9, 500000, datetime.timezone.utc)


@pytest.mark.parametrize(
    ("target", "schema", "raw", "value"),
    [
        (int, INTEGER, 3.0, 3),
        (float, {"type": "number"}, 3, 3.0),
        (None, NULL, None, None),
        (Any, {}, [1], [1]),
        (UserId, INTEGER, 7, 7),
        (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"]),
        (Tuple, {"type": "array", "items": {}}, [1, "a"], (1, "a")),
        (Dict[str, list], {"type": "object", "additionalProperties": {"type": "array", "items": {}}}, {"a": []}, None),
        (UUID, of_format("uuid"), str(UUID(int=1)), UUID(int=1)),
        (Decimal, {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]+)?$"}, "-1.50", Decimal("-1.50")),
        (Path, of_format("path"), "a/b", Path("a/b")),
        (List[int], {"type": "array", "items": INTEGER}, [1], [1]),
        (Sequence[Color], {"type": "array", "items": COLOR}, ["red"], [Color.RED]),
        (set, {"type": "array", "items": {}, "uniqueItems": True}, [1, 2], {1, 2}),
        (Tuple[int, ...], {"type": "array", "items": INTEGER}, [1, 2], (1, 2)),
        (Tuple[int, str], PAIR, [1, "a"], (1, "a")),
        (Dict[str, int], {"type": "object", "additionalProperties": INTEGER}, {"a": 1.0}, {"a": 1}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": {}}, {"a": None}, {"a": None}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}, 1, 1),
        (Size, {"type": "integer", "enum": [1, 2]}, 2, Size.LARGE),
        (Optional[int], {"anyOf": [INTEGER, NULL]}, None, None),
        (Union[int, str], {"anyOf": [INTEGER, STRING]}, "a", "a"),
        (Union[datetime.date, str], {"anyOf": [of_format("date"), STRING]}, "2024-05-06", datetime.date(2024, 5, 6)),
        (Annotated[str, "a name"], {"type": "string", "description": "a name"}, "x", "x"),
        (datetime.datetime, of_format("date-time"), "2024-05-06T07:08:09.5Z", TIME),
        (datetime.time, of_format("time"), "07:08:09", datetime.time(7, 8, 9)),
        (Movie, schema_object(["title", "year"], title=STRING, year=INTEGER), {"title": "a", "year": 1}, None),
        (Loose, {"type": "object", "properties": {"title": STRING}}, {}, {}),
    ],
    ids=shown,
)
def test_type_gives_its_schema_and_its_value(target: Any, schema: Any, raw: Any, value: Any):
    if schema is not None:
        assert json_schema(target) == schema
    built = build(target, raw)
    assert built == (raw if value is None else value)
    assert type(built) is type(raw if value is None else value)


def test_dataclass_has_definitions_descriptions_and_defaults():
    person = schema_object(
        ["name", "age", "home"],
        name={"type": "string", "description": "What they are called."},
        age={"type": "integer", "description": "in years"},
        home={"$ref": "#/$defs/Address"},
        tags={"type": "array", "items": STRING},
        color={**COLOR, "default": "red"},
    )
    address = schema_object(["street"], street=STRING, zip={"anyOf": [STRING, NULL], "default": None})
    assert json_schema(Person) == {**person, "description": "Someone.", "$defs": {"Address": address}}
    raw = {"name": "Ann", "age": 3, "home": {"street": "High"}, "color": "blue"}
    assert build(Person, raw) == Person("Ann", 3, Address("High"), [], Color.BLUE)


def test_dataclass_may_refer_to_itself_and_share_its_name():
    schema = json_schema(Node)
    assert schema["properties"]["kids"] == {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    assert set(schema["$defs"]) == {"Node"}
    assert build(Node, {"value": 1, "kids": [{"value": 2}]}) == Node(1, [Node(2)])
    one, two = (dataclasses.make_dataclass("Tree", [(name, int)]) for name in "ab")
    schema = json_schema(Tuple[one, two])  # type: ignore[valid-type]  # Made at run time.
    assert [ref["$ref"] for ref in schema["prefixItems"]] == ["#/$defs/Tree", "#/$defs/Tree_2"]
    with pytest.raises(TypeError, match="two types named Tree"):
        json_schema(Tuple[one, Tree])  # type: ignore[valid-type]


class Tree:
    """A class that describes itself by a reference to one of its definitions."""

    @classmethod
    def model_json_schema(cls) -> Any:
        kids = {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
        return {"$ref": "#/$defs/Tree", "$defs": {"Tree": {"type": "object", "properties": {"kids": kids}}}}


def test_recursive_class_with_a_schema_of_its_own_keeps_its_definition():
    schema = json_schema(Tree)
    assert set(schema["$defs"]) == {"Tree"}
    assert schema["properties"]["kids"]["items"] == {"$ref": "#/$defs/Tree"}


def test_strict_schema_closes_every_object_requires_all_properties_and_keeps_their_names():
    schema = json_schema(Person, strict=True)
    for closed in (schema, schema["$defs"]["Address"]):
        assert closed["additionalProperties"] is False
        assert closed["required"] == list(closed["properties"])
    assert "default" not in json.dumps(schema)
    schema = {"anyOf": [{"type": "object", "properties": {"a": {"type": "null", "default": 1}}}, {"type": "null"}]}
    closed = {**schema_object(["a"], a=NULL), "additionalProperties": False}
    assert json_schema(schema, strict=True) == {"anyOf": [closed, NULL]}
    data: Any = {"properties": {"a": {"default": 1}}}
    schema = {"enum": [data], "const": data, "examples": [data], "patternProperties": {"default": {"default": 1}}}
    assert json_schema(schema, strict=True) == {**schema, "patternProperties": {"default": {}}}
    schema = {"type": "object", "properties": dict.fromkeys(("default", "required", "enum"), STRING)}
    assert list(json_schema(schema, strict=True)["properties"]) == ["default", "required", "enum"]


def test_pydantic_model_is_a_target():
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", x=(int, ...))
    model = pydantic.create_model("Outer", inner=(inner, ...), names=(List[str], []))
    assert build(model, {"inner": {"x": 1}}) == model(inner=inner(x=1))
    assert json_schema(model, strict=True)["$defs"]["Inner"]["additionalProperties"] is False
    with pytest.raises(DoesNotFit, match=r"\$\[0\]\.inner\.x: missing"):
        build(List[model], [{"inner": {}}])


NONE: Any = None  # A type checker would refuse the common `e: int = None`.


# The type of the result is not evaluated: it is often a name of `if TYPE_CHECKING`.
def sample(a: int, b: Optional[Color] = None, *, c: Annotated[str, "see"] = "x", d=None, e: int = NONE) -> Unknown:  # type: ignore  # noqa: F821
    """Do it.

    More text.

    Args:
        a (int): The first,
            which goes on.
        b: The second.

    Returns:
        c: nothing of the arguments.
    """


def test_function_gives_the_schema_of_its_parameters():
    assert json_schema(sample) == schema_object(
        ["a"],
        a={"type": "integer", "description": "The first, which goes on."},
        b={"anyOf": [COLOR, NULL], "description": "The second.", "default": None},
        c={"type": "string", "description": "see", "default": "x"},
        d={"default": None},
        e={"anyOf": [INTEGER, NULL], "default": None},
    )
    assert build(sample, {"a": 1, "b": "red", "e": None}) == {"a": 1, "b": Color.RED, "e": None}


@dataclass
class Seeded:
    a: int
    seed: dataclasses.InitVar[int]


@dataclass(init=False)
class Other:
    a: int

    def __init__(self, b: int) -> None:
        self.a = b


def needs(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # On purpose.


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (needs, "cannot be evaluated"),
        (Dict[int, str], "keys of JSON objects are text"),
        (complex, "no counterpart"),
        (Set[Seeded], "not hashable: use a list, or a frozen dataclass"),
        (FrozenSet[List[int]], "not hashable"),
        (LOOP, "contains itself"),
        (Literal[b"a"], "JSON cannot hold"),
        (enum.Enum("Corner", {"LEFT": (0, 1)}), "JSON cannot hold"),
        (Seeded, "cannot be made from its fields alone: missing a required argument: 'seed'"),
        (Other, "cannot be made from its fields alone: missing a required argument: 'b'"),
        (lambda *args: None, "by name"),
        (lambda **kwargs: None, "by name"),
    ],
    ids=[
        "unknown-name",
        "int-keys",
        "complex",
        "set",
        "frozenset",
        "loop",
        "bytes",
        "tuples",
        "init-var",
        "own-init",
        "args",
        "kwargs",
    ],
)
def test_what_json_cannot_describe_is_a_type_error(target: Any, message: str):
    for use in (json_schema, ExpectedValue):
        with pytest.raises(TypeError, match=message):
            use(target)


@pytest.mark.parametrize("text", ["", "json_object", "name, age int", "text"])
def test_text_is_no_target(text: str):
    with pytest.raises(TypeError, match=f"'{text}' is a text: give a type such as a dataclass, or a JSON Schema"):
        json_schema(text)


@pytest.mark.parametrize(
    ("target", "value", "path", "message"),
    [
        (int, True, "$", "expected integer, got true"),
        (Person, {"name": "a", "age": 1}, "$.home", "missing"),
        (Node, {"value": 1, "kids": [{"value": 1}, {"value": "x"}]}, "$.kids[1].value", 'expected integer, got "x"'),
        (Address, {"street": "a", "zap": 1}, "$.zap", "unknown property; known are street, zip"),
        (Dict[str, int], {"a b": "c"}, '$["a b"]', "expected integer"),
        (Optional[int], "x", "$", 'expected integer, got "x"; or expected null'),
        (Optional[Address], {"street": 1}, "$.street", "expected string, got 1"),
        (datetime.date, "2024-02-30", "$", 'expected a date, got "2024-02-30"'),
        (Positive, {"number": -1}, "$", "-1 is not positive"),
        (set, [1, 1], "$[1]", "duplicate of an earlier item: 1"),
        (Set[Any], [[1]], "$", "unhashable type"),
        (float, 10**400, "$", "int too large"),
        (UUID, "x", "$", "badly formed"),
        (Decimal, "NaN", "$", "expected text that matches"),
    ],
)
def test_validation_error_has_its_path(target: Any, value: Any, path: str, message: str):
    with pytest.raises(DoesNotFit) as caught:
        build(target, value)
    assert caught.value.path == path
    assert f"{path}: {message}" in str(caught.value)


def test_union_takes_the_class_that_has_the_fields():
    assert build(Union[Positive, Address], {"street": "High"}) == Address("High")
    assert build(Union[Address, Positive], {"number": 1}) == Positive(1)
    with pytest.raises(DoesNotFit, match="missing"):
        build(Union[Address, Positive], {"c": 1})
    with pytest.raises(DoesNotFit, match="-1 is not positive"):
        build(Union[Positive, Address], {"number": -1})


@dataclass
class Sum:
    kind: Literal["sum"]
    left: Union[int, Sum, Product, None]
    right: Union[int, Sum, Product, None]


@dataclass
class Product:
    kind: Literal["product"]
    left: Union[int, Sum, Product, None]
    right: Union[int, Sum, Product, None]


@pytest.mark.parametrize("innermost", [1, "a"], ids=["valid", "not valid"])
def test_time_of_a_union_of_classes_that_contain_each_other_does_not_double_with_each_level(innermost: Any):
    def seconds(depth: int) -> float:
        expression = innermost
        for _ in range(depth):
            expression = {"kind": "product", "left": expression, "right": 1}
        began_at = time.thread_time()
        if innermost == 1:
            assert type(build(Product, expression)) is Product
        else:
            with pytest.raises(DoesNotFit, match=r"\.left: expected"):
                build(Product, expression)
        return time.thread_time() - began_at

    # The time is quadratic in the depth, which stays within the tolerance of `assert_linear` at these depths.
    assert_linear(seconds, 4, 4, 0.005)


def test_value_that_is_nested_too_deeply_is_not_valid():
    value: Any = {"value": 1}
    for _ in range(5000):
        value = {"value": 1, "kids": [value]}
    with pytest.raises(DoesNotFit, match="nested too deeply"):
        build(Node, value)


@pytest.mark.parametrize(
    ("doc", "summary", "described"),
    [
        ("Do.\n\nArgs:\n    a (int): 1.\n\nAsk.\n\nReturns:\n    It.\n\nOf: b.", "Do.\n\nAsk.\n\nOf: b.", {"a": "1."}),
        ("Do it.\n\nWarning:\nIt is slow.\nVery.", "Do it.\n\nWarning:\nIt is slow.\nVery.", {}),
        ("Do it.\n\nWarning:\n    It is slow.", "Do it.", {}),
        ("Do it.\n\nArgs:\na: One.\nb: Two.\n\nMore: text.", "Do it.\n\n\nMore: text.", {"a": "One.", "b": "Two."}),
        (
            "Do.\n\nKeyword Args:\n    a: One,\n        or more.\n\nOther Parameters:\n    b: Two.\nEnd.",
            "Do.\n\nEnd.",
            {"a": "One, or more.", "b": "Two."},
        ),
        (
            "Do.\n\nParameters\n----------\na : int, optional\n    One,\n    or more.\nb, c\n    Two.\n\n"
            "Returns\n-------\nint\n    The sum.",
            "Do.",
            {"a": "One, or more.", "b": "Two.", "c": "Two."},
        ),
        ("Title\n-----\n\nDo it.", "Title\n-----\n\nDo it.", {}),
        ("Do.\n\nReturns\n-------\nint\n    One.", "Do.", {}),
        (
            "Do.\n\n:param a: One,\n    or :class:`more`.\n:param int b: Two.\n:type a: int\n:returns: The sum.\n"
            ":raises ValueError: Never.\n\nEnd.",
            "Do.\n\nEnd.",
            {"a": "One, or :class:`more`.", "b": "Two."},
        ),
        ("Do: it.\n:see: this", "Do: it.\n:see: this", {}),
        (
            "Do it for\n:class:`A`: these.\n\n:param a: One,\n    more.\n:func:`b` does it.",
            "Do it for\n:class:`A`: these.\n\n:func:`b` does it.",
            {"a": "One, more."},
        ),
    ],
)
def test_sections_and_fields_of_a_docstring(doc: str, summary: str, described: Any):
    assert read_docstring(doc) == (summary, described)


# Entries of a section for the parameters `city` and, in some, `unit`. Each has the text "The city, as on a map."
GOOGLE_ENTRIES = {
    "plain": "city: The city, as on a map.",
    "type": "city (str): The city, as on a map.",
    "type with spaces": "city (list of str, optional): The city, as on a map.",
    "type with parentheses": "city (Tuple[int, str], default (0, 'a')): The city, as on a map.",
    "reference as type": "city (:obj:`str`, optional): The city, as on a map.",
    "type in brackets": "city [str]: The city, as on a map.",
    "blank before the colon": "city (str) : The city, as on a map.",
    "dash": "city - The city, as on a map.",
    "type and dash": "city (str) - The city, as on a map.",
    "two dashes": "city -- The city, as on a map.",
    "long dash": "city \u2014 The city, as on a map.",
    "bullet": "- city: The city, as on a map.",
    "bullet and star": "* city (str): The city, as on a map.",
    "code": "`city`: The city, as on a map.",
    "bold": "**city**: The city, as on a map.",
    "two lines": "city: The city,\n        as on a map.",
    "two lines at one indentation": "city: The city,\n    as on a map.",
    "text on the next line": "city (str):\n        The city,\n        as on a map.",
    "colon in the second line": "city: The city,\n        as on a map.",
    "several names": "city, unit: The city, as on a map.",
    "followed by another": "city: The city, as on a map.\n    unit: One.",
    "after another": "unit (str): One - or two.\n        Or more: three.\n    city: The city, as on a map.",
}
NUMPY_ENTRIES = {
    "plain": "city : str\n    The city, as on a map.",
    "no type": "city\n    The city, as on a map.",
    "no blank": "city: str\n    The city, as on a map.",
    "type with spaces": "city : list of str, optional\n    The city, as on a map.",
    "type with a dash": "city : {'a-b', 'c - d'}, default 'a-b'\n    The city, as on a map.",
    "type in parentheses": "city (str)\n    The city, as on a map.",
    "two lines": "city : str\n    The city,\n    as on a map.",
    "two paragraphs": "city : str\n    The city,\n\n    as on a map.",
    "several names": "city, unit : str\n    The city, as on a map.",
    "stars": "**city : str\n    The city, as on a map.",
    "dash": "city - The city, as on a map.",
    "type and dash": "city (str) - The city, as on a map.",
    "text after the colon": "city : The city, as on a map.",
    "bullet": "- city : str\n    The city, as on a map.",
    "followed by another": "city : str\n    The city, as on a map.\nunit : str\n    One.",
}
REST_ENTRIES = {
    "plain": ":param city: The city, as on a map.",
    "type": ":param str city: The city, as on a map.",
    "type with spaces": ":param list of str city: The city, as on a map.",
    "two lines": ":param city: The city,\n    as on a map.",
    "followed by its type": ":param city: The city, as on a map.\n:type city: str, optional",
}
STYLES = {
    "Args:\n    {}": GOOGLE_ENTRIES,
    "Parameters:\n    {}\n\nReturns:\n    str: The weather.": GOOGLE_ENTRIES,
    "Parameters\n----------\n{}": NUMPY_ENTRIES,
    "Parameters\n----------\n{}\n\nReturns\n-------\nstr\n    The weather.": NUMPY_ENTRIES,
    "{}\n:returns: The weather.": REST_ENTRIES,
}


@pytest.mark.parametrize(
    ("style", "entry"),
    [(style, entry) for style, entries in STYLES.items() for entry in entries.values()],
    ids=[f"{style.split()[0]} {name}" for style, entries in STYLES.items() for name in entries],
)
def test_entry_of_a_parameter_is_its_description(style: str, entry: str):
    summary, described = read_docstring(f"Find the weather.\n\n{style.format(entry)}\n")
    assert (summary, described["city"]) == ("Find the weather.", "The city, as on a map.")
    assert "unit" not in described or described["unit"].strip(".")[:3] in ("One", "The")


def test_all_forms_of_types_work_with_every_python(python: str):
    """The table of these forms runs as a program, since it needs the standard library only."""
    done = run([python, "-m", "tests.support.type_forms"], cwd=ROOT)
    assert (done.stdout, done.stderr) == ("\n", "")
