"""Requests for generated text: what all interfaces share. Those of chats are in `ChatRequest` (api/chat.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from .params import GenerationParams

# A prompt of a completion, or an input of an embedding: a text, or the ids of its tokens.
Input = Union[str, "tuple[int, ...]"]


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
    continuous_usage: bool = False  # Every chunk has the usage so far.
    timings_per_token: bool = False  # Every chunk has the timings so far.
    return_progress: bool = False  # Chunks report how many tokens of the prompt are computed.
    echo: bool = False  # Repeat the prompt in the output; in chat, the assistant prefill.
    return_token_ids: bool = False
    tokens_as_ids: bool = False  # Show tokens in log probabilities as "token_id:N" instead of as text.
    keep_alive_s: float | None = None  # How long the model stays loaded after the request; None: the default.
    request_id: str | None = None  # The client's id of the request, for the log.

    @property
    def n_choices(self) -> int:
        """The number of outputs."""
        return self.params.n
