"""Assistant prefills: the end of a prompt that lets the output continue the reasoning or the text of a message."""

from __future__ import annotations

from ..dialects import Dialect
from ..dialects.reasoning import ReasoningStart
from .segments import Segment


def prefilled_reasoning(dialect: Dialect, reasoning: str, prompt: str) -> list[Segment]:
    """The segments to append to a prompt, so that the output continues `reasoning`."""
    is_open = dialect.reasoning_start(prompt) is ReasoningStart.OPEN
    start = [] if is_open else [Segment(dialect.reasoning.start + "\n", is_markup=True)]
    return [*start, Segment(reasoning, is_markup=False)]


def prefilled_text(dialect: Dialect, reasoning: str, text: str, prompt: str) -> list[Segment]:
    """The segments to append to a prompt, so that the output continues `text`, which follows `reasoning`."""
    if not reasoning and dialect.reasoning_start(prompt) is not ReasoningStart.OPEN:
        return [Segment(dialect.text_start[0], is_markup=True), Segment(text, is_markup=False)]
    end = Segment("\n" + dialect.reasoning.end + dialect.text_start[1], is_markup=True)
    return [*prefilled_reasoning(dialect, reasoning, prompt), end, Segment(text, is_markup=False)]
