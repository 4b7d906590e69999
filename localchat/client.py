"""The chat client over blocking sockets, and the part of both clients that does not wait for the network.

`python -m localchat.extras.vendor` copies the client into another project, as one file or as several; they need the
standard library only. `aio` has the asynchronous client.
"""

from __future__ import annotations

import contextlib
import json as json_module
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from .errors import (
    BadRequestError,
    DoesNotFit,
    IncompleteReply,
    LocalChatError,
    NotFoundError,
    ProtocolError,
    StatusError,
    UnprocessableError,
)
from .events import Reply, StreamEvent, Value
from .reply.assembly import Accumulator
from .reply.payloads import Model, Prompt, check_prompt, choose_model, parse_models
from .transport.call import Call
from .transport.keywords import (
    ChatKeywords,
    ClientKeywords,
    CompletionKeywords,
    EmbeddingKeywords,
    MapKeywords,
    RequestKeywords,
    RunKeywords,
    StreamKeywords,
)
from .transport.options import CHAT_PATH, CallOptions, Settings, TextPrompt
from .transport.pool import Pool
from .transport.retries import read_json
from .transport.sockets import Driver, Result, run_blocking
from .transport.streams import BaseEvents, BlockingEvents, Response

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .agent.conversation import Conversation
    from .agent.tool_run import ToolRun
    from .agent.tools import AnyTool
    from .extras.embeddings import Embeddings

# The type that `response_format` names, and of `reply.parsed`.
T = TypeVar("T")

_JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


