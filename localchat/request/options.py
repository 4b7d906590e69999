"""The options of clients and of calls: their names and types, their meaning, and the errors of wrong ones.

Each method has a TypedDict with its options, which inherits from those with the options of several methods:

    RequestOptions                      request
    └── ModelOptions
        ├── EmbeddingOptions            embed
        └── GenerationOptions
            ├── CompletionOptions       complete
            └── MessageOptions
                ├── RunOptions          run, run_stream, conversation
                └── StreamOptions       stream
                    └── ChatOptions     chat
                        └── MapOptions  map
    ConnectionOptions                   Client
    └── ClientOptions                   Client.with_options

The docstring of a class has one line for each of its options, never wrapped, which `help(client.chat)` and the like
show. An unknown name is a TypeError, since a misspelt option would otherwise be ignored. `extra_body` takes any field.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import LocalChatError
from ..reply.payloads import Json
from ..reply.text import check_think_tags
from ..transport.timeouts import Timeout

if TYPE_CHECKING:
    from typing import TypedDict
else:

    class TypedDict(dict):
        """A fast replacement of typing.TypedDict, which takes a millisecond for these classes.

        Like there, `__annotations__` also has the options of the base classes.
        """

        def __init_subclass__(cls, total=True):
            for base in cls.__bases__:
                cls.__annotations__.update(getattr(base, "__annotations__", {}))


class ConnectionOptions(TypedDict, total=False):
    """Options of a client besides `base_url`, `api_key` and `model`.

    timeout: a Timeout, or a number of seconds for all limits; `Timeout(None)` is no limit.
    max_retries: the number of retries of a request without a response, or with a status such as 429 or 503 (2).
    on_retry: called before each retry with its number, the delay in seconds and the error.
    headers: sent with every request.
    proxy: the URL of a proxy, or False for none; by default the proxy of the environment.
    verify: True, False, the path of a CA file, or an ssl.SSLContext.
    max_bytes: the limit of the bytes of a response after decompression (256 MiB).
    """

    timeout: Timeout | float | None
    max_retries: int | None
    on_retry: Callable[[int, float, LocalChatError], object] | None
    headers: Mapping[str, str] | None
    proxy: str | bool | None
    verify: Any
    max_bytes: int | None


class ClientOptions(ConnectionOptions, total=False):
    """Options of a client; see Client.

    base_url: the URL of the server, with /v1.
    api_key: the key; a local server needs none.
    model: the name of the model; by default the only one of the server.
    """

    base_url: str | None
    api_key: str | None
    model: str | None


class RequestOptions(TypedDict, total=False):
    """Options of every method that sends a request.

    timeout: a Timeout, or a number of seconds for all limits; by default that of the client.
    max_retries: the number of retries; by default that of the client.
    extra_headers: added to the headers of the client.
    """

    timeout: Timeout | float | None
    max_retries: int | None
    extra_headers: Mapping[str, str] | None


class ModelOptions(RequestOptions, total=False):
    """Options of every method that uses a model.

    model: the name of the model; by default that of the client.
    extra_body: any other fields of the request, which replace all options.
    user: an id of the end user, for the service.
    """

    model: str | None
    extra_body: Mapping[str, Any] | None
    user: str | None


class GenerationOptions(ModelOptions, total=False):
    """Options of every method that generates text. All but `think_tags` are fields of the request.

    think_tags: how to treat <think> in the text: "auto", "prefilled" (the chat template opens the tag) or "off".
    max_tokens: the limit of the tokens of the output.
    max_completion_tokens: the same, for servers that refuse `max_tokens`; reasoning counts.
    min_tokens: the least number of tokens before the output may end.
    stop: a text, or several, before which the output ends.
    stop_token_ids: tokens after which the output ends.
    ignore_eos: whether the output goes on after the end-of-generation token.
    temperature: the randomness of sampling; 0 always takes the most probable token.
    top_p: sample from the most probable tokens whose probabilities add up to this.
    top_k: sample from this many of the most probable tokens.
    min_p: sample from the tokens with at least this fraction of the highest probability.
    typical_p: sample from the tokens whose information is near the expected one.
    seed: makes sampling repeatable, as far as the server can.
    n: the number of choices.
    presence_penalty: lowers the logits of all tokens that the text contains.
    frequency_penalty: lowers the logits of tokens by their count in the text.
    repeat_penalty: divides the logits of repeated tokens (llama.cpp).
    repetition_penalty: the same, under the name of vLLM.
    logit_bias: numbers that are added to the logits of tokens.
    grammar: a grammar in GBNF that the output has to match (llama.cpp).
    json_schema: a JSON Schema that the output has to match, under the name of llama.cpp.
    logprobs: whether the response has the log probabilities of its tokens; of `complete`, how many candidates.
    stream_options: what a stream reports; by default the usage.
    metadata: names and values that the service stores with the response.
    service_tier: the tier of the service that processes the request.
    store: whether the service stores the response.
    safety_identifier: an id of the end user, for the detection of abuse.
    prompt_cache_key: requests with equal keys share a cache of prompts.
    prompt_cache_retention: how long the service keeps the prompt in its cache.
    """

    think_tags: str | None
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
    """Options of every method that takes messages, besides `response_format`.

    allow_truncated: return a reply that a limit or a filter cut, in place of raising IncompleteReply.
    messages: the list of messages, in place of the first argument.
    system: the text of a system message, before the prompt.
    images: paths, bytes or URLs of images for the last message.
    audio: paths or bytes of sounds for the last message; a dict is OpenAI's field for spoken output.
    tool_choice: "auto", "none", "required", or the tool that the model must call.
    parallel_tool_calls: whether the model may call several tools at once.
    functions: OpenAI's older form of `tools`.
    function_call: OpenAI's older form of `tool_choice`.
    top_logprobs: how many candidates the log probabilities of each token list.
    reasoning_effort: how much the model reasons, such as "low".
    verbosity: how long the text is, such as "low".
    modalities: the kinds of output, such as "text" and "audio".
    prediction: a text that the output is expected to contain for the most part.
    web_search_options: options of a search of the service.
    moderation: options of the moderation of the service.
    chat_template_kwargs: arguments of the chat template, such as {"enable_thinking": False}.
    add_generation_prompt: whether the template opens the message of the assistant.
    continue_final_message: whether the output continues the last message.
    """

    allow_truncated: bool | None
    # The messages: `messages` in place of the first argument, and parts of them.
    messages: Sequence[Mapping[str, Any]] | None
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
    """Options of `stream` besides `response_format`. Tools are JSON, or a Tool.

    response_format: a type or a schema of the output, whose value is `reply.parsed`; or the field of the request.
    tools: the tools that the model may call: Tool objects, or JSON as in OpenAI's API. The caller runs the calls.
    """

    tools: Sequence[Any] | None


class ChatOptions(StreamOptions, total=False):
    """Options of `chat` besides `response_format`.

    retries_on_mismatch: how often to repeat the request after output that does not match `response_format` (0).
    """

    retries_on_mismatch: int | None


class MapOptions(ChatOptions, total=False):
    """Options of `map` besides `response_format`.

    concurrency: the number of requests in flight (8).
    on_progress: called after each reply with the number of finished prompts and of all prompts.
    """

    concurrency: int | None
    on_progress: Callable[[int, int], object] | None


class CompletionOptions(GenerationOptions, total=False):
    """Options of `complete`.

    response_format: a type or a schema of the output, whose value is `reply.parsed`; or the field of the request.
    suffix: the text after the gap that the output fills.
    echo: whether the output begins with the prompt.
    best_of: the number of completions of which the service returns the best.
    prompt_logprobs: how many candidates the log probabilities of each token of the prompt list.
    """

    response_format: Any
    suffix: str | None
    echo: bool | None
    best_of: int | None
    prompt_logprobs: int | None


class EmbeddingOptions(ModelOptions, total=False):
    """Options of `embed`.

    batch_size: the number of texts in one request (256).
    dimensions: the length of the vectors.
    encoding_format: "float" or "base64".
    """

    batch_size: int | None
    dimensions: int | None
    encoding_format: str | None


class RunOptions(MessageOptions, total=False):
    """Options of `run` and `run_stream`. Tools are functions.

    response_format: a type or a schema of the last output, whose value is `reply.parsed`; or the field of the request.
    max_rounds: the limit of requests (10).
    on_call: called with each ToolCall before it is run; only True runs it, and a text is the reason for the model.
    parallel: whether to run the calls of one round in threads; a number is their limit.
    raise_errors: whether to raise the exception of a tool, in place of reporting it to the model.
    """

    response_format: Any
    max_rounds: int | None
    on_call: Callable[[Any], object] | None
    parallel: bool | int | None
    raise_errors: bool | None


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
    "proxy": (str, bool),
}
# The least values of options that are whole numbers.
_LEAST = {"max_retries": 0, "max_bytes": 1, "batch_size": 1, "retries_on_mismatch": 0}


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not None. None for an option is the same as leaving it out."""
    return {name: value for name, value in options.items() if value is not None}


