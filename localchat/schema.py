"""Types to JSON Schema, and JSON back to values of those types. No I/O.

A target is a dataclass, a TypedDict, any other annotation that JSON can hold, a function (its
parameters), a class with `model_json_schema`, a schema as a dict, or the short form "name, age int".
`json_schema` describes it, `build` checks JSON and makes the value; `structured` does both for a chat answer. What
does not fit raises DoesNotFit with the path; a target that JSON cannot
describe raises TypeError.
"""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import datetime
import enum
import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ForwardRef, Union

from .errors import DoesNotFit
from .validator import TYPE_NAMES, Fault, faults, is_same, member_path, parse_moment, parse_time, show

Json = dict[str, Any]

_SHOWN_FAULTS = 3
_ABSENT: Any = inspect.Parameter.empty


# The public face


def json_schema(target: Any, *, strict: bool = False) -> Json:
    """The schema of a target.

    Args:
        target: What the module's docstring lists.
        strict: OpenAI's strict form: no member beyond those named, and all of them required.
    """
    return _document(_shape_of(target), strict)


def build(target: Any, value: Any) -> Any:
    """The value of a target from parsed JSON: an instance, an enum's member, a dict of arguments.

    Raises:
        DoesNotFit: The JSON is not what the target describes.
    """
    shape = _shape_of(target)
    try:
        found = list(faults(value, _document(shape)))
        if found:
            raise _unfit(found)
        return shape.build(value, "$")
    except _Unbuildable as error:
        raise _unfit([error.fault]) from error.__cause__
    except RecursionError as error:
        raise DoesNotFit("$: nested too deeply") from error


def plain(value: Any) -> Any:
    """For `json.dumps(..., default=plain)`: what JSON can hold in place of a value that it cannot."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value if _has_plain_values(type(value)) else value.name
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump()
    raise TypeError(f"JSON cannot hold {type(value).__name__}")


def _unfit(found: Sequence[Fault]) -> DoesNotFit:
    shown = "; ".join(map(str, found[:_SHOWN_FAULTS]))
    more = f" (and {len(found) - _SHOWN_FAULTS} more)" if len(found) > _SHOWN_FAULTS else ""
    return DoesNotFit(shown + more, path=found[0].path)


def is_schema(target: Any) -> bool:
    """Whether a target is a JSON Schema, not a type."""
    return isinstance(target, Mapping)


# Shapes: what the targets are made of. Each gives its schema, and builds its value from checked JSON.


class _Unbuildable(Exception):
    """A class refused what its schema allows."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Definitions:
    """The named schemas of one document, each described once, so that types may refer to themselves."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}
        self.used: set[str] = set()
        self._names: dict[Any, str] = {}

    def name(self, record: _Record) -> str:
        known = self._names.get(record.target)
        if known is not None:
            self.used.add(known)
            return known
        name = self._names[record.target] = self._unused(record.name)
        self.schemas[name] = {}  # Its place; its own fields may ask for it.
        self.schemas[name].update(record.body(self))
        return name

    def _unused(self, name: str) -> str:
        numbered = (f"{name}_{number}" for number in range(2, sys.maxsize))
        return name if name not in self.schemas else next(other for other in numbered if other not in self.schemas)


class _Shape:
    def schema(self, definitions: _Definitions) -> Json:
        raise NotImplementedError

    def build(self, value: Any, path: str) -> Any:
        return value


@dataclasses.dataclass(frozen=True)
class _Plain(_Shape):
    """A fixed schema, and a function that makes the value where JSON's own will not do."""

    keywords: Mapping[str, Any]
    make: Callable[[Any], Any] | None = None

    def schema(self, definitions: _Definitions) -> Json:
        return dict(self.keywords)

    def build(self, value: Any, path: str) -> Any:
        return value if self.make is None else _made(self.make, value, path)


