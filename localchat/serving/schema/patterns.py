r"""Regular expressions: rewrites them for llguidance, which reads them as Rust does, and not as JSON Schema does.

[a&&b]   in Rust, the characters that are in both classes; here, "a", "&" or "b"
[[a]     in Rust, a class inside a class; here, "[" or "a"
\d       in a grammar of llguidance, a digit of any script; here, and in its JSON schemas, one of ASCII
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# The limit of characters of a pattern: llguidance takes seconds for one that repeats `a?` so often.
MAX_CHARS = 1 << 15

_ATOM = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[uxpP]\{[^}]*\}|.)|[^\\]"  # An escape, or another character.
# An escaped character, or another one.
_CHARACTER = re.compile(r"\\.|.", re.DOTALL)
# A class: whether it is negated, and what is in it. A bracket that is its first character does not end it.
_CLASS = re.compile(r"\\.|\[(\^?)(\]?(?:\\.|[^\]\\])*)\]", re.DOTALL)
# What is in a class: a range of two characters, or one character.
_RANGE = re.compile(f"({_ATOM})-({_ATOM})|({_ATOM})", re.DOTALL)
_SET = re.compile(r"\\[dDwWsSpP]")  # The beginning of an escape that stands for several characters.
_OPERATORS = frozenset("[]&~-")  # Characters with a meaning in a class of Rust, alone or twice.
# The classes of characters that most programs define by ASCII, and the regular expressions of a grammar by Unicode.
_ASCII = {
    r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]",
    r"\s": r"[\t-\r\x20]", r"\S": r"[^\t-\r\x20]",
}  # fmt: skip
# A pattern of a few whole names.
_WHOLE_NAMES = re.compile(r"\^(?:([\w-]+)|\((?:\?:)?([\w-]+(?:\|[\w-]+)*)\))\$", re.ASCII)
# A pattern of a whole text without alternatives at its top.
_WHOLE = re.compile(r"\^[^|/\n]*\$")


def in_json_schema(pattern: str) -> str:
    """A pattern of JSON Schema, for the schemas of llguidance.

    Negated classes exclude NUL: llguidance allows quotation marks and backslashes that a negated class excludes, unless
    it excludes a control character too.
    """
    return _with_classes(pattern, {}, r"^\x00")


def in_grammar(pattern: str) -> str:
    """A pattern of JSON Schema, for the terminals of a grammar of llguidance, where it is the whole text."""
    return _with_classes(without_anchors(pattern), _ASCII, "^")


def in_gbnf(pattern: str) -> str:
    """A class of GBNF, for the terminals of a grammar of llguidance."""
    return _with_classes(pattern, {}, "^")


def _with_classes(pattern: str, escapes: Mapping[str, str], negation: str) -> str:
    """A pattern whose classes are those of Rust. `escapes` replace escapes, `negation` is the start of negated ones."""

    def atom(text: str) -> str:
        return escapes.get(text, f"\\{text}" if text in _OPERATORS else text)

    def characters(match: re.Match[str]) -> str:
        first, last, single = match.groups()
        if single is not None:
            return atom(single)
        # Next to an escape that stands for several characters, a hyphen is itself.
        is_range = not (_SET.match(first) or _SET.match(last))
        return atom(first) + ("-" if is_range else r"\-") + atom(last)

    def convert(match: re.Match[str]) -> str:
        if match[2] is None:
            return escapes.get(match[0], match[0])
        return f"[{match[1] and negation}{_RANGE.sub(characters, match[2])}]"

    return _CLASS.sub(convert, pattern)


def too_long(pattern: str) -> str:
    """The length of a pattern and the limit, in words, if the pattern is too long; else ""."""
    return f"{len(pattern)} characters, the limit is {MAX_CHARS}" if len(pattern) > MAX_CHARS else ""


def without_anchors(pattern: str) -> str:
    """A pattern of a whole text without ^ and $ at its ends, which are implied."""
    parts = _CHARACTER.findall(pattern)
    if parts[:1] == ["^"]:
        del parts[0]
    if parts[-1:] == ["$"]:
        del parts[-1]
    return "".join(parts)


def between_slashes(pattern: str) -> str:
    """A pattern, escaped for use between slashes."""
    escapes = {"/": r"\/", "\n": r"\n"}
    return _CHARACTER.sub(lambda match: escapes.get(match[0], match[0]), pattern)


def whole_names(pattern: str) -> list[str]:
    """The names that a pattern of a few whole names lists; empty for another pattern."""
    match = _WHOLE_NAMES.fullmatch(pattern)
    return [] if match is None else (match[1] or match[2]).split("|")


def whole_text(pattern: str) -> str | None:
    """The expression of a whole text, for use between slashes, that is equal to a pattern; None: it is not plain."""
    if not _WHOLE.fullmatch(pattern) or pattern != f"^{without_anchors(pattern)}$" or r"\b" in pattern:
        return None
    return in_grammar(pattern)
