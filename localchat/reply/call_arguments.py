"""The arguments of a tool call: a text in pieces, which becomes a JSON object. No I/O."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from ..texts import excerpt, finite
from .payloads import Json, dump

# The marks of JSON that open and close values: escapes (the last one may be cut), quotes and brackets.
_MARKS = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)

_ScanState = Literal[
    "open",  # Some bracket is not closed.
    "closed",  # All are, and the text has not been parsed; then it is one of those below.
    "whole",  # A JSON object.
    "{}",
    "broken",  # No JSON object.
]


class CallArguments:
    """The text of the arguments of one call, which comes in pieces.

    The time is linear: each piece is searched for brackets once, and the text is parsed once, when the last is closed.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._scan_state: _ScanState = "open"
        # The brackets that are open, whether the text ends in a string, and a backslash at the end of the last piece.
        self._depth = 0
        self._in_string = False
        self._escape = ""
        # The last piece, and whether every piece begins with the one before, which is what some servers send.
        self._latest = ""
        self._is_cumulative = True

    def text(self) -> str:
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def state(self) -> Literal["part", "whole", "{}"]:
        """The arguments so far, as in a Rule. A text that is open or broken is a part: it may go on."""
        if self._scan_state == "closed":
            text = self.text().strip()
            self._scan_state = "{}" if text == "{}" else "whole" if parse_arguments(text)[1] is None else "broken"
        return self._scan_state if self._scan_state in ("whole", "{}") else "part"

    def describe(self, piece: str) -> Literal["none", "whole again", "begin", "rest"]:
        """A further piece, as in a Rule."""
        stripped = piece.strip()
        if not stripped:
            return "none"
        if self.state() != "part" and stripped == self.text().strip():
            return "whole again"
        return "begin" if stripped.startswith("{") else "rest"

    def add(self, piece: str) -> str:
        """Append a piece and return the new part of it."""
        if not piece:
            return ""
        if piece.strip():
            self._scan(piece)
        self._pieces.append(piece)
        self._is_cumulative = self._is_cumulative and len(piece) > len(self._latest) and piece.startswith(self._latest)
        new = piece[len(self._latest) :] if self._is_cumulative else piece
        self._latest = piece
        return new

    def _scan(self, piece: str) -> None:
        if self._scan_state != "open":  # Text after an object makes it invalid.
            self._scan_state = "broken"
            return
        text, self._escape = self._escape + piece, ""
        n_brackets = 0
        for mark in _MARKS.findall(text):
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._escape = mark
            elif len(mark) == 1 and not self._in_string:
                self._depth += 1 if mark in "{[" else -1
                n_brackets += 1
        if n_brackets and self._depth <= 0 and not self._in_string:
            self._scan_state = "closed"

    def parse(self) -> tuple[str, Json | None, str | None, str]:
        """The text of the arguments, their value or None, the error, and a warning if the text was repaired.

        Repaired are JSON that is not exact, such as a text with a line end in it, and what servers add to it:

            pieces                                  the text
            '{}', '{"a": 1}'                        '{"a": 1}'
            '{"a"', '{"a": 1', '{"a": 1}'           '{"a": 1}': each piece has the one before it
        """
        text = self.text()
        arguments, error = parse_arguments(text)
        if error is None and parse_arguments(text, strict=True)[1] is not None:
            return dump(arguments), arguments, None, "the arguments of a call were not exact JSON and are written anew"
        rest = text.lstrip()[2:].lstrip()
        if error is not None and text.lstrip().startswith("{}") and parse_arguments(rest)[1] is None:
            return rest, parse_arguments(rest)[0], None, "empty arguments came before the arguments of a call"
        if error is not None and self._is_cumulative and parse_arguments(self._latest)[1] is None:
            warning = "the arguments were sent anew with every piece; the last one is used"
            return self._latest, parse_arguments(self._latest)[0], None, warning
        return text, arguments, error, ""


def arguments_text(arguments: Any) -> str:
    """The arguments of a delta as text: some servers send an object in place of text."""
    if isinstance(arguments, str):
        return arguments
    if arguments is None:
        return ""
    return dump(arguments) if arguments else "{}"  # Some servers send an empty list if there are no arguments.


def comparable(text: str) -> str:
    """Arguments in a form in which the same JSON is the same text."""
    arguments, error = parse_arguments(text)
    return text.strip() if error is not None else json.dumps(arguments, sort_keys=True)


def parse_arguments(text: str, strict: bool = False) -> tuple[Json | None, str | None]:
    """The value of arguments or the error; blank text is {}. Not `strict`: with control characters, or in a string."""
    if not text.strip():
        return {}, None
    try:
        value = json.loads(text, strict=strict, parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are not JSON: {error}"
    if value is None:
        return {}, None
    if isinstance(value, str) and not strict:
        return parse_arguments(value)
    if not isinstance(value, dict):
        return None, f"the arguments are not a JSON object: {excerpt(text, 60)}"
    return value, None
