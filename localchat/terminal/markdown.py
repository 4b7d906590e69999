"""Styles for Markdown on a terminal, as the text streams: headings, emphasis, code.

Escape sequences are added; no character of the text is removed or moved, so what is copied from the terminal is
what the model wrote.
"""

from __future__ import annotations

_RESET = "\x1b[0m"
_CODES = {"heading": "\x1b[1m", "bold": "\x1b[1m", "italic": "\x1b[3m", "code": "\x1b[36m", "fence": "\x1b[36m"}
# Asterisks in a row, and the styles that they switch.
_EMPHASIS = {1: ("italic",), 2: ("bold",), 3: ("bold", "italic")}


class Markdown:
    """Feed pieces of text, cut anywhere; `flush` ends the text."""

    def __init__(self) -> None:
        self._active: list[str] = []
        # Backticks or asterisks in a row; what they mean depends on the character after them.
        self._run = ""
        self._code_run = ""
        self._is_line_start = True
        self._previous = "\n"

    def feed(self, text: str) -> str:
        """The text with styles, as far as it is decided."""
        return "".join(map(self._next, text))

    def flush(self) -> str:
        """What was held back, and the end of all styles."""
        held = self._end_run("\n")
        active, self._active = self._active, []
        return held + (_RESET if active else "")

    def _next(self, char: str) -> str:
        before = self._end_run(char) if self._run and char != self._run[0] else ""
        if self._may_mark(char):
            self._run += char
            return before
        if char == "\n":
            after = self._only(["fence"]) + char
            self._is_line_start = True
        elif char == "#" and self._is_line_start and not self._active:
            after = self._switch("heading") + char
            self._is_line_start = False
        else:
            after = char
            self._is_line_start = self._is_line_start and char == " "
        self._previous = char
        return before + after

    def _may_mark(self, char: str) -> bool:
        if "fence" in self._active:
            return char == "`" and (self._is_line_start or bool(self._run))
        return char == "`" or (char == "*" and "code" not in self._active)

    def _end_run(self, following: str) -> str:
        """The run of backticks or asterisks before a character, with the styles that it switches."""
        run, self._run = self._run, ""
        if not run:
            return ""
        starts_line, self._is_line_start = self._is_line_start, False
        previous, self._previous = self._previous, run[-1]
        if run[0] == "`":
            return self._end_backticks(run, starts_line)
        names = _EMPHASIS.get(len(run), ())
        if names and all(name in self._active for name in names) and not previous.isspace():
            return run + self._switch(*names)
        if names and not any(name in self._active for name in names) and not following.isspace():
            return self._switch(*names) + run
        return run

    def _end_backticks(self, run: str, starts_line: bool) -> str:
        if starts_line and len(run) >= 3:
            if "fence" in self._active:
                return run + self._only([])
            return self._only([]) + self._switch("fence") + run
        if "fence" in self._active:
            return run
        if "code" in self._active:
            return run + self._switch("code") if run == self._code_run else run
        self._code_run = run
        return self._switch("code") + run

    def _switch(self, *names: str) -> str:
        """Start the styles that are off, and end those that are on."""
        kept = [name for name in self._active if name not in names]
        self._active = kept + [name for name in names if name not in self._active]
        return _RESET + "".join(_CODES[name] for name in self._active)

    def _only(self, names: list[str]) -> str:
        """End all styles but these."""
        kept = [name for name in self._active if name in names]
        if kept == self._active:
            return ""
        self._active = kept
        return _RESET + "".join(_CODES[name] for name in kept)
