"""Text: JSON of requests and responses, patterns of many literal texts, and text that is safe in a log."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterable
from typing import Any

# A shared encoder, since json.dumps with options would build one for each call. It refuses NaN.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

MAX_CONTAINERS = 500_000  # Lists and objects in a text. An empty one takes two characters, and 60 bytes of memory.
_MAX_INTEGER_DIGITS = 300  # They take quadratic time. The largest double has 309 digits.
# Line separators that JSON does not escape. Programs that read a stream with `str.splitlines` would cut a line there.
_LINE_SEPARATORS = "\x85\u2028\u2029"
# Control characters, which could forge a line of the log or control a terminal, and their escapes.
_CONTROL_CHARACTERS = {
    c: f"\\x{c:02x}" if c < 0x100 else f"\\u{c:04x}" for c in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
}


def printable(text: str) -> str:
    """The text with its control characters escaped."""
    return text.translate(_CONTROL_CHARACTERS)


# The folders of an absolute path, up to the name of the file. A path may have spaces and punctuation; it ends at a
# colon or a quote that no letter follows. If another path follows before that, the text between them is lost, too.
# A slash behind a letter or another slash is one of a relative path or of a URL.
_FOLDERS = re.compile(r"""(?<![\w.:/\\])(?:[A-Za-z]:[/\\]|\\\\|/)(?=\S)(?:(?:[^\n'":]|[:'](?=\w))*[/\\])?""")


def without_folders(text: str) -> str:
    """The text with the names of files in place of their absolute paths."""
    return _FOLDERS.sub("", text)


def to_json(value: Any) -> str:
    """A value as JSON on one line, whatever a reader takes for the end of a line."""
    text = _ENCODER.encode(value)
    for character in "" if text.isascii() else _LINE_SEPARATORS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def json_bytes(value: Any) -> bytes:
    """A value as JSON in UTF-8. An unpaired surrogate becomes "?"."""
    return to_json(value).encode("utf-8", "replace")


def decode_json(text: str) -> Any:
    """Decode a JSON text. Unlike Python's json, this refuses NaN, infinities, numbers beyond a double and huge texts.

    Raises ValueError, or RecursionError if the text is nested too deeply.
    """
    # Brackets in strings count as well: a body of text has far fewer.
    n_containers = text.count("[") + text.count("{")
    if n_containers > MAX_CONTAINERS:
        raise ValueError(f"it has {n_containers} opening brackets, the limit is {MAX_CONTAINERS}")
    return _DECODER.decode(text)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:60]} is no number of JSON, or too large")
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits is too large")
    return int(digits)


_DECODER = json.JSONDecoder(parse_constant=_parse_float, parse_float=_parse_float, parse_int=_parse_int)


def pattern_of(texts: Iterable[str]) -> str:
    """A regular expression that matches the longest of these texts at each position. Without texts, it never matches.

    Common prefixes are factored out. An alternation of whole texts would compare each text at each position: with 6,000
    reserved tokens that begin with "<", searching 200,000 "<" would hold the GIL for 17 s.
    """
    return _factored(sorted({*texts} - {""})) or "(?!)"


def _factored(texts: list[str]) -> str:
    """The regular expression for sorted texts without duplicates; "" if there are none."""
    prefix = os.path.commonprefix(texts)  # noqa: RUF071 - by characters, for any texts
    suffixes = [text[len(prefix) :] for text in texts]
    groups = itertools.groupby(filter(None, suffixes), key=lambda suffix: suffix[0])
    longer = "|".join(_factored(list(group)) for _, group in groups)
    if not longer:
        return re.escape(prefix)
    optional = "" if suffixes[0] else "?"  # "?" if the prefix itself is one of the texts
    return f"{re.escape(prefix)}(?:{longer}){optional}"