@dataclasses.dataclass(frozen=True)
class _Array(_Shape):
    item: _Shape | None
    make: Callable[[Iterable[Any]], Any]
    unique: bool = False

    def schema(self, definitions: _Definitions) -> Json:
        items = {} if self.item is None else {"items": self.item.schema(definitions)}
        return {"type": "array", **items, **({"uniqueItems": True} if self.unique else {})}

    def build(self, value: Any, path: str) -> Any:
        item = self.item or _ANYTHING
        return _made(self.make, [item.build(one, f"{path}[{i}]") for i, one in enumerate(value)], path)


@dataclasses.dataclass(frozen=True)
class _Tuple(_Shape):
    items: tuple[_Shape, ...]

    def schema(self, definitions: _Definitions) -> Json:
        size = len(self.items)
        members = [item.schema(definitions) for item in self.items]
        return {"type": "array", "prefixItems": members, "minItems": size, "maxItems": size}

    def build(self, value: Any, path: str) -> Any:
        return tuple(item.build(one, f"{path}[{i}]") for i, (item, one) in enumerate(zip(self.items, value)))


@dataclasses.dataclass(frozen=True)
class _Map(_Shape):
    value: _Shape | None

    def schema(self, definitions: _Definitions) -> Json:
        values = {} if self.value is None else {"additionalProperties": self.value.schema(definitions)}
        return {"type": "object", **values}

    def build(self, value: Any, path: str) -> Any:
        shape = self.value or _ANYTHING
        return {name: shape.build(one, member_path(path, name)) for name, one in value.items()}


@dataclasses.dataclass(frozen=True)
class _OneOf(_Shape):
    """A Literal or an Enum: pairs of what JSON says and what is meant."""

    options: tuple[tuple[Any, Any], ...]

    def schema(self, definitions: _Definitions) -> Json:
        said = [json_value for json_value, _ in self.options]
        kinds = {TYPE_NAMES[type(json_value)] for json_value in said}
        return {**({"type": kinds.pop()} if len(kinds) == 1 else {}), "enum": said}

    def build(self, value: Any, path: str) -> Any:
        return next(meant for said, meant in self.options if is_same(said, value))


@dataclasses.dataclass(frozen=True)
class _Either(_Shape):
    options: tuple[_Shape, ...]

    def schema(self, definitions: _Definitions) -> Json:
        return {"anyOf": [option.schema(definitions) for option in self.options]}

    def build(self, value: Any, path: str) -> Any:
        """The first that fits. A schema alone may allow members that a class then does not know."""
        refusal = _Unbuildable(Fault(path, f"no type is made of {show(value)}"))
        for option in self.options:
            if not any(faults(value, _document(option))):
                try:
                    return option.build(value, path)
                except _Unbuildable as error:
                    refusal = error
        raise refusal


@dataclasses.dataclass(frozen=True)
class _Described(_Shape):
    inner: _Shape
    description: str

    def schema(self, definitions: _Definitions) -> Json:
        return {**self.inner.schema(definitions), "description": self.description}

    def build(self, value: Any, path: str) -> Any:
        return self.inner.build(value, path)


@dataclasses.dataclass(frozen=True)
class _Foreign(_Shape):
    """A class that describes and checks itself, as Pydantic's models do."""

    model: Any

    def schema(self, definitions: _Definitions) -> Json:
        schema = dict(self.model.model_json_schema())
        for name, definition in schema.pop("$defs", {}).items():
            if definitions.schemas.setdefault(name, definition) != definition:
                raise TypeError(f"{self.model!r} brings a second definition of {name}")
            definitions.used.add(name)
        return schema

    def build(self, value: Any, path: str) -> Any:
        make = getattr(self.model, "model_validate", None) or (lambda members: self.model(**members))
        return _made(make, value, path)


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str
    shape: _Shape
    required: bool
    default: Any

    def schema(self, definitions: _Definitions) -> Json:
        schema = self.shape.schema(definitions)
        try:
            shown = {} if self.default is _ABSENT else {"default": _as_json(self.default)}
        except (TypeError, ValueError):
            shown = {}  # A default that JSON cannot hold is one all the same.
        return {**schema, **shown}


