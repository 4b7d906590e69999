"""Reasoning in the content: `ThinkSplitter` separates `<think>...</think>` from the text after it. No I/O."""

from __future__ import annotations

_TAGS = {"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>"}
_OPEN, _CLOSE = "<think>", "</think>"

# A tag after more blanks than this is text.
_MAX_LEADING_BLANKS = 256


class ThinkSplitter:
    """Separates `<think>...</think>` at the start of the content from the rest, however the text is cut into pieces.

    Modes: "auto" accepts an opening tag that only blanks precede. "prefilled" means that the chat template wrote the
    opening tag, so that the content begins with reasoning. "off" leaves the content unchanged.

    If the mode is "auto", a closing tag at the start or the end of a line without an opening tag means that the
    template wrote the opening tag: the text so far was reasoning. The pair ("reclassify", "") reports this.
    """

    def __init__(self, mode: str = "auto") -> None:
        if mode not in _FIRST_STEPS:
            raise ValueError(f"think_tags must be one of {', '.join(_FIRST_STEPS)}, not {mode!r}")
        self._step = _FIRST_STEPS[mode]
        self._prefilled = mode == "prefilled"
        self._close = _CLOSE
        # Text that may be a part of a tag, or blanks around one.
        self._held = ""
        # The character before `_held`. A line begins at the start of the text.
        self._last = "\n"
        self._ended = False
        self._out: list[tuple[str, str]] = []

    @property
    def unclosed(self) -> bool:
        """Whether the text so far ends inside the tags."""
        return self._step in (ThinkSplitter._reasoning, ThinkSplitter._reasoning_start)

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Take a piece and return pairs of "content", "reasoning" or "reclassify" and a text."""
        if not self._held and "<" not in text and self._step in _CONTENT_STEPS:
            self._last = text[-1:] or self._last
            return [("content", text)] if text else []
        self._held += text
        return self._run()

    def flush(self) -> list[tuple[str, str]]:
        """Return the held text at the end of the content."""
        self._ended = True
        return self._run()

    def _run(self) -> list[tuple[str, str]]:
        while self._step(self):
            pass
        out, self._out = self._out, []
        return out

    def _emit(self, kind: str, length: int) -> None:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            self._last = text[-1]
            self._out.append((kind, text))

    # A step consumes a part of the held text and returns whether to run the next step.

    def _start(self) -> bool:
        text = self._held.lstrip()
        for tag, close in _TAGS.items():
            if text.startswith(tag):
                self._held, self._close = text[len(tag) :], close
                self._step = ThinkSplitter._reasoning_start
                return True
            if tag.startswith(text) and not self._ended and len(self._held) <= _MAX_LEADING_BLANKS:
                return False
        self._step = ThinkSplitter._content
        return True

    def _reasoning_start(self) -> bool:
        self._held = self._held.lstrip()
        if self._prefilled and not self._ended and _OPEN.startswith(self._held[: len(_OPEN)]):
            if len(self._held) < len(_OPEN):
                return False
            self._held = self._held[len(_OPEN) :].lstrip()
        if not self._held:
            return False
        self._step = ThinkSplitter._reasoning
        return True

    def _reasoning(self) -> bool:
        end = self._held.find(self._close)
        if end < 0:
            self._emit("reasoning", len(self._held) - self._partial_tag_length(self._close))
            return False
        self._emit("reasoning", end)
        self._held = self._held[len(self._close) :]
        self._step = ThinkSplitter._blanks_after_close
        return True

    def _blanks_after_close(self) -> bool:
        self._held = self._held.lstrip()
        if not self._held:
            return False
        self._step = ThinkSplitter._plain
        return True

    def _plain(self) -> bool:
        self._emit("content", len(self._held))
        return False

    def _content(self) -> bool:
        """Content without a tag at its start: look for a closing tag. After an opening tag all is plain text."""
        opening, closing = self._held.find(_OPEN), self._held.find(_CLOSE)
        if closing < 0 or 0 <= opening < closing:
            if opening >= 0:
                self._step = ThinkSplitter._plain
                return True
            partial = max(self._partial_tag_length(_OPEN), self._partial_tag_length(_CLOSE))
            self._emit("content", len(self._held) - partial)
            return False
        self._emit("content", closing)
        rest = self._held[len(_CLOSE) :]
        if not rest and not self._ended and self._last != "\n":
            return False  # The next character shows whether the tag is at the end of its line.
        if self._last == "\n" or rest.startswith("\n"):
            self._out.append(("reclassify", ""))
            self._held = rest
            self._step = ThinkSplitter._blanks_after_close
        else:
            self._step = ThinkSplitter._plain
        return True

    def _partial_tag_length(self, tag: str) -> int:
        """The number of characters at the end of the held text that may be the beginning of `tag`."""
        if self._ended:
            return 0
        sizes = range(min(len(tag) - 1, len(self._held)), 0, -1)
        return next((size for size in sizes if tag.startswith(self._held[-size:])), 0)


# Steps are plain functions, since a bound method in `_step` would be a reference cycle.
_FIRST_STEPS = {"auto": ThinkSplitter._start, "prefilled": ThinkSplitter._reasoning_start, "off": ThinkSplitter._plain}
# The steps that emit text without a "<" unchanged.
_CONTENT_STEPS = (ThinkSplitter._plain, ThinkSplitter._content)
