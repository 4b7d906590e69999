"""The keyword arguments of clients and of calls: their names and types, and the error for a name that is unknown.

A name that is not listed here is a TypeError, since a misspelt option would otherwise change nothing, unnoticed.
`extra_body` takes any field that a server knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import LocalChatError
from .timeouts import Timeout

if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict:
        """Stands for the real one, which takes a millisecond for these classes: only the names count here."""

        def __init_subclass__(cls, total):
            for base in cls.__bases__:
                cls.__annotations__.update(getattr(base, "__annotations__", {}))


Json = dict[str, Any]


class PeerKeywords(TypedDict, total=False):
    """How a client reaches its server, and what it reports."""

    on_retry: Callable[[int, float, LocalChatError], object] | None
    headers: Mapping[str, str] | None
    proxy: str | bool | None
    verify: Any
    follow_redirects: bool
    record: str | os.PathLike[str] | None
    transport: Any
    log_bodies: bool
    max_bytes: int


class ClientKeywords(PeerKeywords, total=False):
    """Arguments of a client beside its server, key and model; see Client."""

    timeout: Timeout | float | None
    max_retries: int


class AllClientKeywords(ClientKeywords, total=False):
    """All arguments of a client."""

    base_url: str | None
    api_key: str | None
    model: str | None


class RequestKeywords(TypedDict, total=False):
    """Of every request: how it is made."""

    timeout: Timeout | float | None
    max_retries: int | None
    extra_headers: Mapping[str, str] | None


class CallKeywords(RequestKeywords, total=False):
    """Of every call of a model."""

    model: str | None
    extra_body: Mapping[str, Any] | None


class GenerationKeywords(CallKeywords, total=False):
    """Of every call that generates text: fields of the request, all but `think_tags`."""

    think_tags: str
    # Lengths and ends.
    max_tokens: int | None
    max_completion_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    # Sampling.
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    typical_p: float | None
    seed: int | None
    n: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repeat_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[str, float] | Sequence[Any] | None
    # Constraints.
    grammar: str | None
    json_schema: Json | None
    # What the response reports.
    logprobs: bool | int | None
    stream_options: Json | None
    # Bookkeeping.
    user: str | None
    metadata: Json | None


class MessageKeywords(GenerationKeywords, total=False):
    """Of every call with messages."""

    # Into the messages.
    system: str | None
    images: Iterable[Any] | None
    audio: Any
    # Fields of the request.
    tool_choice: str | Json | None
    parallel_tool_calls: bool | None
    top_logprobs: int | None
    reasoning_effort: str | None
    verbosity: str | None
    modalities: Sequence[str] | None
    prediction: Json | None
    service_tier: str | None
    store: bool | None
    chat_template_kwargs: Json | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


class StreamKeywords(MessageKeywords, total=False):
    """Of `stream`, beside `response_format`. It takes tools as JSON."""

    tools: Sequence[Json] | None


class ChatKeywords(StreamKeywords, total=False):
    """Of `chat`, beside `response_format`."""

    retries_on_mismatch: int


class QuickKeywords(ChatKeywords, PeerKeywords, total=False):
    """Of the function `chat`, beside `response_format`: those of the method, and those of the client it makes."""

    allow_truncated: bool
    base_url: str | None
    api_key: str | None


class MapKeywords(ChatKeywords, total=False):
    """Of `map`."""

    response_format: Any
    concurrency: int
    on_progress: Callable[[int, int], object] | None


class CompletionKeywords(GenerationKeywords, total=False):
    """Of `complete`, beside `response_format`."""

    suffix: str | None
    echo: bool | None
    best_of: int | None
    prompt_logprobs: int | None


class EmbeddingKeywords(CallKeywords, total=False):
    """Of `embed`."""

    batch_size: int | None
    dimensions: int | None
    encoding_format: str | None
    user: str | None


class RunKeywords(MessageKeywords, total=False):
    """Of `run` and `run_stream`, which take tools as functions."""

    response_format: Any
    max_rounds: int
    on_call: Callable[[Any], object] | None
    parallel: bool | int
    raise_errors: bool


def check_keywords(given: Iterable[str], known: Any, what: str) -> None:
    """Raise TypeError for a name that is none of the TypedDict `known`; `what` is called with it."""
    names = known.__annotations__
    for name in given:
        if name not in names and not (name == "response_format" and "temperature" in names):
            raise TypeError(f"{what} has no option {name!r}{_hint(name, known)}")


_HINTS = {
    "stream": "chat, complete and run return a Reply, stream and run_stream an iterator; a server that cannot stream "
    'is called with extra_body={"stream": False}',
    "system": "put it into the prompt",
    "headers": "of one call these are extra_headers, of all calls Client(headers=...)",
    "retries_on_mismatch": "only chat and map ask again",
}


def _hint(name: str, known: Any) -> str:
    if known is AllClientKeywords or known is ClientKeywords:
        return _nearest(name, known)
    if known is RequestKeywords and name not in ("base_url", "api_key", "headers"):
        return _nearest(name, known) + ": fields of the body go into `json`"
    if name in _HINTS:
        return ": " + _HINTS[name]
    if name in AllClientKeywords.__annotations__:
        return f": it belongs to the client, Client({name}=...) or client.with_options({name}=...)"
    return _nearest(name, known) + "; extra_body={...} sends any field"


def _nearest(name: str, known: Any) -> str:
    import difflib  # Late: only a mistake needs it.

    nearest = difflib.get_close_matches(name, known.__annotations__, 1, 0.6)
    return f": is {nearest[0]} meant?" if nearest else ""
