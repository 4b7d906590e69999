"""POST /v1/chat/completions: parses a JSON body into a ChatRequest, and encodes the response.

The parser makes all checks that need no model. The other interfaces for chats have a ChatRequest, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from ..core.errors import field_error
from ..core.events import OutputToken
from ..core.fields import Fields, first_given, refuse_unsupported, without_nulls
from ..core.media import AUDIO, note_of
from ..core.params import MAX_TOP_LOGPROBS, read_n_probs, read_params
from ..core.request import ChatRequest, ResponseFormat
from .content import Origin, read_messages, read_text
from .encoder import CALL, CONTENT, REASONING, Block, Choice, ChoicesEncoder, logprob_entry
from .response_formats import read_response_format
from .tools import CUSTOM_INPUT, called, read_tool_choice, read_tools, tool_call

MAX_N = 32  # The limit of `n`. Each choice is a sequence, and the number of slots is limited.

# Fields of features that chats here do not have, each with the values that do not need the feature.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {"include_reasoning": (True,)}

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

# The fields with variables for the chat template. Those of the last one apply if both have a variable.
_VARIABLES = ("template_vars", "chat_template_kwargs")
# The fields with the reasoning budget, of llama.cpp, vLLM and Qwen. The first one that is set applies.
_BUDGETS = (
    "reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget", "thinking_token_budget", "thinking_budget",
)  # fmt: skip


def parse_chat(body: Fields, *, allow_template: bool = False, thought_field: bool = False) -> ChatRequest:
    """The request in a body. `allow_template` accepts a `chat_template`; see ChatRequest for `thought_field`."""
    refuse_unsupported(body, UNSUPPORTED)
    messages = tuple(message for message, _ in read_messages(body, _message))
    tools = read_tools(body)
    n = first_given([body.integer(name, 1, MAX_N) for name in ("n", "n_cmpl")]) or 1
    template = body.text("chat_template") or None
    if template and not allow_template:
        raise field_error("chat_template", "is not allowed: start the server with --allow-chat-template")
    return ChatRequest(
        messages=messages,
        attachments=tuple(body.attachments),
        **read_tool_choice(body, tools),
        parallel_tool_calls=body.boolean("parallel_tool_calls") is not False,
        chat_template_kwargs=chat_template_kwargs(body, body.text("reasoning_effort")),
        chat_template=template,
        **_prefill(body, messages),
        reasoning_format=body.choice("reasoning_format", ("auto", "deepseek", "none")) or "auto",
        reasoning_budget=reasoning_budget(body),
        reasoning_budget_message=body.text("reasoning_budget_message"),
        params=read_params(body, n=n, top_logprobs=_top_logprobs(body)),
        **read_text_request(body),
        thought_field=thought_field,
    )


def _top_logprobs(body: Fields) -> int | None:
    """The number of alternatives per token. 0: only the sampled token; None: no log probabilities."""
    is_on = body.boolean("logprobs")
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    older = read_n_probs(body)
    if top and not is_on:
        raise field_error("top_logprobs", f"is {top}, which needs 'logprobs' to be true")
    return (top or older or 0) if is_on else older


class _PrefillFields(TypedDict):
    add_generation_prompt: bool
    continue_final_message: bool | str
    response_prefix: str


def _prefill(body: Fields, messages: tuple[dict[str, Any], ...]) -> _PrefillFields:
    """The fields of the assistant prefill, which is the last message, `response_prefix`, or both.

        last message                add_generation_prompt  continue_final_message  the output
        assistant, without calls    not true               not set                 continues the message
        assistant, without calls    not true               true, "content", ...    continues the message
        assistant, without calls    true                   not set, false          is a new message
        another one                 any                    not set, false          is a new message
        any                         true                   true, "content", ...    an error
        another one                 not true               true, "content", ...    an error

    "reasoning_content" continues the reasoning of the message, which then has no content. With `add_generation_prompt`
    false, a new message has no header in the prompt, and so no `response_prefix`.
    """
    adds_prompt, prefix = body.boolean("add_generation_prompt"), body.text("response_prefix") or ""
    continues = body.get("continue_final_message")
    if not (continues is None or isinstance(continues, bool) or continues in ("content", "reasoning_content")):
        body.refuse("continue_final_message", 'true, false, "content" or "reasoning_content"')
    is_open = ends_in_prefill(messages)
    if continues is None:
        continues = is_open and not adds_prompt
    elif continues:
        problem = ""
        if adds_prompt:
            problem = "cannot be combined with 'add_generation_prompt': true, which begins a new message"
        elif not is_open:
            problem = "needs an assistant message without tool calls at the end of 'messages'"
        elif continues == "reasoning_content" and (prefix or messages[-1].get("content")):
            problem = (
                "is \"reasoning_content\", so the last message can have no content, and there is no 'response_prefix'"
            )
        if problem:
            raise field_error("continue_final_message", problem)
    if prefix and adds_prompt is False:
        raise field_error("response_prefix", "cannot be combined with 'add_generation_prompt': false")
    return {
        "add_generation_prompt": adds_prompt is not False,
        "continue_final_message": continues,
        "response_prefix": prefix,
    }


def ends_in_prefill(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the output can continue the last message: one of the assistant without tool calls."""
    return messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]


