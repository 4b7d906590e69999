"""Validates JSON texts against a schema, to test grammars, with the client's validator, which shares no code with them.

Numbers are parsed as doubles, and formats are checked strictly.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import sys
import uuid
from collections.abc import Callable
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

from localchat.schema import validator


def _offset(text: str) -> str:
    """The time in a form that Python 3.9 can parse: the offset in digits, a fraction of three or six digits."""
    return re.sub(r"\.(\d+)", lambda match: "." + match[1].ljust(6, "0"), text.upper().replace("Z", "+00:00"))


def strict(pattern: str, read: Callable[[str], object] = str) -> Callable[[str], object]:
    """The check of a format: a pattern, and a parser of the standard library, which alone would accept too much."""

    def check(text: str) -> object:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise ValueError(text)
        return read(text)

    return check


FORMATS: dict[str, Callable[[str], object]] = {
    "date": strict(r"\d{4}-\d\d-\d\d", datetime.date.fromisoformat),
    "time": strict(r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", lambda text: datetime.time.fromisoformat(_offset(text))),
    "date-time": strict(
        r".{10}[Tt]\d\d:.*(Z|z|.\d\d:\d\d)", lambda text: datetime.datetime.fromisoformat(_offset(text))
    ),
    "ipv4": strict(r"[\d.]+", ipaddress.IPv4Address),
    "ipv6": strict(r"[\da-fA-F:.]+", ipaddress.IPv6Address),
    "uuid": strict(r"[^-]{8}(-[^-]{4}){3}-[^-]{12}", uuid.UUID),
    "uri": strict(r"[a-zA-Z][\w+.-]*:([\w.~:/?#@!$&'()*+,;=[\]-]|%[0-9a-fA-F]{2})*", urlsplit),
    "email": strict(r"(?!.*\.\.)[^@\s]+@[^@\s.-][^@\s]*\.[a-zA-Z]+"),
    "hostname": strict(r"(?=.{1,253}$)(?!-)[a-zA-Z0-9-]{0,62}[a-zA-Z0-9](\.(?!-)[a-zA-Z0-9-]{0,62}[a-zA-Z0-9])*"),
    "duration": strict(r"P(?=.)(\d+[YMWD])*(T(\d+[HMS])+)?"),
}


def load(text: str) -> Any:
    """JSON; raises ValueError for NaN and Infinity, and for duplicate names."""
    return json.loads(text, parse_constant=_refuse, parse_float=_number, object_pairs_hook=_pairs)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _number(text: str) -> float:
    """A number of JSON text; the largest double in place of a larger number, such as 1e999, which JSON allows."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name comes twice")
    return dict(pairs)


def has_double_names(text: str) -> bool:
    """Whether an object has a name twice. A grammar cannot prevent that for names that the schema does not list."""
    try:
        load(text)
    except ValueError as error:
        return "comes twice" in str(error)
    return False


def is_valid(text: str, schema: Any) -> bool:
    try:
        value = load(text)
    except ValueError:
        return False
    with patch.dict(validator._FORMATS, FORMATS):
        return not any(validator.validation_errors(value, schema))