class _Record(_Shape):
    """An object with named members. They are read late, since a type may refer to itself."""

    def __init__(
        self, target: Any, name: str, doc: str, read: Callable[[], list[_Field]], make: Callable[..., Any]
    ) -> None:
        self.target = target
        self.name = re.sub(r"[^\w-]", "_", name)
        self._doc = doc
        self._read = read
        self._make = make

    @functools.cached_property
    def fields(self) -> list[_Field]:
        return self._read()

    def schema(self, definitions: _Definitions) -> Json:
        return {"$ref": f"#/$defs/{definitions.name(self)}"}

    def body(self, definitions: _Definitions) -> Json:
        schema: Json = {"type": "object", **({"description": self._doc} if self._doc else {})}
        schema["properties"] = {field.name: field.schema(definitions) for field in self.fields}
        required = [field.name for field in self.fields if field.required]
        return {**schema, **({"required": required} if required else {})}

    def build(self, value: Any, path: str) -> Any:
        shapes = {field.name: field.shape for field in self.fields}
        for name in value:
            if name not in shapes:
                raise _Unbuildable(Fault(member_path(path, name), f"unknown; there are {', '.join(shapes) or 'none'}"))
        members = {name: shapes[name].build(one, member_path(path, name)) for name, one in value.items()}
        return _made(lambda given: self._make(**given), members, path)


def _made(make: Callable[[Any], Any], value: Any, path: str) -> Any:
    """The value that a class of the user makes, which may have rules that no schema tells."""
    try:
        return make(value)
    except Exception as error:
        raise _Unbuildable(Fault(path, str(error) or type(error).__name__)) from error


def _document(shape: _Shape, strict: bool = False) -> Json:
    """The whole schema: an object's own members at the top, what they refer to below `$defs`."""
    definitions = _Definitions()
    schema = shape.schema(definitions)
    if isinstance(shape, _Record):
        name = schema["$ref"].rpartition("/")[2]
        schema = definitions.schemas[name] if name in definitions.used else definitions.schemas.pop(name)
    if definitions.schemas:
        schema = {**schema, "$defs": definitions.schemas}
    return _strict(schema) if strict else schema