def chat_template_kwargs(body: Fields, effort: str | None) -> dict[str, Any]:
    """The variables for the chat template. A separate field, such as `documents`, overrides `chat_template_kwargs`."""
    variables: dict[str, Any] = {}
    for name in _VARIABLES:
        kwargs = body.object_or_empty(name)
        kwargs.boolean("enable_thinking")  # Refuse other types: a template treats the text "false" as true.
        variables.update(kwargs.raw)
    separate = {
        "enable_thinking": first_given([body.boolean("enable_thinking"), False if effort == "none" else None]),
        "reasoning_effort": effort,
        "documents": [document.raw for document in body.objects("documents")] or None,
    }
    return {**variables, **without_nulls(separate)}


def reasoning_budget(body: Fields) -> int | None:
    """The limit of reasoning tokens: a field of its own, or `thinking_budget` among the template variables."""
    values = [body.integer(name, -1) for name in _BUDGETS]
    variables = [body.object_or_empty(name).integer("thinking_budget", -1) for name in reversed(_VARIABLES)]
    return first_given([*values, *variables])


class TextFields(TypedDict):
    """The fields of a TextRequest in a body of OpenAI's APIs, except `params`."""

    model: str
    response_format: ResponseFormat | None
    stream: bool
    timings_per_token: bool
    return_progress: bool
    echo: bool
    include_usage: bool
    continuous_usage_stats: bool
    return_token_ids: bool
    return_tokens_as_token_ids: bool
    request_id: str | None


def read_text_request(body: Fields) -> TextFields:
    options = body.object_or_empty("stream_options")
    include, continuous = options.boolean("include_usage") or False, options.boolean("continuous_usage_stats")
    return {
        "model": body.text("model") or "",
        "response_format": read_response_format(body),
        "stream": body.boolean("stream") or False,
        "timings_per_token": body.boolean("timings_per_token") or False,
        "return_progress": body.boolean("return_progress") or False,
        "echo": body.boolean("echo") or False,
        "include_usage": include,
        "continuous_usage_stats": include and continuous is True,
        # vLLM's name and llama.cpp's name. any() gets a list, so that both are read.
        "return_token_ids": any([body.boolean("return_token_ids"), body.boolean("return_tokens")]),
        "return_tokens_as_token_ids": body.boolean("return_tokens_as_token_ids") or False,
        "request_id": body.text("request_id"),
    }


def _message(message: Fields, origin: Origin) -> Iterator[dict[str, Any]]:
    role = message.required_choice("role", ROLES)
    role = "tool" if role == "function" else role  # The role of OpenAI's older `functions`.
    content = None
    if role != "assistant" or message.get("content") is not None:
        content = read_text(message, "content", origin)
    if role == "assistant" and not content:  # A refusal is the text of a message without content.
        content = message.text("refusal") or (note_of(AUDIO) if message.get("audio") else content)
    texts = {name: message.text(name) for name in ("name", "tool_call_id", "reasoning_content")}
    if texts["reasoning_content"] is None and isinstance(message.raw.get("reasoning"), str):
        texts["reasoning_content"] = message.text("reasoning")  # The name of vLLM and of OpenRouter.
    calls = [call for listed in message.objects("tool_calls") for call in _tool_calls(listed)]
    older = message.object("function_call")
    if older is not None and not calls:
        calls = [called(None, older)]
    yield without_nulls({"role": role, "content": content, **texts, "tool_calls": calls or None})


