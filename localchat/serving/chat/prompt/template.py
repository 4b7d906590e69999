"""Chat templates: renders messages, tools and an assistant prefill to prompt segments.

Segments separate user text from text of the template, so that user text yields no control tokens (segments.py).
Raises only TemplateError.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...core.literals import pattern_of
from ..dialects import detect, for_template
from .capabilities import Capabilities, Messages, find_capabilities
from .errors import TemplateError
from .marked import Marked, copy_json
from .messages import adapt_messages, adapt_tools
from .prefill import prefilled_reasoning, prefilled_text
from .sandbox import compile_template, render_template
from .segments import Segment, merge_segments, segments_of, text_of

# The default for models without a chat template: ChatML, the most common format of instruction-tuned models.
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Roles that templates print as part of a marker. Any other role is treated as user text.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})


class ChatTemplate:
    """A compiled chat template.

    Attributes:
        source: The Jinja source.
        dialect: The format in which the model generates reasoning and tool calls.
        capabilities: What the template supports and requires.
        special: The pattern of the texts of control tokens, for `parts_of`.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        add_bos: bool = False,
        special_texts: Iterable[str] = (),
    ) -> None:
        """Compile `source`, or ChatML if there is none.

        Args:
            add_bos: Whether prompts begin with exactly one BOS, whether or not the template prints it.
            special_texts: The texts of the control tokens.

        Raises:
            TemplateError: The source is not a valid Jinja template.
        """
        self.source = source or CHATML
        self.special = re.compile(pattern_of(special_texts))
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._add_bos = add_bos
        self._template = compile_template(self.source)
        self.dialect = detect(self.source)
        self.capabilities = find_capabilities(self.source, self._render_test)
        if not self.capabilities.shows_tools and not self.dialect.has_own_tool_prompt:
            # The system message that describes the tools shows the format of Hermes, so the output has that format.
            self.dialect = for_template("hermes", self.source)

    def render(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        prefix: str = "",
        variables: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """Render the prompt for these messages. It includes the BOS, so tokenize it without adding one.

        Args:
            continue_final_message: Whether the last message, an assistant message without tool calls, is a prefill of
                the output and not a complete turn. "reasoning_content": the output continues its reasoning.
            prefix: More text of the prefill, after the last message.
            variables: More variables of the template (`chat_template_kwargs`, `documents`, `enable_thinking`). The
                variables that this class sets take precedence.

        Raises:
            TemplateError: The template refuses the conversation.
        """
        final: Mapping[str, Any] = {}
        if continue_final_message:
            *messages, final = messages
        try:
            given = self._variables(messages, tools, variables)
            given["add_generation_prompt"] = add_generation_prompt or bool(continue_final_message)
            segments = self._with_bos(segments_of(self._run(_mark_user_text(given))))
        except RecursionError as error:
            raise TemplateError("the messages or tools are nested too deeply") from error
        reasoning = final.get("reasoning_content", "")
        if continue_final_message == "reasoning_content":
            return merge_segments([*segments, *prefilled_reasoning(self.dialect, reasoning, text_of(segments))])
        text = final.get("content", "") + prefix
        if not reasoning and not text:
            return segments
        return merge_segments([*segments, *prefilled_text(self.dialect, reasoning, text, text_of(segments))])

    def _variables(
        self, messages: Messages, tools: Messages | None, variables: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        return {
            **(variables or {}),
            "messages": adapt_messages(messages, tools, self.capabilities, self.dialect.write_calls),
            "tools": adapt_tools(tools or (), self.capabilities) or self.capabilities.no_tools,
        }

    def _render_test(self, messages: Messages, tools: Messages | None, capabilities: Capabilities) -> str:
        adapted = adapt_messages(messages, None, capabilities, self.dialect.write_calls)
        return self._run({"messages": adapted, "tools": tools or capabilities.no_tools})

    def _run(self, variables: Mapping[str, Any]) -> str:
        return render_template(
            self._template, {**variables, "bos_token": self._bos_token, "eos_token": self._eos_token}
        )

    def _with_bos(self, segments: list[Segment]) -> list[Segment]:
        first = segments[0] if segments else Segment("", True)
        has_bos = first.is_markup and first.text.startswith(self._bos_token)
        if has_bos or not self._add_bos:
            return segments
        return merge_segments([Segment(self._bos_token, True), *segments])


def _mark_user_text(given: Mapping[str, Any]) -> dict[str, Any]:
    marked: dict[str, Any] = copy_json(given, Marked)
    for message, original in zip(marked["messages"], given["messages"]):
        if original.get("role") in _ROLES:
            message["role"] = original["role"]
    return marked
