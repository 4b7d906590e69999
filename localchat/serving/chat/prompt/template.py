"""Chat templates: renders messages and tools to a prompt, and adds an assistant prefill.

A rendered prompt has the markers of control_tokens.py, so that texts of the request yield no control tokens.
`ChatTemplate.parts` and `without_markers` remove them. Raises only TemplateError.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Callable

from ..dialects import detect
from .assistant_tags import AssistantTags
from .capabilities import Capabilities, find_capabilities
from .control_tokens import ControlTokens, TextPart, without_markers
from .conversation import forms, with_results_in_order
from .jinja import TemplateError, compile_template, new_deadline, render_template, to_json
from .messages import Messages
from .missing_text import missing_text, replaced_texts
from .template_messages import adapt_messages, whole_tool

# The default for models without a chat template: ChatML, the most common format of instruction-tuned models.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Roles that templates print as part of a marker. A part of a control token in any other role is a text of the request.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})

_control_tokens = functools.lru_cache(maxsize=4)(ControlTokens)  # Each template of a model has the same ones.


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
        is_trusted: bool = True,
    ) -> None:
        """Compile `source`, or ChatML if there is none. Raises TemplateError if it is not a valid Jinja template.

        With `add_bos`, prompts begin with exactly one BOS, whether or not the template prints it. `special_texts` are
        the texts of the control tokens; `tokenize` returns the tokens of a marker. A template of a request is not
        trusted: see `render_template`.
        """
        self.source = source or CHATML
        self.dialect = detect(self.source)
        self._tags = AssistantTags(self.dialect)
        self._control_tokens = _control_tokens(frozenset(special_texts))
        # The template may compare a string of a request with one of these words, so such a string gets no marker.
        self._words = _ROLES.union(re.findall(r"\w+", self.source))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._bos = bos_token if add_bos else ""
        self._is_trusted = is_trusted
        self._template = compile_template(self.source)
        self._replaced = replaced_texts(self.source)
        # All test conversations share one deadline, so that a slow template does not delay the start.
        self.capabilities = find_capabilities(self.source, functools.partial(self._render_test, new_deadline()))
        # The ids of the tokens that the output keeps as text even if they are control tokens: the parser needs them.
        self.visible_tokens = frozenset(itertools.chain.from_iterable(map(tokenize, self.dialect.preserved)))

    def render(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        paths: Sequence[str] = (),
    ) -> str:
        """Render the prompt for these messages, with its BOS, in the first form in which the template prints all texts.

        `variables` are more variables of the template. Those that this class sets take precedence. `paths` are those of
        the messages in the request, if they are not `messages[0]` and so on. Raises TemplateError if the template
        refuses every form, or prints none of them whole.
        """
        deadline = new_deadline()
        first_error: TemplateError | None = None
        try:
            fixed = {**self._marked_variables(variables or {}), "add_generation_prompt": add_generation_prompt}
            messages = self._with_hidden_tags(messages, fixed, deadline)
            # Texts of the prompt come in this order, which `_check_whole` relies on.
            ordered = with_results_in_order(messages)
            for form, capabilities in forms(ordered, self.capabilities):
                try:
                    prompt = self._render_form(form, tools, capabilities, fixed, deadline)
                    self._check_whole(prompt, ordered, messages, paths)
                    self._check_tools(prompt, form, tools or (), capabilities, fixed, deadline)
                except TemplateError as error:
                    first_error = first_error or TemplateError(without_markers(str(error)), error.param)
                else:
                    # A BOS in a text of the request has markers around it, so it is not taken for that of the prompt.
                    return prompt if prompt.startswith(self._bos) else self._bos + prompt
        except RecursionError as error:
            raise TemplateError("the messages or tools are nested too deeply") from error
        assert first_error is not None, "there is a form"
        raise first_error

    def _render_form(
        self,
        messages: Messages,
        tools: Messages | None,
        capabilities: Capabilities,
        variables: Mapping[str, Any],
        deadline: float,
    ) -> str:
        """Render one form of the conversation, for the capabilities that it may use."""
        marked_messages = self.marked(self._adapted(messages, tools, capabilities))
        shown_tools = tools if capabilities.shows_tools and tools else ()
        marked_tools = self.marked(list(map(whole_tool, shown_tools))) or capabilities.no_tools
        return self._rendered({**variables, "messages": marked_messages, "tools": marked_tools}, deadline)

    def _check_whole(self, prompt: str, ordered: Messages, messages: Messages, paths: Sequence[str]) -> None:
        """Raise TemplateError if a text of the messages is not in the prompt.

        Does nothing for a template that prints texts in another way, such as in capital letters. `ordered` are the
        messages in the order of the prompt; the error has the path of the message in the request.
        """
        if not self.capabilities.prints_texts:
            return
        missing = missing_text(without_markers(prompt), ordered, self._tags.without_reasoning, self._replaced)
        if missing is not None:
            index = next(i for i, message in enumerate(messages) if message is ordered[missing])
            path, role = paths[index] if paths else f"messages[{index}]", messages[index]["role"]
            hint = "move its text to another message"
            raise TemplateError(f"the model's chat template leaves out '{path}', of the role {role!r}: {hint}", path)

    def _check_tools(
        self,
        prompt: str,
        messages: Messages,
        tools: Messages,
        capabilities: Capabilities,
        variables: Mapping[str, Any],
        deadline: float,
    ) -> None:
        """Raise TemplateError if the prompt is the same without the tools.

        Mistral Nemo shows them only before a message of the user, which a conversation may lack.
        """
        # Usually the descriptions show that the tools are there, as text or as JSON.
        descriptions = [tool["function"].get("description") for tool in tools]
        if all(text and (text in prompt or to_json(text)[1:-1] in prompt) for text in descriptions):
            return
        try:
            prompt_without = self._render_form(messages, None, capabilities, variables, deadline)
        except TemplateError:
            return
        if prompt == prompt_without:
            raise TemplateError("the model's chat template leaves out 'tools' in this conversation", "tools")

    def prefilled(self, prompt: str, reasoning: str, text: str | None) -> str:
        r"""A rendered prompt with an assistant prefill. If `text` is None, the output continues the reasoning.

        The prefills of a template with <think>, whose prompt does not open the reasoning:

            ("", "Hi")        Hi
            ("hm", "Hi")      <think>\nhm\n</think>\n\nHi
            ("hm", None)      <think>\nhm
        """
        dialect = self.dialect
        is_open = dialect.prompt_end(prompt).reasoning == "open"
        marked_reasoning: str = self.marked(reasoning)
        marked_text: str = self.marked(text or "")
        if text is not None and not reasoning and not is_open:
            return prompt + dialect.text_start.first + marked_text
        prompt += ("" if is_open else dialect.reasoning.opening) + marked_reasoning
        if text is None:
            return prompt
        return prompt + dialect.reasoning.closing + dialect.text_start.after_reasoning + marked_text

    def marked(self, value: Any) -> Any:
        """A copy of a JSON value of a request, whose strings yield no control tokens in a rendered prompt."""
        return self._control_tokens.marked(value, self._words)

    def parts(self, prompt: str) -> list[TextPart]:
        """The texts of a rendered prompt to tokenize."""
        return self._control_tokens.parts(prompt)

    def _with_hidden_tags(self, messages: Messages, variables: Mapping[str, Any], deadline: float) -> Messages:
        """The messages, where the template finds no tags in the texts of the assistant but those around reasoning."""
        if not self._tags.are_in(messages):
            return messages
        question = [{"role": "user", "content": "Hi"}]
        try:
            options = {**variables, "add_generation_prompt": True}
            prompt = without_markers(self._render_form(question, None, self.capabilities, options, deadline))
            is_open = self.dialect.prompt_end(prompt).reasoning == "open"
        except TemplateError:
            is_open = False
        return self._tags.hidden_in(messages, is_open=is_open)

    def _marked_variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.marked(value) for name, value in variables.items()}

    def _adapted(self, messages: Messages, tools: Messages | None, capabilities: Capabilities) -> Messages:
        return adapt_messages(messages, tools, capabilities, self._written_calls)

    def _written_calls(self, calls: Messages) -> str:
        """The text of calls. A template that cuts reasoning off a text finds no end tag of reasoning in it."""
        return self._tags.end_hidden_in(self.dialect.calls[0].written(calls))

    def _rendered(self, variables: Mapping[str, Any], deadline: float) -> str:
        variables = {**variables, **self._tokens}
        if "enable_thinking" in variables:  # The templates of Granite, DeepSeek and Kimi call it `thinking`.
            variables.setdefault("thinking", variables["enable_thinking"])
        # Variables of templates for OpenAI's older `functions` API.
        if "functions" in self._words:
            variables["functions"] = to_json(variables["tools"], indent=2) if variables["tools"] else ""
        if "datetime" in self._words:  # Without the time of day, so that a conversation keeps its cached prefix.
            variables["datetime"] = datetime.now().strftime("%Y-%m-%d")
        return render_template(self._template, variables, deadline, is_trusted=self._is_trusted)

    def _render_test(
        self, deadline: float, messages: Messages, tools: Messages | None, capabilities: Capabilities
    ) -> str:
        adapted = self.marked(self._adapted(messages, None, capabilities))
        return self._rendered({"messages": adapted, "tools": self.marked(tools) or capabilities.no_tools}, deadline)
