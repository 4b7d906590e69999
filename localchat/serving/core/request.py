"""Requests as values: what the parsers of all interfaces make of a body, and what the rooms below them read.

A field has the name of the field of a body that sets it, in the API that many servers share. These have another name,
since no single field of a body sets them:

    params               the sampling and generation parameters, which `core/params.py` declares
    attachments          the images and sounds in `messages`
    messages_field       the name under which the body has `messages`
    message_paths        where each of `messages` is in the body
    tool_paths           where the schemas of `tools` are in the body
    params_path          where the fields of `params` are in the body
    begun                the field `prompt` of /infill; the attribute `prompt` is its field `input_prefix`
    suffix_field, field  the names under which the body has `suffix` and `documents`
    thought_field        an option of the server
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from .media import Attachment
from .params import GenerationParams

SYSTEM_ROLES = ("system", "developer")
"""The roles of messages that are instructions to the model."""
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
"""The schema of the arguments of a tool that declares none."""
Input = Union[str, "tuple[int, ...]"]
"""A prompt of a completion, or an input of an embedding: a text, or the ids of its tokens."""
Vectors = Sequence["array[float]"]
"""The vectors of the inputs of an embedding."""


@dataclass(frozen=True)
class ResponseFormat:
    kind: str  # json_object, json_schema, grammar, regex or choice.
    value: Any  # The schema, the text of the grammar or pattern, or a tuple of choices; None for json_object.
    param: str  # The path of the field in the request, for error messages.


@dataclass(frozen=True)
class TextRequest:
    """A validated request for generated text. Subclasses add the prompt."""

    model: str = ""
    params: GenerationParams = field(default_factory=GenerationParams)
    response_format: ResponseFormat | None = None  # The constraint on the text of the output, if any.
    stream: bool = False
    include_usage: bool = False  # The last chunk of a stream has the usage.
    continuous_usage_stats: bool = False  # Every chunk has the usage so far.
    timings_per_token: bool = False  # Every chunk has the timings so far.
    return_progress: bool = False  # Chunks report how many tokens of the prompt are computed.
    echo: bool = False  # Repeat the prompt in the output; in chat, the assistant prefill.
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False  # Show tokens in log probabilities as "token_id:N" instead of as text.
    keep_alive: float | None = None  # Seconds that the model stays loaded after the request; None: the default.
    request_id: str | None = None  # The client's id of the request, for the log.

    @property
    def asks_for_text(self) -> bool:
        """Whether text is generated. A chat without messages in Ollama's interface loads or unloads the model."""
        return True

    @property
    def n_choices(self) -> int:
        """The number of outputs."""
        return self.params.n


@dataclass(frozen=True)
class ChatRequest(TextRequest):
    """A validated chat request. A field is None if the request leaves it out."""

    messages: tuple[dict[str, Any], ...] = ()  # `content` is text or absent, and no field is null.
    messages_field: str = "messages"  # The field of the body that has the messages, for errors.
    message_paths: tuple[str, ...] = ()  # The path of each message in the body; empty if the body has the same list.
    attachments: tuple[Attachment, ...] = ()  # The images and sounds for which markers stand in the messages.
    tools: tuple[dict[str, Any], ...] = ()  # Tools in the format `{"type": "function", "function": {...}}`.
    tool_paths: tuple[str, ...] = ()  # The path of the schema of each tool in the body.
    tool_choice: str = "none"  # "none", "auto" or "required".
    allowed_tools: tuple[str, ...] = ()  # The names of the tools that may be called; empty for all.
    parallel_tool_calls: bool = True
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    add_generation_prompt: bool = True
    # Whether the last message is an assistant prefill. "reasoning_content": the output continues its reasoning.
    continue_final_message: bool | str = False
    response_prefix: str = ""  # More text of the assistant prefill, after the last message.
    reasoning_format: str = "auto"  # "none": reasoning and its tags are content. Others: it has a field of its own.
    reasoning_budget: int | None = None  # The limit of reasoning tokens; -1: no limit, None: the server's default.
    reasoning_budget_message: str | None = None  # Appended to reasoning at the limit; None: the server's default.
    thought_field: bool = False  # Repeat the reasoning in a field `thought` beside `choices`.

    @property
    def asks_for_text(self) -> bool:
        return bool(self.messages)

    @property
    def role(self) -> str:
        last = str(self.messages[-1]["role"])
        return "assistant" if self.add_generation_prompt or last == "user" else last

    @property
    def callable_tools(self) -> tuple[dict[str, Any], ...]:
        """The tools that may be called. The prompt may show other tools, too."""
        if self.tool_choice == "none":
            return ()
        allowed = set(self.allowed_tools)
        return tuple(tool for tool in self.tools if not allowed or tool["function"]["name"] in allowed)

    @property
    def continues_reasoning(self) -> bool:
        """Whether the output continues the reasoning of the last message."""
        return self.continue_final_message == "reasoning_content"

    @property
    def prefill(self) -> tuple[str, str]:
        """The reasoning and the text of the assistant prefill."""
        last = self.messages[-1] if self.continue_final_message else {}
        return last.get("reasoning_content", ""), last.get("content", "") + self.response_prefix


@dataclass(frozen=True)
class CompletionRequest(TextRequest):
    """A validated request for a text completion, or for fill-in-the-middle."""

    prompt: tuple[Input, ...] = ()
    suffix: str | None = None  # The text after the gap that the output fills (fill-in-the-middle); None: no gap.
    suffix_field: str = "suffix"  # The field of the request that has the suffix, for errors.
    # The names and texts of files shown before the prefix. If the context is too small, their beginning is cut.
    input_extra: tuple[tuple[str, str], ...] = ()
    begun: str = ""  # Text at the start of the gap, which the output continues.
    add_special_tokens: bool = True  # Whether text prompts begin with the model's BOS.

    @property
    def n_choices(self) -> int:
        return len(self.prompt) * self.params.n


@dataclass(frozen=True)
class EmbeddingsRequest:
    """A validated request for embeddings."""

    model: str
    input: tuple[Input, ...]
    dimensions: int | None  # Return only this many numbers of each vector; None: all.
    encoding_format: str = "float"  # "float": vectors are lists of numbers; or "base64".
    truncate: bool = False  # Cut inputs that are longer than the context. False: refuse them.
    keep_alive: float | None = None  # Seconds that the model stays loaded after the request; None: the default.


@dataclass(frozen=True)
class RerankRequest:
    """A query, and the documents to sort by relevance, in the format of Jina and Cohere or of TEI."""

    model: str
    query: str
    documents: tuple[str, ...]
    top_n: int | None  # Return only this many documents; None: all.
    return_documents: bool  # Return the texts of the documents, too.
    field: str = "documents"  # The field that has the documents: "texts" in text-embeddings-inference (TEI).
    raw_scores: bool = True  # Whether scores are returned as they are, and not as probabilities.
