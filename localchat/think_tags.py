"""Reasoning inside the content: `ThinkSplitter` takes `<think>...</think>` at its start apart. No I/O."""

from __future__ import annotations

_TAGS = {"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>"}
_OPEN, _CLOSE = "<think>", "</think>"

# After more blanks than this no tag is looked for.
_MAX_LEADING_BLANKS = 256


class ThinkSplitter:
    """Takes `<think>...</think>` at the start of the content apart, however the text is cut.

    Modes: "auto" looks for a tag as the first thing that is not blank; "prefilled" knows that the
    template has opened the tag already, so that only the closing one comes; "off" passes all through.
    In "auto" a closing tag that ends a line or begins one, without an opening one, means that the
    template had opened it after all: "reclassify" means that the content before was reasoning.
    """

    def __init__(self, mode: str = "auto") -> None:
        if mode not in _FIRST_STEPS:
            raise ValueError(f"think_tags must be one of {', '.join(_FIRST_STEPS)}, not {mode!r}")
        self._step = _FIRST_STEPS[mode]
        self._prefilled = mode == "prefilled"
        self._close = _CLOSE
        self._held = ""
        self._last = "\n"  # The character before what is held: the first line counts as a line start.
        self._ended = False
        self._out: list[tuple[str, str]] = []

    @property
    def unclosed(self) -> bool:
        """Whether the text so far ends inside the tags."""
        return self._step in (ThinkSplitter._thought, ThinkSplitter._thought_start)

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Pairs of "content", "reasoning" or "reclassify" and the text that is certain by now."""
        if not self._held and "<" not in text and self._step in _PASSING_STEPS:
            self._last = text[-1:] or self._last
            return [("content", text)] if text else []
        self._held += text
        return self._run()

    def flush(self) -> list[tuple[str, str]]:
        """At the end: what was held back."""
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

    # Each step consumes what it can of what is held and returns whether another step has to go on.

    def _start(self) -> bool:
        text = self._held.lstrip()
        for tag, close in _TAGS.items():
            if text.startswith(tag):
                self._held, self._close = text[len(tag) :], close
                self._step = ThinkSplitter._thought_start
                return True
            if tag.startswith(text) and not self._ended and len(self._held) <= _MAX_LEADING_BLANKS:
                return False
        self._step = ThinkSplitter._content
        return True

    def _thought_start(self) -> bool:
        self._held = self._held.lstrip()
        if self._prefilled and not self._ended and _OPEN.startswith(self._held[: len(_OPEN)]):
            if len(self._held) < len(_OPEN):
                return False
            self._held = self._held[len(_OPEN) :].lstrip()
        if not self._held:
            return False
        self._step = ThinkSplitter._thought
        return True

    def _thought(self) -> bool:
        end = self._held.find(self._close)
        if end < 0:
            self._emit("reasoning", len(self._held) - self._tail_that_may_be(self._close))
            return False
        self._emit("reasoning", end)
        self._held = self._held[len(self._close) :]
        self._step = ThinkSplitter._after
        return True

    def _after(self) -> bool:
        self._held = self._held.lstrip()
        if not self._held:
            return False
        self._step = ThinkSplitter._plain
        return True

    def _plain(self) -> bool:
        self._emit("content", len(self._held))
        return False

    def _content(self) -> bool:
        """No tag at the start. Watch for a lone closing tag; text that merely mentions tags is text."""
        opening, closing = self._held.find(_OPEN), self._held.find(_CLOSE)
        if closing < 0 or 0 <= opening < closing:
            if opening >= 0:
                self._step = ThinkSplitter._plain
                return True
            tail = max(self._tail_that_may_be(_OPEN), self._tail_that_may_be(_CLOSE))
            self._emit("content", len(self._held) - tail)
            return False
        self._emit("content", closing)
        rest = self._held[len(_CLOSE) :]
        if not rest and not self._ended and self._last != "\n":
            return False  # The next character decides whether the tag ends its line.
        if self._last == "\n" or rest.startswith("\n"):
            self._out.append(("reclassify", ""))
            self._held = rest
            self._step = ThinkSplitter._after
        else:
            self._step = ThinkSplitter._plain
        return True

    def _tail_that_may_be(self, tag: str) -> int:
        """How many characters at the end of what is held may be the beginning of `tag`."""
        if self._ended:
            return 0
        sizes = range(min(len(tag) - 1, len(self._held)), 0, -1)
        return next((size for size in sizes if tag.startswith(self._held[-size:])), 0)


# Steps are plain functions: bound methods would make the splitter refer to itself.
_FIRST_STEPS = {"auto": ThinkSplitter._start, "prefilled": ThinkSplitter._thought_start, "off": ThinkSplitter._plain}
_PASSING_STEPS = (ThinkSplitter._plain, ThinkSplitter._content)