class BaseClient:
    """The base of Client and AsyncClient: their settings, and what their methods do, as coroutines."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        **options: Unpack[ClientKeywords],
    ) -> None:
        self._settings = Settings(base_url, api_key, model, **options)
        self._pool = Pool()

    def with_options(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        **options: Unpack[ClientKeywords],
    ) -> Self:
        """A client with other values for some arguments of `Client`. It shares the connections if it can."""
        client, old = type(self).__new__(type(self)), self._settings
        client._settings = new = old.changed(base_url, api_key, model, options)
        is_same = (new.address, new.proxy, new.verify) == (old.address, old.proxy, old.verify)
        client._pool = self._pool if is_same else Pool()
        return client

    @property
    def base_url(self) -> str:
        """The URL of the server, as passed to the client."""
        return self._settings.base_url

    def __repr__(self) -> str:
        """Leave out the query of the base URL, which is a key for some servers."""
        return f"{type(self).__name__}({self._settings.base_url.partition('?')[0]!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it holds a key and connections")

    def _chat_options(self, prompt: Any, given: Mapping[str, Any], keywords: Any, what: str) -> CallOptions:
        """The options of a call with messages, which are `prompt` or the option `messages`."""
        given = dict(given)
        messages = given.pop("messages", None)
        if messages is not None and prompt is not None:
            raise TypeError(f"{what} got a prompt and messages, which are the same argument: leave one out")
        prompt = messages if prompt is None else prompt
        check_prompt(prompt)
        return self._options(prompt, given, keywords, what)

    def _completion_options(self, prompt: Any, given: Mapping[str, Any]) -> CallOptions:
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
            raise TypeError(f"complete takes text, a list of texts or of tokens, not {type(prompt).__name__}")
        return self._options(prompt, {"think_tags": "off", **given}, CompletionKeywords, "complete")

    def _options(self, prompt: Any, given: Mapping[str, Any], keywords: Any, what: str) -> CallOptions:
        options = CallOptions(self._settings, prompt, given, keywords, what)
        target = options.fields.get("response_format")
        kind = target.get("type") if isinstance(target, Mapping) else None
        # A mapping whose `type` is not one of JSON Schema is a `response_format` itself, which is sent as it is.
        is_schema = not isinstance(kind, str) or kind in _JSON_TYPES
        self._settings.request_headers(options.headers)  # Like the next two lines, this raises for wrong values.
        Accumulator(options.n_choices, options.think_tags)
        options.body("completions" if what == "complete" else CHAT_PATH, None)
        if target is not None and is_schema:
            del options.fields["response_format"]
            from .schema.structured import ExpectedValue  # Imported here, like all modules that few programs need.

            options.expected = ExpectedValue(target)
        return options

    def _call(self, driver: Any, options: CallOptions) -> Call:
        return Call(self._settings, self._pool, driver, options.timeout, options.max_retries)

    # The methods of both clients, as coroutines that get a driver.

    def _start(self, driver: Any, options: CallOptions, path: str) -> Response:
        """The response to a request, which is sent when its events are read."""
        call = self._call(driver, options)
        accumulator = Accumulator(options.n_choices, options.think_tags, options.tool_names)
        return Response(call, lambda: self._send(call, options, path), accumulator, options.expected)

    async def _chat(self, driver: Any, prompt: Any, given: Mapping[str, Any]) -> Reply[Any]:
        return await self._read_reply(driver, self._chat_options(prompt, given, ChatKeywords, "chat"), CHAT_PATH)

    async def _read_reply(self, driver: Any, options: CallOptions, path: str) -> Reply[Any]:
        """The complete reply. If the text does not match the expected value, the request is repeated."""
        for left in reversed(range(options.retries_on_mismatch + 1)):
            response = self._start(driver, options, path)
            try:
                async for _ in response.events():
                    pass
                break
            except DoesNotFit as error:
                if path == CHAT_PATH and not options.allow_truncated:
                    check_complete(response.reply, options.fields)
                if not left:
                    raise
                from .schema.structured import corrected

                options.prompt = corrected(options.prompt, error)
        if path == CHAT_PATH and not options.allow_truncated:
            check_complete(response.reply, options.fields)
        return response.reply

    async def _list_models(self, driver: Any) -> list[Model]:
        options = CallOptions(self._settings, "", {}, RequestKeywords, "models")
        return await self._fetch_models(self._call(driver, options), options)

    async def _request(self, driver: Any, method: str, path: str, json: Any, given: Mapping[str, Any]) -> Any:
        """The parsed JSON of any response, its text if it is not JSON, None if it is empty."""
        if not (method.isascii() and method.isalpha()):
            raise ValueError(f"not a valid HTTP method: {method!r}")
        options = CallOptions(self._settings, "", given, RequestKeywords, "request")
        raw = await self._call(driver, options).fetch(method, path, json, options.headers)
        text = raw.decode("utf-8", "replace")
        try:
            return json_module.loads(text) if text.strip() else None
        except (ValueError, RecursionError):
            return text

    async def _embed(self, driver: Any, text: Any, given: Mapping[str, Any]) -> Any:
        options = CallOptions(self._settings, "", given, EmbeddingKeywords, "embed")
        from .extras.embeddings import embed

        call = self._call(driver, options)
        model = options.model or await self._default_model(call, options)
        return await embed(self._settings, call, options, model, text)

    # Parts of these coroutines.

    async def _send(self, call: Call, options: CallOptions, path: str) -> None:
        """Send a request for a completion. If the server refuses a field, repeat it without the field."""
        settings, expected = self._settings, options.expected
        if options.media:  # Their files are read in a thread.
            from .extras.media import attach

            options.prompt = await call.wait("call", None, lambda: attach(options.prompt, **options.media))
            options.media = {}
        model = options.model or await self._default_model(call, options)
        body = options.body(path, model, settings.takes_stream_options)
        refused = set()
        while True:
            try:
                await call.send("POST", path, body if expected is None else expected.apply(body), options.headers)
                break
            except (BadRequestError, UnprocessableError) as error:
                named = [one for one in body.get("messages", ()) if one.get("role") == "tool" and "name" in one]
                if "stream_options" in body and "stream_options" in error.body:
                    del body["stream_options"]
                    refused.add("takes_stream_options")
                elif named and re.search(r"\bname\b", error.body):  # A strict server: OpenAI's messages have no name.
                    refused.add("takes_tool_names")
                    for message in named:
                        del message["name"]
                elif expected is None or not expected.weaken(error):
                    raise
            except NotFoundError:
                if options.model or model is None or model != settings.found_model:
                    raise
                settings.found_model = None  # The server may have another model now.
                body["model"] = await self._default_model(call, options)
                if body["model"] in (None, model):
                    raise
        for name in refused:
            setattr(settings, name, False)

    async def _default_model(self, call: Call, options: CallOptions) -> str | None:
        """The model of the client, or the only one of the server; None if the server lists none."""
        settings = self._settings
        if settings.model is None and settings.found_model is None:
            try:
                settings.found_model = choose_model(await self._fetch_models(call, options))
            except ProtocolError:  # Many servers with one model have no list.
                return None
            except StatusError as error:
                if error.status not in (404, 405, 501):
                    raise
        return settings.model or settings.found_model

    async def _find_model(self, driver: Any, prompts: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Find the model of the server once for several calls with these options."""
        if prompts and given.get("model") is None:
            known = {name: value for name, value in given.items() if name in RequestKeywords.__annotations__}
            options = CallOptions(self._settings, "", known, RequestKeywords, "map")
            await self._default_model(self._call(driver, options), options)

    async def _fetch_models(self, call: Call, options: CallOptions) -> list[Model]:
        raw = await call.fetch("GET", "models", None, options.headers)
        return parse_models(read_json(self._settings, "list of models is", raw))


