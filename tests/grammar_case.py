"""A case of a table of schemas: a schema, with values that it accepts and rejects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    schema: Any
    # JSON texts that the grammar must accept or reject.
    accept: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    # Valid texts that the grammar must not accept, such as fields in another order.
    unused: tuple[str, ...] = ()


def case(schema: Any, accept: str = "", reject: str = "", unused: str = "") -> Case:
    """A case with the JSON texts separated by blanks. A blank within a text is written as `_`."""
    texts = (tuple(word.replace("_", " ") for word in text.split()) for text in (accept, reject, unused))
    return Case(schema, *texts)


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


INT = {"type": "integer"}
STR = {"type": "string"}
NUM = {"type": "number"}
BOOL = {"type": "boolean"}
ANY_ACCEPT = '{} [] "" 0 -1.5e-07 true false null {"a":[{"b":null}]} [1,_2]'
NOT_JSON = '{]} [1,] {"a"} {"a":} {a:1} 01 1. .5 +1 tru nul NaN Infinity "\\x" "\\u12" -'


def string_case(schema: dict[str, Any], *texts: str) -> Case:
    """A case of strings: accepted, rejected and unused texts as in `case`, but without their quotes."""
    quoted = (" ".join(f'"{word}"' for word in words.split()) for words in texts)
    return case({"type": "string", **schema}, *quoted)


def pattern(text: str, accept: str = "", reject: str = "", **more: Any) -> Case:
    return string_case({"pattern": text, **more}, accept, reject)


def formatted(name: str, accept: str, reject: str, unused: str = "") -> Case:
    return string_case({"format": name}, accept, reject, unused)
