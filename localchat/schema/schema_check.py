"""Check a JSON Schema that a program gives, before a request is sent with it. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .keywords import ONE_OR_SCHEMAS, ONE_SCHEMA, SCHEMAS, SCHEMAS_BY_NAME
from .validator import TYPE_NAMES, Json, field_path, resolve, show


def checked_schema(schema: Mapping[str, Any]) -> Json:
    """A copy of a schema in plain dicts and lists. Raises ValueError, with the path, if the schema is wrong."""
    try:
        copy: Json = _plain(schema, "$")
        _check_schema(copy, copy, "$")
    except RecursionError:
        raise ValueError("the schema is nested too deeply, or contains itself") from None
    return copy


def _plain(value: Any, path: str) -> Any:
    """A JSON value in plain dicts and lists."""
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise _wrong(path, f"a name is a text, not {name!r}")
        return {str(name): _plain(item, field_path(path, name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(path, f"JSON has no number {value}")
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise _wrong(path, f"JSON cannot hold {value!r:.100}")


def _wrong(path: str, reason: str) -> ValueError:
    return ValueError(f"the schema is wrong at {path}: {reason}")


def _check_schema(schema: Any, root: Json, path: str) -> None:
    if isinstance(schema, bool):  # True allows every value, False none.
        return
    if not isinstance(schema, dict):
        raise _wrong(path, f"a schema is an object or a boolean, not {show(schema)}")
    for keyword, value in schema.items():
        check = _CHECKS.get(keyword)
        if check is not None:
            check(value, root, field_path(path, keyword))


def _check_schemas(value: Any, root: Json, path: str) -> None:
    if not isinstance(value, list):
        raise _wrong(path, f"expected a list of schemas, got {show(value)}")
    for i, part in enumerate(value):
        _check_schema(part, root, f"{path}[{i}]")


def _check_schema_or_schemas(value: Any, root: Json, path: str) -> None:
    (_check_schemas if isinstance(value, list) else _check_schema)(value, root, path)


def _check_schemas_by_name(value: Any, root: Json, path: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(path, f"expected an object with a schema for each name, got {show(value)}")
    for name, part in value.items():
        _check_schema(part, root, field_path(path, name))


def _check_names(value: Any, root: Json, path: str) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise _wrong(path, f"expected a list of names, got {show(value)}")


def _check_dependencies(value: Any, root: Json, path: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(path, f"expected an object, got {show(value)}")
    for name, part in value.items():
        (_check_names if isinstance(part, list) else _check_schema)(part, root, field_path(path, name))


def _check_type(value: Any, root: Json, path: str) -> None:
    names = value if isinstance(value, list) and value else [value]
    for name in names:
        if name not in TYPE_NAMES.values():
            raise _wrong(path, f"expected one of {', '.join(TYPE_NAMES.values())}, or a list of them, got {show(name)}")


def _check_reference(value: Any, root: Json, path: str) -> None:
    seen = []
    while isinstance(value, str) and value not in seen:
        seen.append(value)
        try:
            target = resolve(root, value)
        except ValueError as error:
            raise _wrong(path, str(error)) from None
        if not isinstance(target, (dict, bool)):
            raise _wrong(path, f"{show(value)} is no schema, but {show(target)}")
        if isinstance(target, bool) or "$ref" not in target:
            return
        value = target["$ref"]
    if isinstance(value, str):
        raise _wrong(path, f"the reference {show(value)} leads back to itself")
    raise _wrong(path, f"expected a reference to a schema such as '#/$defs/name', got {show(value)}")


def _instance_check(expected: str, *types: type) -> Callable[[Any, Json, str], None]:
    def check(value: Any, root: Json, path: str) -> None:
        is_bool = isinstance(value, bool) and bool not in types
        if not isinstance(value, types) or is_bool:
            raise _wrong(path, f"expected {expected}, got {show(value)}")

    return check


def _check_count(value: Any, root: Json, path: str) -> None:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole or value < 0:
        raise _wrong(path, f"expected a whole number of at least 0, got {show(value)}")


def _check_step(value: Any, root: Json, path: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
        raise _wrong(path, f"expected a number above 0, got {show(value)}")


_CHECKS: dict[str, Callable[[Any, Json, str], None]] = {
    **dict.fromkeys(ONE_SCHEMA, _check_schema),
    **dict.fromkeys(SCHEMAS, _check_schemas),
    **dict.fromkeys(ONE_OR_SCHEMAS, _check_schema_or_schemas),
    **dict.fromkeys(SCHEMAS_BY_NAME, _check_schemas_by_name),
    **dict.fromkeys(("dependencies", "dependentRequired"), _check_dependencies),
    "$ref": _check_reference,
    "type": _check_type,
    "required": _check_names,
    "multipleOf": _check_step,
    "uniqueItems": _instance_check("a boolean", bool),
    "enum": _instance_check("a list", list),
    **dict.fromkeys(("pattern", "format", "description", "title"), _instance_check("a text", str)),
    **dict.fromkeys(("minimum", "maximum"), _instance_check("a number", int, float)),
    # In draft 4 and OpenAPI 3.0 a boolean, beside `minimum` and `maximum`.
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _instance_check("a number", int, float, bool)),
    **dict.fromkeys(
        [f"{bound}{what}" for bound in ("min", "max") for what in ("Length", "Items", "Contains", "Properties")],
        _check_count,
    ),
}
