"""The options of clients and of calls: their names and types, and the errors of wrong names and types.

An unknown name is a TypeError, since a misspelt option would otherwise be ignored. `extra_body` takes any field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import LocalChatError
from ..reply.payloads import Json
from ..transport.timeouts import Timeout

if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict(dict):
        """A fast replacement of typing.TypedDict, which takes a millisecond for these classes. It keeps the names."""

        def __init_subclass__(cls, total=True):
            for base in cls.__bases__:
                cls.__annotations__.update(getattr(base, "__annotations__", {}))


class ConnectionOptions(TypedDict, total=False):
    """Options of a client besides `base_url`, `api_key` and `model`."""

    timeout: Timeout | float | None
    max_retries: int | None
    on_retry: Callable[[int, float, LocalChatError], object] | None
    headers: Mapping[str, str] | None
    proxy: str | bool | None
    verify: Any
    max_bytes: int


class ClientOptions(ConnectionOptions, total=False):
    """Options of a client; see Client."""

    base_url: str | None
    api_key: str | None
    model: str | None


class RequestOptions(TypedDict, total=False):
    """Options of every method that sends a request."""

    timeout: Timeout | float | None
    max_retries: int | None
    extra_headers: Mapping[str, str] | None


class ModelOptions(RequestOptions, total=False):
    """Options of every method that uses a model."""

    model: str | None
    extra_body: Mapping[str, Any] | None
    user: str | None


class GenerationOptions(ModelOptions, total=False):
    """Options of every method that generates text. All but `think_tags` are fields of the request."""

    think_tags: str
    # Length and stop conditions.
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
    # How a service handles the request.
    metadata: Json | None
    service_tier: str | None
    store: bool | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None


class MessageOptions(GenerationOptions, total=False):
    """Options of every method that takes messages, besides `response_format`."""

    allow_truncated: bool
    # The messages: `messages` in place of the first argument, and parts of them.
    messages: Sequence[Mapping[str, Any]]
    system: str | None
    images: Iterable[Any] | None
    audio: Any
    # Fields of the request.
    tool_choice: str | Json | None
    parallel_tool_calls: bool | None
    functions: Sequence[Json] | None
    function_call: str | Json | None
    top_logprobs: int | None
    reasoning_effort: str | None
    verbosity: str | None
    modalities: Sequence[str] | None
    prediction: Json | None
    web_search_options: Json | None
    moderation: Any
    chat_template_kwargs: Json | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


class StreamOptions(MessageOptions, total=False):
    """Options of `stream` besides `response_format`. Tools are JSON, or a Tool."""

    tools: Sequence[Any] | None


class ChatOptions(StreamOptions, total=False):
    """Options of `chat` besides `response_format`."""

    retries_on_mismatch: int


class MapOptions(ChatOptions, total=False):
    """Options of `map` besides `response_format`."""

    concurrency: int
    on_progress: Callable[[int, int], object] | None


class CompletionOptions(GenerationOptions, total=False):
    """Options of `complete`."""

    response_format: Any
    suffix: str | None
    echo: bool | None
    best_of: int | None
    prompt_logprobs: int | None


class EmbeddingOptions(ModelOptions, total=False):
    """Options of `embed`."""

    batch_size: int | None
    dimensions: int | None
    encoding_format: str | None


class RunOptions(MessageOptions, total=False):
    """Options of `run` and `run_stream`. Tools are functions."""

    response_format: Any
    max_rounds: int
    on_call: Callable[[Any], object] | None
    parallel: bool | int
    raise_errors: bool


# The options of each method that has some, and of a client.
OPTIONS_OF: dict[str, Any] = {
    **dict.fromkeys(("run", "run_stream", "conversation"), RunOptions),
    "chat": ChatOptions,
    "stream": StreamOptions,
    "map": MapOptions,
    "complete": CompletionOptions,
    "embed": EmbeddingOptions,
    "request": RequestOptions,
    "Client": ClientOptions,
}

# The types of options that nothing else checks.
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("base_url", "api_key", "model"), (str,)),
    **dict.fromkeys(("headers", "extra_headers", "extra_body"), (Mapping,)),
    "on_retry": (Callable,),
    "proxy": (str, bool),
}
# The least values of options that are whole numbers. None is the default, except of the last.
_LEAST = {"max_retries": 0, "max_bytes": 1, "batch_size": 1, "retries_on_mismatch": 0}
_THINK_TAGS = ("auto", "prefilled", "off")


def check_options(options: Mapping[str, Any], what: str) -> None:
    """Raise TypeError for an option that `what` does not have, or of a wrong type; ValueError for a wrong value."""
    known = OPTIONS_OF[what]
    names = known.__annotations__
    for name, value in options.items():
        # The overloads of `chat` and `stream` declare `response_format`, not the TypedDict.
        if name not in names and not (name == "response_format" and "tools" in names):
            raise TypeError(f"{what} has no option {name!r}{_hint(name, known)}")
        types = _TYPES.get(name, (object,))
        if value is not None and not isinstance(value, types):
            expected = " or ".join(kind.__name__ for kind in types)
            raise TypeError(f"{name} is a {expected}, not a {type(value).__name__}")
        if name in _LEAST and (value is not None or name == "retries_on_mismatch"):
            check_count(name, value, _LEAST[name])
        if name == "think_tags" and value not in _THINK_TAGS:
            raise ValueError(f"think_tags must be one of {', '.join(_THINK_TAGS)}, not {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which is not a finite number")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise ValueError if the value of an option is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is a whole number of at least {least}, not {value!r}")


def _hint(name: str, known: Any) -> str:
    """What to do about an unknown name, as the end of the message."""
    import difflib  # Late: only an error needs it.

    if name == "stream":
        return ": chat, complete and run return a Reply, stream and run_stream an iterator"
    if name in ClientOptions.__annotations__ and known is not ClientOptions:
        return f": it belongs to the client, Client({name}=...) or client.with_options({name}=...)"
    matches = difflib.get_close_matches(name, [*known.__annotations__, *ClientOptions.__annotations__], 1, 0.6)
    nearest = f": is {matches[0]} meant?" if matches else ""
    return nearest + ("; extra_body={...} sends any field" if "extra_body" in known.__annotations__ else "")
