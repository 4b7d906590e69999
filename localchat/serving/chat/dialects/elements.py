"""Reads arguments that are nested elements, as MiniMax-M3 generates them.

P<invoke name="f">P<a>textP</a>P<b>P<item>1P</item>P</b>P</invoke>, where P is a prefix of every tag
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .call_layout import STRING, ArgumentsLayout, bare
from .calls import Calls, stream_text
from .notation import maybe_nested
from .scan import Cursor, Reader, read_until
from .values import parameter_types, value_json

# The limit of nesting: deeper than any real schema, and below Python's recursion limit.
_MAX_DEPTH = 60


def read_element(
    cursor: Cursor, calls: Calls, layout: ArgumentsLayout, schema: Mapping[str, Any], name: str, call_end: str
) -> Reader[bool]:
    """Emit the value of an argument, whose start tag was read. Returns whether the end of the call was read, too."""
    opener = bare(layout.before_key)
    types = parameter_types(schema, name)
    if types == STRING:
        yield from stream_text(cursor, calls, opener + "/")
        end, _ = yield from read_until(cursor, ">")
        return f"{opener}/{end}>" == call_end
    start, end = f"{opener}{name}>", f"{opener}/{name}>"
    text, depth, tag = (yield from maybe_nested(cursor)), 1, None
    while depth and tag != call_end:
        piece, tag = yield from read_until(cursor, start, end, call_end)
        depth += {start: 1, end: -1}.get(tag or "", 0)
        text += piece + (tag or "" if depth and tag != call_end else "")
        if tag is None:
            yield calls.arguments(text)
            return False
    yield calls.arguments(_json(text, opener, layout.item, schema, (name,)))
    return tag == call_end


def _json(text: str, opener: str, item: str, schema: Mapping[str, Any], path: tuple[str | None, ...]) -> str:
    """A value as JSON of the type in the schema: a list of items, an object of other child elements, or a text."""
    types = parameter_types(schema, *path)
    children = [] if types == STRING or len(path) > _MAX_DEPTH else list(_children(text, opener))
    if not children:
        if not text.strip() and types in ({"object"}, {"array"}):
            return "{}" if types == {"object"} else "[]"
        return value_json(text, types)
    # If the schema allows no list, an item is a field with this name.
    is_list = children[0][0] == item and types != {"object"}
    values = [
        _json(inner, opener, item, schema, (*path, None if types == {"array"} else name)) for name, inner in children
    ]
    if is_list:
        return f"[{', '.join(values)}]"
    names = (json.dumps(name, ensure_ascii=False) for name, _ in children)
    return "{" + ", ".join(f"{name}: {value}" for name, value in zip(names, values)) + "}"


def _children(text: str, opener: str) -> Iterator[tuple[str, str]]:
    """The child elements in a text, each with its name and the text inside. The last end tag may be missing."""
    depth, name, start = 0, "", 0
    for tag in re.finditer(re.escape(opener) + "(/?)([^>]*)>", text):
        if not tag[1] and depth == 0:
            name, start = tag[2], tag.end()
        depth += -1 if tag[1] else 1
        if depth == 0:
            yield name, text[start : tag.start()]
    if depth > 0:
        yield name, text[start:]