def _strict(schema: Any) -> Any:
    """OpenAI's rules: objects are closed, all members required, no defaults, nothing beside a $ref."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        kept = {name: value for name, value in schema.items() if name in ("$ref", "$defs")}
        return {**kept, **({"$defs": _strict_each(kept["$defs"])} if "$defs" in kept else {})}
    closed = {name: value if name in _VERBATIM else _strict(value) for name, value in schema.items()}
    closed.pop("default", None)
    for name in ("properties", "$defs"):
        if isinstance(schema.get(name), dict):
            closed[name] = _strict_each(schema[name])
    if isinstance(schema.get("properties"), dict):
        closed.update(required=list(schema["properties"]), additionalProperties=False)
    return closed


def _strict_each(schemas: Json) -> Json:
    """Names are no keywords here: a member may well be called `default`."""
    return {name: _strict(schema) for name, schema in schemas.items()}


_VERBATIM = frozenset({"enum", "const", "required"})


# Annotations to shapes


_ANYTHING = _Plain({})
_PLAIN: dict[Any, _Plain] = {
    str: _Plain({"type": "string"}),
    int: _Plain({"type": "integer"}, int),
    float: _Plain({"type": "number"}, float),
    bool: _Plain({"type": "boolean"}),
    None: _Plain({"type": "null"}),
    type(None): _Plain({"type": "null"}),
    Any: _ANYTHING,
    object: _ANYTHING,
    datetime.datetime: _Plain({"type": "string", "format": "date-time"}, parse_moment),
    datetime.date: _Plain({"type": "string", "format": "date"}, datetime.date.fromisoformat),
    datetime.time: _Plain({"type": "string", "format": "time"}, parse_time),
}


def _shape_of(target: Any) -> _Shape:
    """The shape of anything that may stand where a type is asked for."""
    if isinstance(target, str):
        return _short_form(target)
    if isinstance(target, Mapping):
        return _Plain(target)
    if _is_function(target):
        return _function(target)
    return _shape(target)


def _shape(hint: Any) -> _Shape:
    try:
        known = _PLAIN.get(hint)
    except TypeError:  # Not hashable, an Annotated with a list in it say.
        known = None
    make = _BY_ORIGIN.get(typing.get_origin(hint) or (hint if isinstance(hint, type) else None))
    if known is not None:
        return known
    if make is not None:
        return make(typing.get_args(hint))
    inner = getattr(hint, "__supertype__", getattr(hint, "__value__", None))
    if inner is None:
        return _class(hint)
    try:
        return _shape(inner)  # A NewType, or the alias of a `type` statement.
    except RecursionError:
        raise TypeError(f"{hint!r} refers to itself, as only dataclasses and typed dicts may") from None


def _class(hint: Any) -> _Shape:
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return _enum(hint)
        if hasattr(hint, "model_json_schema"):
            return _Foreign(hint)
        if dataclasses.is_dataclass(hint):
            return _Record(hint, hint.__name__, _own_doc(hint), lambda: _dataclass_fields(hint), hint)
        if issubclass(hint, dict) and hasattr(hint, "__total__"):
            return _Record(hint, hint.__name__, _own_doc(hint), lambda: _typed_dict_fields(hint), dict)
    raise TypeError(f"JSON Schema has no counterpart for {hint!r}")


def _array(make: Callable[[Iterable[Any]], Any], unique: bool = False) -> Callable[[tuple[Any, ...]], _Shape]:
    return lambda args: _Array(_shape(args[0]) if args else None, make, unique)


def _tuple(args: tuple[Any, ...]) -> _Shape:
    if not args or args[-1] is Ellipsis:
        return _Array(_shape(args[0]) if args else None, tuple)
    return _Tuple(tuple(map(_shape, args)))


def _map(args: tuple[Any, ...]) -> _Shape:
    if args and args[0] not in (str, Any):
        raise TypeError(f"the keys of JSON objects are text, not {args[0]!r}")
    return _Map(_shape(args[1]) if args else None)


def _either(args: tuple[Any, ...]) -> _Shape:
    return _Either(tuple(map(_shape, args)))


def _literal(args: tuple[Any, ...]) -> _Shape:
    options = tuple((arg.value if isinstance(arg, enum.Enum) else arg, arg) for arg in args)
    if not all(type(said) in TYPE_NAMES for said, _ in options):
        raise TypeError(f"JSON cannot hold all of {args!r}")
    return _OneOf(options)


def _annotated(args: tuple[Any, ...]) -> _Shape:
    inner, description = _shape(args[0]), next((extra for extra in args[1:] if isinstance(extra, str)), "")
    return _Described(inner, description) if description else inner


def _enum(hint: type[enum.Enum]) -> _Shape:
    """By value, or by name where JSON cannot hold the values."""
    by_value = _has_plain_values(hint)
    return _OneOf(tuple((member.value if by_value else member.name, member) for member in hint))


def _has_plain_values(hint: type[enum.Enum]) -> bool:
    return all(type(member.value) in (str, int, float, bool, type(None)) for member in hint)


_BY_ORIGIN: dict[Any, Callable[[tuple[Any, ...]], _Shape]] = {
    list: _array(list),
    collections.abc.Sequence: _array(list),
    collections.abc.Iterable: _array(list),
    set: _array(set, unique=True),
    frozenset: _array(frozenset, unique=True),
    tuple: _tuple,
    dict: _map,
    collections.abc.Mapping: _map,
    Union: _either,
    getattr(types, "UnionType", Union): _either,
    typing.Literal: _literal,
    typing.Annotated: _annotated,
}


# Fields


def _dataclass_fields(target: Any) -> list[_Field]:
    hints, described = _hints(target), read_docstring(target.__doc__ or "")[1]
    fields = []
    for field in target.__dataclass_fields__.values():  # fields() leaves out what __init__ alone takes.
        hint = hints[field.name]
        hint = hint.type if isinstance(hint, dataclasses.InitVar) else hint
        if field.init and typing.ClassVar not in (hint, typing.get_origin(hint)):
            description = field.metadata.get("description") or described.get(field.name)
            default = _ABSENT if field.default is dataclasses.MISSING else field.default
            required = default is _ABSENT and field.default_factory is dataclasses.MISSING
            fields.append(_Field(field.name, _with_description(_shape(hint), description), required, default))
    return fields


def _typed_dict_fields(target: Any) -> list[_Field]:
    hints, described = _hints(target), read_docstring(target.__doc__ or "")[1]
    return [_typed_dict_field(target, name, hint, described.get(name)) for name, hint in hints.items()]


def _typed_dict_field(target: Any, name: str, hint: Any, description: str | None) -> _Field:
    """`__required_keys__` does not see NotRequired in annotations that are text, so the wrapper is read."""
    required = name in target.__required_keys__
    while getattr(typing.get_origin(hint), "_name", None) in ("Required", "NotRequired", "ReadOnly"):
        wrapper = typing.get_origin(hint)._name
        required = required if wrapper == "ReadOnly" else wrapper == "Required"
        hint = typing.get_args(hint)[0]
    return _Field(name, _with_description(_shape(hint), description), required, _ABSENT)


def _is_function(target: Any) -> bool:
    if hasattr(target, "__supertype__"):  # In Python 3.9 a NewType is a function.
        return False
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return True
    known = isinstance(target, type) or typing.get_origin(target) or type(target).__module__ in ("typing", "types")
    return callable(target) and not known


def _function(function: Any) -> _Record:
    name = getattr(function, "__name__", None) or type(function).__name__
    return _Record(id(function), name, "", lambda: _function_fields(function, name), dict)


def _function_fields(function: Any, name: str) -> list[_Field]:
    inner = function.func if isinstance(function, functools.partial) else function
    hints = _hints(_without_return(inspect.unwrap(inner if inspect.isroutine(inner) else type(inner).__call__)))
    described = read_function(function)[1]
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model can only give parameters by name, not {str(parameter)!r}")
        hint = hints.get(parameter.name, Any)
        if parameter.default is None and hint is not Any:
            hint = Union[hint, None]  # As typing has it before Python 3.11: a default that may not be said is none.
        shape = _with_description(_shape(hint), described.get(parameter.name))
        fields.append(_Field(parameter.name, shape, parameter.default is _ABSENT, parameter.default))
    return fields


def _with_description(shape: _Shape, description: str | None) -> _Shape:
    """What the annotation itself says about the member comes first."""
    return _Described(shape, description) if description and not isinstance(shape, _Described) else shape


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value, default=plain, allow_nan=False))


# The short form

_SHORT_TYPES = {"str": str, "int": int, "float": float, "bool": bool}


def _short_form(text: str) -> _Shape:
    """ "name, age int, bio: one line": members with type and description, apart by commas or lines."""
    parts = [part.strip() for part in text.split("\n" if "\n" in text.strip() else ",")]
    fields = [_short_field(part) for part in parts if part]
    names = [field.name for field in fields]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"the short form needs members of different names: {text!r}")
    return _Record(text, "answer", "", lambda: fields, dict)


def _short_field(text: str) -> _Field:
    head, _, description = text.partition(":")
    name, _, kind = " ".join(head.split()).partition(" ")
    if not name.isidentifier() or (kind or "str") not in _SHORT_TYPES:
        raise ValueError(f"a member must be `name`, `name type` or `name type: description`, not {text!r}")
    return _Field(name, _with_description(_shape(_SHORT_TYPES[kind or "str"]), description.strip()), True, _ABSENT)


# Docstrings

_SECTION = re.compile(r"(\w+)(?: \w+)*:\s*$")
_ARGUMENT_SECTIONS = ("Args", "Arguments", "Parameters", "Params", "Attributes", "Fields")
_OTHER_SECTIONS = ("Returns", "Raises", "Yields", "Example", "Examples", "Note", "Notes", "See", "Warning")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text before the sections, and what the section of the arguments says about each (Google's style)."""
    summary: list[str] = []
    described: dict[str, str] = {}
    section = name = ""
    indent = 0
    for line in inspect.cleandoc(doc).splitlines():
        header = _SECTION.match(line)
        if header and header[1] in (*_ARGUMENT_SECTIONS, *_OTHER_SECTIONS):
            section, indent = header[1], 0
        elif not section or (indent and line[:1].strip()):  # A line that is not indented ends a section that was.
            section = ""
            summary.append(line)
        elif line.strip():
            indent = indent or _indent_of(line)
            entry = _ENTRY.match(line.strip()) if _indent_of(line) <= indent else None
            name = entry[1] if entry else name
            if section in _ARGUMENT_SECTIONS:
                described[name] = entry[2] if entry else f"{described.get(name, '')} {line.strip()}".strip()
    return "\n".join(summary).strip(), described