def check_complete(reply: Reply[Any], fields: Mapping[str, Any]) -> None:
    """Raise IncompleteReply if a filter cut the reply, or a token limit that the fields of the request do not set."""
    is_limited = any(fields.get(name) is not None for name in ("max_tokens", "max_completion_tokens"))
    reasons = {choice.finish_reason: str(choice.finish_reason_raw) for choice in reply.choices}
    if "content_filter" in reasons:
        cause, other = "by a content filter", ""
    elif "context" in reasons.get("length", ""):  # max_tokens is another limit.
        cause, other = "at the end of the model's context", ""
    elif "length" in reasons and not is_limited:
        cause, other = "at a limit of tokens", "max_tokens or "
    else:
        return
    message = f"the response was cut {cause}, after {len(reply.text)} characters: set {other}allow_truncated=True"
    raise IncompleteReply(f"{message} to get it anyway; the error has it as `partial`", partial=reply)


class BaseStream(BaseEvents[StreamEvent], Generic[Value]):
    """The part of Stream and AsyncStream that does not depend on how they wait."""

    def __init__(self, driver: Any, response: Response) -> None:
        self._driver = driver
        self._response = response
        # The generator gets no reference to this object: in a cycle, a dropped stream would not close its connection.
        self._events = response.events()

    @property
    def reply(self) -> Reply[Value]:
        """The reply received so far; complete after the last event."""
        return self._response.reply

    async def _open(self) -> None:
        """Send the request, if this was not done before."""
        if not self._response.begun:
            await self._next(is_opening=True)

    _is_done = property(lambda self: self._response.succeeded)
    _is_closed = property(lambda self: self._driver.is_cancelled)

    async def _close(self) -> None:
        self._driver.cancel()
        with contextlib.suppress(RuntimeError):  # Another thread or task runs the generator, and closes it now.
            await self._events.aclose()


class Stream(BaseStream[Value], BlockingEvents[StreamEvent]):
    """A streamed response. Iterate it for events, or `text` for text; leave the `with` block to cancel the request.

    Entering the `with` block sends the request; without one, the first iteration does. `reply` is the reply received
    so far, also after an error. A stream without references closes its connection.
    """


