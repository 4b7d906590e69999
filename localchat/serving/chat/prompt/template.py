"""Chat templates: renders messages and tools to a prompt, and adds an assistant prefill.

The prompt is a str whose user text is marked, so that this text yields no control tokens (see `marked.text_parts`).
Raises only TemplateError.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from ...core.text import pattern_of
from ..dialects import Dialect, detect
from .marked import Marked, marked, user_ranges
from .sandbox import TemplateError, all_steps, compile_template, render_template
from .template_messages import Capabilities, Messages, adapt_messages, find_capabilities, whole_tool

# The default for models without a chat template: ChatML, the most common format of instruction-tuned models.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Roles that templates print as part of a marker. Any other role is treated as user text.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})


class ChatTemplate:
    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        add_bos: bool = False,
        special_texts: Iterable[str] = (),
        tokenize: Callable[[str], Iterable[int]] = lambda text: (),
    ) -> None:
        """Compile `source`, or ChatML if there is none. Raises TemplateError if it is not a valid Jinja template. With
        `add_bos`, prompts begin with exactly one BOS, whether or not the template prints it. `special_texts` are the
        texts of the control tokens; `tokenize` returns the tokens of a marker."""
        self.source = source or CHATML
        self.special = re.compile(pattern_of(special_texts))  # For `text_parts`.
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._first = bos_token if add_bos else ""
        self._template = compile_template(self.source)
        self.dialect = detect(self.source)
        # All test conversations share one limit of work, so that a malicious template does not delay the start.
        render = functools.partial(self._render_test, all_steps())
        self.capabilities = find_capabilities(self.source, render)
        # Those of the markers that the parser needs; the text of other control tokens is left out.
        self.visible_tokens = frozenset(itertools.chain.from_iterable(map(tokenize, self.dialect.preserved)))

    def render(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render the prompt for these messages, with its BOS. Raises TemplateError if the template refuses them.
        `variables` are more variables of the template. Those that this class sets take precedence."""
        try:
            given = {
                **(variables or {}),
                "messages": adapt_messages(messages, tools, self.capabilities, self.dialect.calls[0].written),
                "tools": list(map(whole_tool, tools or ())) or self.capabilities.no_tools,
                "add_generation_prompt": add_generation_prompt,
            }
            prompt = render_template(self._template, {**_with_marks(given), **self._tokens})
        except RecursionError as error:
            raise TemplateError("the messages or tools are nested too deeply") from error
        # A BOS in user text is not the BOS of the prompt.
        if not prompt.startswith(self._first) or any(start < len(self._first) for start, _ in user_ranges(prompt)):
            return self._first + prompt
        return prompt

    def _render_test(
        self, steps: list[int], messages: Messages, tools: Messages | None, capabilities: Capabilities
    ) -> str:
        adapted = adapt_messages(messages, None, capabilities, self.dialect.calls[0].written)
        given = {"messages": adapted, "tools": tools or capabilities.no_tools}
        return render_template(self._template, {**given, **self._tokens}, steps)


def prefilled(dialect: Dialect, prompt: str, reasoning: str, text: str | None) -> str:
    """A prompt with an assistant prefill. If `text` is None, the output continues the reasoning."""
    is_open = dialect.reasoning_start(prompt) == "open"
    if text is not None and not reasoning and not is_open:
        return prompt + dialect.text_start[0] + Marked(text)
    prompt += ("" if is_open else dialect.reasoning.start + "\n") + Marked(reasoning)
    return prompt if text is None else prompt + "\n" + dialect.reasoning.end + dialect.text_start[1] + Marked(text)


def _with_marks(given: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a template with all strings marked as user text, except known roles."""
    result: dict[str, Any] = marked(given)
    for message, original in zip(result["messages"], given["messages"]):
        if original.get("role") in _ROLES:
            message["role"] = original["role"]
    return result
