"""Where a model's thinking starts and ends, told from its template's text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningTags:
    """The tags around thinking; a prompt may end with the opening one already written."""

    start: str
    end: str

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt ends inside thinking that it opened itself."""
        return prompt.rstrip().endswith(self.start)


THINK = ReasoningTags("<think>", "</think>")

# The first whose start and end are both in the template's text.
_KNOWN: tuple[ReasoningTags, ...] = (
    THINK,
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("<mm:think>", "</mm:think>"),
    ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningTags("<|channel>thought", "<channel|>"),
    ReasoningTags("<thinking>", "</thinking>"),
    ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)


def reasoning_tags(template: str) -> ReasoningTags | None:
    """The tags that a template's text names, or None: many models think in tags it does not name."""
    return next((tags for tags in _KNOWN if tags.start in template and tags.end in template), None)