@functools.cache
def describe_options(known: Any) -> str:
    """The name, the type and the meaning of each option, from the docstrings of these classes, for a docstring."""
    types, described = {"response_format": "Any", **known.__annotations__}, []
    for options in known.__mro__:
        for line in (options.__doc__ or "").splitlines()[2:]:
            name, _, meaning = line.strip().partition(": ")
            if name in types:
                described.append(f"{name} ({types[name]}): {meaning}")
    return "\n    ".join(["Options:", *described])


def check_options(options: Mapping[str, Any], method: str) -> None:
    """Raise TypeError for an option that the method does not have, or of a wrong type; ValueError for a wrong value."""
    known = OPTIONS_OF[method]
    # The overloads of these methods declare `response_format`, since it decides the type of the result.
    names = {*known.__annotations__, *(["response_format"] if StreamOptions in known.__mro__ else ())}
    for name, value in options.items():
        if name not in names:
            raise TypeError(f"{method} has no option {name!r}{_hint(name, known)}")
        if value is not None:
            _check_value(name, value)


def _check_value(name: str, value: object) -> None:
    types = _TYPES.get(name, (object,))
    if not isinstance(value, types):
        expected = " or ".join(allowed.__name__ for allowed in types)
        raise TypeError(f"{name} is a {expected}, not a {type(value).__name__}")
    if name in _LEAST:
        check_count(name, value, _LEAST[name])
    if name == "think_tags":
        check_think_tags(value)
    if name in ("on_retry", "on_progress"):
        check_callback(name, value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}, which is not a finite number")


def check_callback(name: str, value: object) -> None:
    """Raise TypeError if the value of an option is no function, or one that would have to be awaited."""
    if not callable(value):
        raise TypeError(f"{name} is a function, not {value!r:.100}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(f"{name} is a coroutine function, which would not be awaited: give a plain function")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise ValueError if the value of an option is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is a whole number of at least {least}, not {value!r}")


def _hint(name: str, known: Any) -> str:
    """What to do about an unknown name, as the end of the message."""
    import difflib  # Late: only an error needs it.

    if name == "extra_body" and known is RequestOptions:
        return ": the body is the argument json"
    if name == "stream":
        return ": chat, complete and run return a Reply, stream and run_stream an iterator"
    if name in ClientOptions.__annotations__ and known is not ClientOptions:
        return f": it belongs to the client, Client({name}=...) or client.with_options({name}=...)"
    matches = difflib.get_close_matches(name, [*known.__annotations__, *ClientOptions.__annotations__], 1, 0.6)
    nearest = f": is {matches[0]} meant?" if matches else ""
    return nearest + ("; extra_body={...} sends any field" if "extra_body" in known.__annotations__ else "")
