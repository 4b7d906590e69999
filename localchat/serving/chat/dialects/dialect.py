r"""The declaration of a model family, for its parser, its constraint, and the writer of earlier calls.

A record has the texts around reasoning, text and calls. These are outputs of families, each with the fields of
`Dialect` that have its texts:

    hermes            <think>hm</think>\n\nSure.\n<tool_call>...
                      reasoning.start, reasoning.end, text_start.after_reasoning ("\n\n"), the opener of a call
    functionary-3.2   all\nSure.>>>weather\n{"city": "Rome"}
                      text_start.first ("all\n"), text_end and recipient_mark (">>>")
    harmony           <|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>
                      reasoning.start, reasoning.end, text_start.after_reasoning, closing_markers ("<|return|>")
    solar             <|think|>hm<|end|><|begin|>assistant<|tool_calls|>...
                      reasoning.start, reasoning.end, calls_start ("<|begin|>assistant"), the opener of a call
    cohere            <|START_THINKING|>hm<|START_RESPONSE|>Sure.<|END_RESPONSE|>
                      reasoning.start, opening_markers, closing_markers
    granite-3         <response>Sure.</response>
                      text_tags
    minimax-m3        </mm:think>Sure.
                      no_reasoning
    gemma-4           Sure. <|channel>thought\nhm<channel|>Yes.
                      reasons_anywhere
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ...core.reasoning import ReasoningMarkers
from .call_format import CallFormat
from .parser import OutputParser

ReasoningStart = Literal["open", "possible", "closed"]
"""Whether reasoning is open before the first token of an output, may begin with it, or has ended in the prompt."""


class PromptEnd(NamedTuple):
    """What the end of a prompt leaves to the output."""

    reasoning: ReasoningStart = "possible"
    header: str | None = None  # The header of the unfinished message, in families with channels; None: there is none.


class ReasoningTags(NamedTuple):
    """The tags around reasoning. A prompt may end with the start tag."""

    start: str
    end: str
    on_lines: bool = True  # Whether templates, and models, write each tag on a line of its own.

    @property
    def opening(self) -> str:
        """What precedes reasoning, as templates write it."""
        return self.start + self._line_end

    @property
    def closing(self) -> str:
        """What follows reasoning, as templates write it."""
        return self._line_end + self.end

    @property
    def _line_end(self) -> str:
        return "\n" if self.on_lines else ""


class TextStart(NamedTuple):
    """The texts that precede content."""

    first: str = ""  # At the start of an output.
    after_reasoning: str = "\n\n"


THINK = ReasoningTags("<think>", "</think>")
_PLAIN_TEXT = TextStart()


@dataclass(frozen=True)
class Dialect:
    """The output format of one family: reasoning first, then text and calls."""

    name: str  # The key in `DIALECTS`.
    calls: tuple[CallFormat, ...] = ()  # The call formats of the family, the preferred one first.
    # A template with all texts of one of these sets belongs to this family. None: the opener of the first call format.
    detected_by: tuple[tuple[str, ...], ...] | None = None
    # Call formats that the models generate at times. They are parsed, and tried first, but constraints forbid them.
    also_read: tuple[CallFormat, ...] = ()
    # --- reasoning ---
    reasoning: ReasoningTags = THINK  # The reasoning tags. If a template has other known tags instead, those apply.
    # Whether reasoning may also begin after text. If so, an end tag without a start tag is dropped.
    reasons_anywhere: bool = False
    no_reasoning: str = ""  # The marker that begins an output without reasoning. "": there is no such marker.
    # --- the beginning of text and of calls ---
    text_start: TextStart = _PLAIN_TEXT
    calls_start: str = "\n\n"  # The text between reasoning and calls.
    text_end: str = ""  # The marker between text and calls.
    # The text before the name of a recipient, as in Functionary's `>>>name`: each text and each call of an output has a
    # recipient, "all" or a tool. "": outputs have no recipients.
    recipient_mark: str = ""
    # --- markers that are dropped ---
    opening_markers: tuple[str, ...] = ()  # Those that open text or a message, and so end reasoning.
    closing_markers: tuple[str, ...] = ()  # Those that close text, calls or a message, and others that have no effect.
    # Tags around text, which are dropped from texts that begin with the first one. Other texts may contain them.
    text_tags: tuple[str, ...] = ()
    # --- the class of the parser ---
    parser: type[OutputParser] = OutputParser

    @cached_property
    def formats(self) -> tuple[CallFormat, ...]:
        """All call formats that the parser accepts, in the order in which it tries them."""
        return (*self.also_read, *self.calls)

    @cached_property
    def openers(self) -> tuple[str, ...]:
        """The markers that begin calls. None of them begins like another one."""
        openers = {format.opener for format in self.formats} - {""}
        return tuple(sorted(text for text in openers if not any(text.startswith(other) for other in openers - {text})))

    @cached_property
    def formats_without_opener(self) -> tuple[CallFormat, ...]:
        return tuple(format for format in self.formats if not format.opener)

    def formats_after(self, opener: str) -> tuple[CallFormat, ...]:
        """The call formats that begin with one of `openers`."""
        return tuple(format for format in self.formats if format.opener.startswith(opener))

    @cached_property
    def dropped(self) -> tuple[str, ...]:
        """The markers that are dropped from the output."""
        return (*self.opening_markers, *self.closing_markers)

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        """The markers that end reasoning. They include the openers of calls: models may call tools inside reasoning."""
        return (self.reasoning.end, *self.opening_markers, *self.openers)

    def reasoning_markers(self, *, is_open: bool, has_tools: bool) -> ReasoningMarkers:
        """Where reasoning begins and ends in the outputs of a request. Without tools, no call ends it.

        `is_open` is whether it is open at the end of the prompt.
        """
        ends = tuple(end for end in self.reasoning_ends if has_tools or end not in self.openers)
        return ReasoningMarkers(self.reasoning.start, ends, is_open, self.reasons_anywhere)

    @property
    def preserved(self) -> tuple[str, ...]:
        """The markers that the parser needs as text, also if they are control tokens. It drops some of them itself."""
        of_calls = (marker for format in self.formats for marker in format.markers)
        around = (
            *self.dropped,
            *self.text_tags,
            *self.text_start,
            self.calls_start,
            self.reasoning.start,
            self.reasoning.end,
        )
        return tuple(dict.fromkeys((*self.openers, *around, *of_calls)))

    def matches(self, template: str) -> bool:
        """Whether a chat template belongs to this family."""
        sets = ((self.calls[0].opener,),) if self.detected_by is None else self.detected_by
        return any(all(mark in template for mark in marks) for marks in sets)

    def prompt_end(self, prompt: str) -> PromptEnd:
        """What a rendered prompt leaves to the output."""
        prompt = prompt.rstrip()
        if prompt.endswith(self.reasoning.start):
            return PromptEnd("open")
        return PromptEnd("closed" if prompt.endswith(self.reasoning.end) else "possible")
