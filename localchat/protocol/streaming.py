"""The members that say how an answer is to come: at once or as events, and what the events have besides its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .fields import Members

# One that is almost nothing would have the server write comments all the time, beside the answers of others.
MIN_PING_S = 0.01
MAX_PING_S = 3600


@dataclass(frozen=True)
class Streaming:
    """With `stream` the answer comes as events.

    Usage is told at their end, or with `continuous_usage` on each (V18). With `return_progress` there is word of how
    far the prompt has been read. `ping_s` is how long the stream may be silent, 0 for ever, None by the server.
    """

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    ping_s: float | None = None


def read_streaming(body: Members) -> dict[str, Any]:
    """The members of a Streaming.

    Raises:
        BadRequest: One of them is not as it should be.
    """
    flags = {name: body.boolean(name) or False for name in ("stream", "timings_per_token", "return_progress")}
    options = body.object("stream_options") or Members({})
    include, continuous = options.boolean("include_usage") or False, options.boolean("continuous_usage_stats")
    usage = {"include_usage": include, "continuous_usage": include and continuous is True}
    seconds = body.number("sse_ping_interval", -1, MAX_PING_S)
    if seconds is not None:
        seconds = max(seconds, MIN_PING_S) if seconds > 0 else 0.0
    return {**flags, **usage, "ping_s": seconds}


def read_token_ids(body: Members) -> bool:
    """Whether the ids of the tokens are asked for, by vLLM's name or by llama.cpp's."""
    return any([body.boolean("return_token_ids"), body.boolean("return_tokens")])


def progress_body(n_done: int, n_prompt: int, n_cached: int, seconds: float) -> dict[str, Any]:
    """llama.cpp's member on how far a prompt has been read."""
    return {"total": n_prompt, "cache": n_cached, "processed": n_done, "time_ms": round(seconds * 1000)}
