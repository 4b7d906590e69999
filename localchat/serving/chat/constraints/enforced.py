"""The schemas of a request that a grammar enforces: checked, and with errors that name the field and the place."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ...core.errors import field_error
from ...schema.loosen import loosened
from ...schema.prepare import prepared, prepared_arguments
from ...schema.refuse import refusal
from ...schema.source_places import SourcePlaces

log = logging.getLogger("localchat.server")

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def enforced_schema(schema: Any, path: str) -> Any:
    """The schema at this path of the request, prepared. Raises BadRequest if it cannot be enforced."""
    with naming_field(path):
        result = prepared(schema)
    _check(result, schema, path)
    return result


def argument_schema(path: str, function: Mapping[str, Any], *, is_required: bool) -> Any:
    """The schema of the arguments of a tool, prepared: as much of it as can be enforced.

    If a call is required, or if `strict` is true, all of it must be: BadRequest otherwise. If `strict` is false, any
    object matches.
    """
    name, parameters, strict = function["name"], function.get("parameters") or _NO_ARGUMENTS, function.get("strict")
    if strict is False:
        return {"type": "object"}
    with naming_field(path):
        schema = prepared_arguments(parameters)
    if is_required or strict is True:
        _check(schema, parameters, path, f'; with "strict": false the arguments of "{name}" may be any object')
        return schema
    schema, refusals = loosened(schema)
    if refusals:
        places = SourcePlaces(parameters)
        for refused in refusals:
            _report(name, f"#{places.pointer(refused.place.pointer, refused.keyword)}", refused.reason)
    return schema


@contextlib.contextmanager
def naming_field(path: str) -> Iterator[None]:
    """Make an error of the block, which cannot enforce the field at this path, a BadRequest that names the field."""
    try:
        yield
    except RecursionError as error:
        raise field_error(path, "cannot be enforced: it is nested too deeply") from error
    except ValueError as error:
        raise field_error(path, f"cannot be enforced: {error}") from error


def _check(schema: Any, source: Any, path: str, hint: str = "") -> None:
    """Refuse a prepared schema that cannot be enforced. The error has the place in its `source`, the one at `path`."""
    refused = refusal(schema)
    if refused is not None:
        pointer = SourcePlaces(source).pointer(refused.place.pointer, refused.keyword)
        raise field_error(f"{path}#{pointer}", f"cannot be enforced: {refused.reason}{hint}")


@functools.lru_cache(1000)
def _report(name: str, path: str, reason: str) -> None:
    """Log once that a constraint of a tool is not enforced: agents send the same tools with every request."""
    log.warning('%s of the tool "%s" is not enforced: %s', ascii(path), name, ascii(reason[:300])[1:-1])
