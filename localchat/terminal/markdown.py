"""Terminal styles for streamed Markdown: headings, emphasis, code.

Only escape sequences are added. All characters of the text remain, so text copied from the terminal is the output of
the model.
"""

from __future__ import annotations

_RESET = "\x1b[0m"
_CODES = {"heading": "\x1b[1m", "bold": "\x1b[1m", "italic": "\x1b[3m", "code": "\x1b[36m", "fence": "\x1b[36m"}
# The styles that a run of this number of asterisks switches on or off.
_EMPHASIS = {1: ("italic",), 2: ("bold",), 3: ("bold", "italic")}


class Markdown:
    """Adds styles to text that comes in pieces of any size: call `feed` for each piece, then `flush`."""

    def __init__(self) -> None:
        # The styles that are on, in the order in which they were switched on.
        self._active: list[str] = []
        # A run of backticks or asterisks at the end of the text so far. Its meaning depends on the next character.
        self._run = ""
        # The backticks that opened the current code span.
        self._code_run = ""
        # Whether the current line has only spaces so far.
        self._is_line_start = True
        # The character before the run.
        self._previous = "\n"

    def feed(self, text: str) -> str:
        """The text with styles. A run of backticks or asterisks at its end is held back."""
        return "".join(map(self._next, text))

    def flush(self) -> str:
        """The run that was held back, and the reset of all styles."""
        held = self._end_run("\n")
        active, self._active = self._active, []
        return held + (_RESET if active else "")

    def _next(self, char: str) -> str:
        before = self._end_run(char) if self._run and char != self._run[0] else ""
        if self._may_mark(char):
            self._run += char
            return before
        if char == "\n":
            after = self._keep_only(["fence"]) + char
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
        """The run of backticks or asterisks that ends before `following`, with the styles that it switches."""
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
                return run + self._keep_only([])
            return self._keep_only([]) + self._switch("fence") + run
        if "fence" in self._active:
            return run
        if "code" in self._active:
            return run + self._switch("code") if run == self._code_run else run
        self._code_run = run
        return self._switch("code") + run

    def _switch(self, *names: str) -> str:
        """Switch on those of the styles that are off, and switch off the others."""
        kept = [name for name in self._active if name not in names]
        self._active = kept + [name for name in names if name not in self._active]
        return _RESET + "".join(_CODES[name] for name in self._active)

    def _keep_only(self, names: list[str]) -> str:
        """Switch off all other styles."""
        kept = [name for name in self._active if name in names]
        if kept == self._active:
            return ""
        self._active = kept
        return _RESET + "".join(_CODES[name] for name in kept)