def read_function(function: Any) -> tuple[str, dict[str, str]]:
    """The same of a function: of what a partial calls, and of an object's __call__ where its class has no docstring."""
    inner = function.func if isinstance(function, functools.partial) else function
    doc = inspect.getdoc(inner) or (None if inspect.isroutine(inner) else type(inner).__call__.__doc__)
    return read_docstring(doc or "")


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def _own_doc(target: type) -> str:
    """What was written about a class; dataclasses without a docstring get their signature as one."""
    doc = target.__dict__.get("__doc__") or ""
    return "" if doc.startswith(f"{target.__name__}(") else read_docstring(doc)[0]


# Annotations that are text


def _hints(owner: Any) -> dict[str, Any]:
    """The annotations of a class or function, evaluated, what Annotated adds included."""
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except NameError as error:
        raise TypeError(f"{owner!r} has an annotation that cannot be read from outside: {error}") from error
    except TypeError:
        if sys.version_info >= (3, 10):
            raise
        return _hints_without_bars(owner)


def _without_return(function: Any) -> Any:
    """The same function as far as parameters go: what it returns may be known to type checkers alone."""
    real = getattr(function, "__func__", function)
    if not isinstance(real, types.FunctionType):
        return function
    alike = types.FunctionType(real.__code__, real.__globals__, real.__name__, real.__defaults__, real.__closure__)
    alike.__annotations__ = {name: hint for name, hint in real.__annotations__.items() if name != "return"}
    alike.__kwdefaults__, alike.__module__, alike.__qualname__ = real.__kwdefaults__, real.__module__, real.__qualname__
    return alike


def _hints_without_bars(owner: Any) -> dict[str, Any]:
    """For Python 3.9, which can read `X | Y` but not evaluate it."""
    hints: dict[str, Any] = {}
    for scope in reversed(getattr(owner, "__mro__", (owner,))):
        noted = vars(scope).get("__annotations__", {}) if isinstance(scope, type) else scope.__annotations__
        names = {**vars(sys.modules[scope.__module__]), "_Union": Union}
        # A class, since those may say ClassVar.
        holder = type("holder", (), {"__annotations__": {name: _without_bars(hint) for name, hint in noted.items()}})
        hints.update(typing.get_type_hints(holder, names, include_extras=True))
    return hints


def _without_bars(hint: Any) -> Any:
    text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
    return ast.unparse(_Bars().visit(ast.parse(text, mode="eval"))) if isinstance(text, str) else hint


class _Bars(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        pair = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name("_Union", ast.Load()), pair, ast.Load())
