"""The declaration of a model family: the markers of reasoning, text and tool calls in its output.

The streaming parser, the grammar of tool calls and the writer of earlier calls use this declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .call_layout import CallLayout
from .call_style import CallStyle
from .reader import OutputReader
from .reasoning import THINK, ReasoningStart, ReasoningTags


@dataclass(frozen=True)
class Dialect:
    """The output format of one family: reasoning first, then text and calls."""

    name: str
    """The key in `DIALECTS`."""
    detected_by: tuple[tuple[str, ...], ...] = ()
    """Sets of texts. A template that contains all texts of one set belongs to this family."""
    overrides: tuple[str, ...] = ()
    """The names of families whose sets also match templates of this family. This family takes precedence."""
    calls: tuple[CallStyle, ...] = ()
    """The call formats of the family, the preferred one first."""
    also_read: tuple[CallStyle, ...] = ()
    """Call formats of other families that the models generate at times. They are parsed, but grammars forbid them."""
    sections: tuple[str, ...] = ()
    """Markers that open text or a message. They are dropped from the output, and end reasoning."""
    dropped: tuple[str, ...] = ()
    """Other markers around text that are dropped from the output."""
    reasoning: ReasoningTags = THINK
    """The reasoning tags. If a template has other known tags instead, those apply."""
    reasons_anywhere: bool = False
    """Whether reasoning may also begin after text. If so, an end tag without a start tag is dropped."""
    no_reasoning: str = ""
    """The marker that begins an output without reasoning. "": there is no such marker."""
    text_start: tuple[str, str] = ("", "\n\n")
    """The text before the content: at the beginning of an output, and after reasoning."""
    text_end: str = ""
    """The marker between text and calls."""
    part_mark: str = ""
    """The text between the parts of an output, for families in which each part has a header. "": no such parts."""
    has_own_tool_prompt: bool = False
    """If the template shows no tools, a system message describes calls in the format of this family. False: in the
    format of Hermes."""
    reader: type[OutputReader] = OutputReader
    """The class of the parser."""
    layouts: tuple[CallLayout, ...] = ()
    """The layouts of calls, the preferred one first. Default: those of `calls`."""

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
        """The markers that are dropped from the output."""
        of_calls = (marker for style in self.calls for marker in (*style.sections, *style.dropped))
        return tuple(dict.fromkeys((*self.sections, *self.dropped, *of_calls)))

    @property
    def reasoning_sections(self) -> tuple[str, ...]:
        """The dropped markers that also end reasoning."""
        return (*self.sections, *(marker for style in self.calls for marker in style.sections))

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        """The markers that end reasoning. They include the openers of calls: models may call tools inside reasoning."""
        return (self.reasoning.end, *self.reasoning_sections, *self.openers)

    @property
    def preserved(self) -> tuple[str, ...]:
        """The markers whose tokens the engine must deliver as text to the parser, even if they are control tokens."""
        of_calls = (marker for style in (*self.calls, *self.also_read) for marker in style.markers)
        of_layouts = (marker for layout in self.layouts for marker in layout.markers)
        around = (*self.ignored, *self.text_start, self.reasoning.start, self.reasoning.end)
        return tuple(dict.fromkeys((*self.openers, *around, *of_calls, *of_layouts)))

    def matches(self, template: str) -> bool:
        """Whether a template belongs to this family."""
        return any(all(mark in template for mark in marks) for marks in self.detected_by)

    def for_template(self, template: str, known_tags: Iterable[ReasoningTags]) -> Dialect:
        """This dialect with the reasoning tags and the call layouts that the template contains.

        Tags and layouts stay as declared if the template has none of them. If it has none of the declared tags, but
        some of `known_tags`, the first of these apply.
        """
        tags = next((tags for tags in (self.reasoning, *known_tags) if tags.are_in(template)), self.reasoning)
        layouts = tuple(layout for layout in self.layouts if layout.template_text in template)
        return replace(self, reasoning=tags, layouts=layouts or self.layouts)

    def write_calls(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Write calls (dicts with `name` and `arguments`) in the preferred layout of the family."""
        return self.layouts[0].written(calls)

    def reasoning_start(self, prompt: str) -> ReasoningStart:
        """Whether reasoning is open, possible or closed at the end of a prompt."""
        return self.reasoning.start_state(prompt)
