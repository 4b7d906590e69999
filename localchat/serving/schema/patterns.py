"""The syntax of regular expressions, as far as llguidance and JSON Schema read it differently."""

from __future__ import annotations

import re

# An escaped character, or another one.
_CHARACTER = re.compile(r"\\.|.", re.DOTALL)
# An escaped character, the start of a negated class, with a hyphen that it excludes, or a whole class.
_CLASS = re.compile(r"\\.|\[\^-?|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
# The classes of characters that most programs define by ASCII, and the regular expressions of a grammar by Unicode. In
# the patterns of a JSON schema (`%json`), llguidance reads these classes by ASCII itself.
_ASCII = {
    r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]",
    r"\s": r"[\t-\r\x20]", r"\S": r"[^\t-\r\x20]",
}  # fmt: skip
# A pattern of a few whole names.
_WHOLE_NAMES = re.compile(r"\^(?:([\w-]+)|\((?:\?:)?([\w-]+(?:\|[\w-]+)*)\))\$", re.ASCII)
# A pattern of a whole text without alternatives at its top.
_WHOLE = re.compile(r"\^[^|/\n]*\$")


def without_anchors(pattern: str) -> str:
    """A pattern of a whole text without ^ and $ at its ends, which are implied."""
    parts = _CHARACTER.findall(pattern)
    if parts[:1] == ["^"]:
        del parts[0]
    if parts[-1:] == ["$"]:
        del parts[-1]
    return "".join(parts)


def with_ascii_classes(pattern: str) -> str:
    r"""A pattern whose \d, \w and \s, and their opposites, mean characters of ASCII, also inside classes."""
    return _CHARACTER.sub(lambda match: _ASCII.get(match[0], match[0]), pattern)


def between_slashes(pattern: str) -> str:
    """A pattern, escaped for use between slashes."""
    escapes = {"/": r"\/", "\n": r"\n"}
    return _CHARACTER.sub(lambda match: escapes.get(match[0], match[0]), pattern)


def with_closed_classes(pattern: str) -> str:
    """A pattern whose negated classes exclude NUL.

    llguidance allows quotation marks and backslashes that a negated class excludes, unless it excludes a control
    character too.
    """
    # After NUL, a hyphen would mean a range.
    starts = {"[^": r"[^\x00", "[^-": r"[^\x00\-"}
    return _CLASS.sub(lambda match: starts.get(match[0], match[0]), pattern)


def whole_names(pattern: str) -> list[str]:
    """The names that a pattern of a few whole names lists; empty for another pattern."""
    match = _WHOLE_NAMES.fullmatch(pattern)
    return [] if match is None else (match[1] or match[2]).split("|")


def whole_text(pattern: str) -> str | None:
    """The expression of a whole text, for use between slashes, that is equal to a pattern; None: it is not plain."""
    inner = without_anchors(pattern)
    if not _WHOLE.fullmatch(pattern) or pattern != f"^{inner}$" or r"\b" in pattern:
        return None
    return with_ascii_classes(inner)