class Client(BaseClient):
    """A chat client. It can be used by many threads, and after a fork.

    Args:
        base_url: The URL of the server, with /v1; default: OPENAI_BASE_URL, or http://127.0.0.1:8080/v1. A unix socket
            is `unix:/path/to/socket`.
        api_key: The key; default: OPENAI_API_KEY, which is sent only to OPENAI_BASE_URL, to this machine and over
            https. A local server needs none.
        model: The name of the model; default: LOCALCHAT_MODEL, or the only model of the server.
        timeout: A Timeout, or a number of seconds, which sets `first`, `idle` and `connect` (5 at most) of a Timeout.
        max_retries: The number of retries of a request without a response, or with a status such as 429 or 503.
        on_retry: Called before each retry with its number, the delay in seconds and the error.
        headers: Sent with every request.
        proxy: The URL of a proxy, False for none, or None for the proxy of the environment.
        verify: True, False, the path of a CA file, or an ssl.SSLContext.
        max_bytes: The limit of the bytes of a response after decompression; default: 256 MiB.
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. The client can still be used."""
        self._pool.close()

    @overload
    def chat(
        self, prompt: Prompt | None = None, *, response_format: type[T], **options: Unpack[ChatKeywords]
    ) -> Reply[T]: ...

    @overload
    def chat(
        self, prompt: Prompt | None = None, *, response_format: object = None, **options: Unpack[ChatKeywords]
    ) -> Reply[Any]: ...

    def chat(self, prompt: Prompt | None = None, **options: Any) -> Reply[Any]:
        """Send a prompt and return the complete reply.

        Args:
            prompt: Text, or a list of messages.
            options: Those of `stream`; `retries_on_mismatch` (0): how often to repeat the request if the text does
                not match `response_format`, with the text and the mismatch added to the conversation;
                `allow_truncated`: whether to return a reply that was cut.

        Raises:
            IncompleteReply: A content filter cut the text, or a token limit although `max_tokens` is not set: an
                incomplete text often looks complete. The error has the reply as `partial`.
            LocalChatError: The reply is not complete; see its subclasses.
            DoesNotFit: The text does not match `response_format`.
            TypeError: An option is unknown, or the prompt is neither text nor a list of messages.
        """
        return self._run(self._chat, prompt, options)

    @overload
    def stream(
        self, prompt: Prompt | None = None, *, response_format: type[T], **options: Unpack[StreamKeywords]
    ) -> Stream[T]: ...

    @overload
    def stream(
        self, prompt: Prompt | None = None, *, response_format: object = None, **options: Unpack[StreamKeywords]
    ) -> Stream[Any]: ...

    def stream(self, prompt: Prompt | None = None, **options: Any) -> Stream[Any]:
        """Send a prompt and return the response as a stream of events.

        Args:
            prompt: Text, or a list of messages.
            options: Fields of the request, and options of the client for this call; ChatKeywords lists all.
                `system` is the text of a system message; `images` and `audio` (lists of paths, bytes or URLs) are
                added to the last message. `response_format` may also be a type, a schema or "name, age int" (see
                schema): then the text is validated, and `reply.parsed` is its value. `think_tags` ("auto",
                "prefilled" or "off") is how to treat <think> in the content. `timeout` and `max_retries` replace
                those of the client, `extra_headers` are added to its headers. `extra_body` has fields that are not
                options.
        """
        driver = Driver()
        parsed = self._chat_options(prompt, options, StreamKeywords, "stream")
        return Stream(driver, self._start(driver, parsed, CHAT_PATH))

    def map(self, prompts: Iterable[Prompt], /, **options: Unpack[MapKeywords]) -> list[Reply[Any] | LocalChatError]:
        """Send many prompts and return their replies in the same order, with an error in place of a failed reply.

        Args:
            prompts: Each is text or a list of messages.
            options: Those of `chat`, for every prompt; `concurrency` (8): the number of requests in flight;
                `on_progress`: called after each reply with the number of finished prompts and of all prompts.
        """
        from .extras import mapping

        parsed = mapping.parse(prompts, options)
        self._chat_options("", parsed[-1], ChatKeywords, "map")
        with contextlib.suppress(LocalChatError):  # Each call reports it.
            self._run(self._find_model, parsed[0], options)
        return mapping.map_prompts(self, parsed)

    def models(self) -> list[Model]:
        """The models that the server lists: their names, each with `context_length`, `state` and `raw`."""
        return self._run(self._list_models)

    def request(self, method: str, path: str, json: Any = None, **options: Unpack[RequestKeywords]) -> Any:
        """Send any other request, with the same timeouts, retries and errors.

        The path is relative to the base URL (`rerank`), or absolute if it begins with / (`/health`). `json` is sent as
        the body; None sends no body. Returns the parsed JSON of the response, its text if it is not JSON, None if it is
        empty.
        """
        return self._run(self._request, method, path, json, options)

    def run(
        self, prompt: Prompt | None = None, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]
    ) -> Reply[Any]:
        """Send a prompt with tools, run the tool calls of the model, and repeat until it calls none.

        Args:
            prompt: Text, or a list of messages.
            tools: Functions; their annotations and docstrings describe them to the model.
            options: Those of `stream`, for every request; `max_rounds` (10): the limit of requests; `on_call`: called
                with each ToolCall before it is run, and only True runs it; `parallel`: whether to run the calls of
                one round in threads; `raise_errors`: whether to raise the exception of a tool in place of reporting
                it to the model.

        Raises:
            TooManyRounds: The model called tools in every round.
            LocalChatError: As from `chat`.
        """
        return self.run_stream(prompt, tools, **options).finish()

    def run_stream(
        self, prompt: Prompt | None = None, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]
    ) -> ToolRun:
        """Like `run`, but return an iterator over the events, which include the results of tools."""
        from .agent.tool_run import ToolRun

        return ToolRun(self, prompt, tools, **options)

    def conversation(self, **options: Any) -> Conversation:
        """A list of messages that grows turn by turn. The options are those of Conversation."""
        from .agent.conversation import Conversation

        return Conversation(self, **options)

    def complete(self, prompt: TextPrompt, **options: Unpack[CompletionKeywords]) -> Reply[Any]:
        """Complete a text without a chat template (/completions). The prompt may also be tokens, or several texts."""
        return self._run(self._read_reply, self._completion_options(prompt, options), "completions")

    # The overload for str is first, since a str is also a Sequence of str.
    @overload
    def embed(  # type: ignore[overload-overlap]
        self, text: str, /, **options: Unpack[EmbeddingKeywords]
    ) -> Embeddings[float]: ...

    @overload
    def embed(
        self, text: Sequence[str] | Sequence[Sequence[int]], /, **options: Unpack[EmbeddingKeywords]
    ) -> Embeddings[list[float]]: ...

    def embed(self, text: Any, /, **options: Unpack[EmbeddingKeywords]) -> Any:
        """The vector of a text, or the vectors of several texts (/embeddings).

        A request has at most `batch_size` (256) texts. The result is a list with `usage` and `model`.

        Raises:
            ModelNotNamed: No model is named, and the server has several.
            ProtocolError: The response does not contain one vector for each text.
        """
        return self._run(self._embed, text, options)

    def _run(self, method: Callable[..., Coroutine[Any, Any, Result]], *arguments: Any) -> Result:
        """The result of this coroutine function, which gets a driver and the arguments."""
        return run_blocking(method(Driver(), *arguments))


def chat(
    prompt: Prompt | None = None,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    response_format: Any = None,
    **options: Unpack[ChatKeywords],
) -> Reply[Any]:
    """Send a prompt with a new client and return the complete reply; see Client.chat."""
    with Client(base_url, api_key) as client:
        return client.chat(prompt, response_format=response_format, **options)