def _tool_calls(call: Fields) -> Iterator[dict[str, Any]]:
    """The tool call, unless its type is unknown."""
    kind, id = call.text("type") or "function", call.text("id")
    if kind == "function":
        yield called(id, call.required_object("function"))
    elif kind == "custom":  # From another server: chat completions here have no custom tools.
        custom = call.required_object("custom")
        yield tool_call(id, custom.nonempty_text("name"), {CUSTOM_INPUT: custom.text("input") or ""})
    else:
        call.skip()


class ChatEncoder(ChoicesEncoder[ChatRequest]):
    id_prefix = "chatcmpl-"
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    empty: Mapping[str, Any] = {"delta": {}}

    def started(self) -> None:
        # These chunks come before all text, also if tokens have been sampled already.
        counts = self.counts(replace(self.usage(), n_completion=0, n_reasoning=0))
        for choice in self.choices:
            prompt_ids = self._prompt_ids() if choice.index == 0 else {}
            self.emit_choice(choice, {"delta": {"role": self.request.role, "content": ""}}, **prompt_ids, **counts)

    def opened(self, choice: Choice, block: Block) -> None:
        if block.kind == CALL:
            # The first chunk of a call has the name and empty arguments. Later chunks have pieces of the arguments.
            self.emit_choice(choice, {"delta": {"tool_calls": [{"index": block.call.index, **_call(block)}]}})

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        if block.kind == CALL:
            call = {"index": block.call.index, "function": {"arguments": text}}
            self.emit_choice(choice, {"delta": {"tool_calls": [call]}})
        elif block.kind == REASONING:
            thought = {"thought": text} if self.request.thought_field and choice.index == 0 else {}
            self.emit_text(choice, REASONING, text, lambda text: {"delta": {"reasoning_content": text}}, **thought)
        else:
            self.emit_text(choice, CONTENT, text, lambda text: {"delta": {"content": text}})

    def ended(self, choice: Choice) -> None:
        # As in OpenAI's API, a separate chunk with an empty delta has the finish reason.
        # The last chunk of the stream has the timings.
        is_last = not self.request.include_usage and all(choice.end for choice in self.choices)
        self.emit_choice(choice, self.empty, **({"timings": self.usage().timings()} if is_last else {}))

    def body(self) -> dict[str, Any]:
        first = self.choices[0]
        reasoning = first.text(REASONING) if self.request.thought_field else ""
        thought = {"thought": reasoning} if reasoning else {}
        return {**super().body(), **self._prompt_ids(), **thought}

    def whole(self, choice: Choice) -> dict[str, Any]:
        reasoning, calls = choice.text(REASONING), [_call(block) for block in choice.blocks if block.kind == CALL]
        message = {
            "role": self.request.role,
            **({"reasoning_content": reasoning} if reasoning else {}),
            # As in OpenAI's API, empty content is null if there are tool calls.
            "content": choice.text() or (None if calls else ""),
            **({"tool_calls": calls} if calls else {}),
        }
        return {"message": message}

    def logprobs(self, choice: Choice, sampled: Sequence[OutputToken]) -> dict[str, Any] | None:
        as_ids, after_sampling = self.request.return_tokens_as_token_ids, self.request.params.post_sampling_probs
        entries = [logprob_entry(token, as_ids=as_ids, after_sampling=after_sampling) for token in sampled]
        return {"content": entries} if entries else None

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.head.prompts[0]} if self.request.return_token_ids else {}


def _call(block: Block) -> dict[str, Any]:
    return {"id": block.call.id, "type": "function", "function": {"name": block.call.name, "arguments": block.text}}
