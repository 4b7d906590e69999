"""The declaration of a model family: the markers of reasoning, text and tool calls in its output.

The streaming parser, the grammar of calls and the writer of calls in the history are derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..prompt.segments import Segment
from .call_layout import CallLayout
from .call_style import CallStyle
from .reader import OutputReader
from .reasoning import THINK, ReasoningStart, ReasoningTags, reasoning_tags


@dataclass(frozen=True)
class Dialect:
    """The output format of one family: reasoning first, then text and calls."""

    name: str
    """The key in `DIALECTS`."""
    detected_by: tuple[tuple[str, ...], ...] = ()
    """Sets of texts. A template that holds all texts of one set belongs to this family."""
    overrides: tuple[str, ...] = ()
    """Families whose texts are in these templates as well. A template that fits both belongs to this family."""
    calls: tuple[CallStyle, ...] = ()
    """The formats in which its models write calls, the usual one first."""
    also_read: tuple[CallStyle, ...] = ()
    """Formats of other families that its models write now and then: they are parsed, but grammars do not allow them."""
    sections: tuple[str, ...] = ()
    """Markers that open the text or a message of an output. They are dropped, and end reasoning."""
    dropped: tuple[str, ...] = ()
    """Other markers around text, which are dropped."""
    reasoning: ReasoningTags = THINK
    reasons_anywhere: bool = False
    """Reasoning may come again after text; an end tag without a start tag is dropped."""
    no_reasoning: str = ""
    """The beginning of an output without reasoning. "": such an output has no special beginning."""
    text_start: tuple[str, str] = ("", "\n\n")
    """The markers that open the text: at the beginning of an output, and after reasoning."""
    text_end: str = ""
    """The marker that ends text before calls."""
    part_mark: str = ""
    """The text between the parts of an output, for families in which each part has a header."""
    has_own_tool_prompt: bool = False
    """If the template shows no tools, the system message describes calls in this family's format instead of Hermes'."""
    reader: type[OutputReader] = OutputReader
    """The class of the parser."""
    layouts: tuple[CallLayout, ...] = ()
    """The layouts of calls, the usual one first. Default: those of `calls`."""

    def __post_init__(self) -> None:
        if not self.layouts:
            layouts = tuple(layout for style in self.calls for layout in style.layouts)
            object.__setattr__(self, "layouts", layouts)

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers that begin calls."""
        styles = (*self.calls, *self.also_read)
        return tuple(dict.fromkeys(opener for style in styles for opener in style.openers))

    @property
    def ignored(self) -> tuple[str, ...]:
        """The markers that are dropped from text."""
        of_calls = (marker for style in self.calls for marker in (*style.sections, *style.dropped))
        return tuple(dict.fromkeys((*self.sections, *self.dropped, *of_calls)))

    @property
    def reasoning_sections(self) -> tuple[str, ...]:
        """The ignored markers that end reasoning."""
        return (*self.sections, *(marker for style in self.calls for marker in style.sections))

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        """The markers that end reasoning, openers of calls included: models call without closing their reasoning."""
        return (self.reasoning.end, *self.reasoning_sections, *self.openers)

    @property
    def preserved(self) -> tuple[str, ...]:
        """The markers whose tokens must reach the parser as text, even where the vocabulary hides them."""
        of_calls = (marker for style in (*self.calls, *self.also_read) for marker in style.markers)
        of_layouts = (marker for layout in self.layouts for marker in layout.markers)
        around = (*self.ignored, *self.text_start, self.reasoning.start, self.reasoning.end)
        return tuple(dict.fromkeys((*self.openers, *around, *of_calls, *of_layouts)))

    def fits(self, template: str) -> bool:
        """Whether a template belongs to this family."""
        return any(all(mark in template for mark in marks) for marks in self.detected_by)

    def for_template(self, template: str) -> Dialect:
        """This dialect with the reasoning tags and the layouts of calls that are in the template, if any."""
        named = tuple(layout for layout in self.layouts if layout.mark in template)
        return replace(self, reasoning=reasoning_tags(template) or self.reasoning, layouts=named or self.layouts)

    def write_calls(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Write calls (dicts with `name` and `arguments`) as a model of the family does."""
        return self.layouts[0].written(calls)

    def reasoning_start(self, prompt: str) -> ReasoningStart:
        """Whether reasoning is open, possible or closed at the end of a prompt."""
        return self.reasoning.start_state(prompt)

    def opened_reasoning(self, reasoning: str, prompt: str) -> list[Segment]:
        """The text to append to a prompt so that the output continues this reasoning (assistant prefill)."""
        is_open = self.reasoning_start(prompt) is ReasoningStart.OPEN
        start = [] if is_open else [Segment(self.reasoning.start + "\n", True)]
        return [*start, Segment(reasoning, False)]

    def opened_text(self, reasoning: str, text: str, prompt: str) -> list[Segment]:
        """The text to append to a prompt so that the output continues this text, after this reasoning if any."""
        if not reasoning and self.reasoning_start(prompt) is not ReasoningStart.OPEN:
            return [Segment(self.text_start[0], True), Segment(text, False)]
        end = Segment("\n" + self.reasoning.end + self.text_start[1], True)
        return [*self.opened_reasoning(reasoning, prompt), end, Segment(text, False)]
