"""The request fields that all interfaces for generated text share: model, parameters, response format, streaming."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .fields import Fields
from .params import GenerationParams
from .response_format import ResponseFormat, read_response_format

# Limits of the interval between SSE comments in a stream. A shorter one would keep the server busy with comments.
MIN_PING_S = 0.01
MAX_PING_S = 3600


@dataclass(frozen=True)
class ParseOptions:
    """The options of the server that parsers and encoders need."""

    strict: bool = False
    """Refuse unknown fields."""
    allow_template: bool = False
    """Accept `chat_template`."""
    thought_field: bool = False
    """Repeat the reasoning in a field `thought` beside `choices`."""


DEFAULT_OPTIONS = ParseOptions()


@dataclass(frozen=True)
class TextRequest:
    """A validated request for generated text. Subclasses add the prompt."""

    model: str = ""
    params: GenerationParams = field(default_factory=GenerationParams)
    response_format: ResponseFormat | None = None
    """The constraint on the text of the output, if any."""
    stream: bool = False
    include_usage: bool = False
    """The last chunk of a stream has the usage."""
    continuous_usage: bool = False
    """Every chunk has the usage so far."""
    timings_per_token: bool = False
    """Every chunk has the timings so far."""
    return_progress: bool = False
    """Chunks report how many tokens of the prompt are computed."""
    ping_s: float | None = None
    """Seconds without a chunk after which an SSE comment is sent. 0: never; None: the server's default."""
    echo: bool = False
    """Repeat the prompt in the output; in chat, the assistant prefill."""
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    """Show tokens in log probabilities as "token_id:N" instead of as text."""
    request_id: str | None = None
    """The client's id of the request, for the log."""
    unknown: tuple[str, ...] = ()
    """The names of unknown fields, which were ignored."""

    @property
    def n_choices(self) -> int:
        """The number of outputs."""
        return self.params.n


def read_text_request(body: Fields) -> dict[str, Any]:
    """The fields of a TextRequest in a body of OpenAI's APIs, except `params` and `unknown`.

    Raises:
        BadRequest: A field is invalid.
    """
    return {
        "model": body.text("model") or "",
        "response_format": read_response_format(body),
        "echo": body.boolean("echo") or False,
        # vLLM's name and llama.cpp's name. any() gets a list, so that both are read.
        "return_token_ids": any([body.boolean("return_token_ids"), body.boolean("return_tokens")]),
        "tokens_as_ids": body.boolean("return_tokens_as_token_ids") or False,
        "request_id": body.text("request_id"),
        **read_streaming(body),
    }


def read_streaming(body: Fields) -> dict[str, Any]:
    """The fields of a TextRequest that concern streaming."""
    flags = ("stream", "timings_per_token", "return_progress")
    options = body.object_or_empty("stream_options")
    include, continuous = options.boolean("include_usage") or False, options.boolean("continuous_usage_stats")
    return {
        **{name: body.boolean(name) or False for name in flags},
        "include_usage": include,
        "continuous_usage": include and continuous is True,
        "ping_s": _ping_s(body),
    }


def _ping_s(body: Fields) -> float | None:
    seconds = body.number("sse_ping_interval", -1, MAX_PING_S)
    if seconds is None:
        return None
    return max(seconds, MIN_PING_S) if seconds > 0 else 0.0
