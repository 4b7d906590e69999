"""The chat client over blocking sockets, and the part of both clients that does not wait for the network."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, overload

from .errors import DoesNotFit
from .events import Reply, Value
from .request.arguments import BaseRequest
from .request.completion import CompletionRequest
from .request.models import Model, fetch_models
from .request.options import (
    OPTIONS_OF,
    ChatOptions,
    ClientOptions,
    CompletionOptions,
    ConnectionOptions,
    EmbeddingOptions,
    MapOptions,
    RequestOptions,
    RunOptions,
    StreamOptions,
    check_options,
    describe_options,
    without_none,
)
from .request.prompts import Prompt, TextPrompt, Texts
from .request.response import Response
from .streams import BaseStream, Stream
from .transport.call import Call
from .transport.settings import Settings
from .transport.sockets import Driver, Pool, run_blocking

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from .agent.conversation import Conversation
    from .agent.tool_run import ToolRun
    from .agent.tools import AnyTool
    from .embeddings import Embeddings
    from .transport.operations import AnyDriver

    class _ChatFunctionOptions(ChatOptions, total=False):
        """Options of the function `chat`."""

        base_url: str | None
        api_key: str | None


class BaseClient:
    """The base of Client and AsyncClient: their settings, and what their methods do, as coroutines.

    The coroutines await only methods of a driver. Those of an AsyncDriver wait in an event loop. Those of a Driver
    block and never suspend, so that `run_blocking` runs the coroutines like functions. Attributes with an underscore,
    here and of streams, are used by other modules of the package, not by programs.
    """

    def __init_subclass__(cls) -> None:
        """Add the options of `OPTIONS_OF` to the docstrings of the methods with these names, which `help` shows."""
        for name, known in OPTIONS_OF.items():
            method = vars(cls).get(name)
            if method and method.__doc__:  # Python was not started with -OO.
                method.__doc__ = f"{inspect.cleandoc(method.__doc__)}\n\n{describe_options(known)}"

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        self._options: dict[str, Any] = {"base_url": base_url, "api_key": api_key, "model": model, **options}
        check_options(self._options, "Client")
        self._settings = Settings(**self._options)
        self._pool = Pool()

    def with_options(self, **options: Unpack[ClientOptions]) -> Self:
        """A client with other values for some arguments of `Client`. It shares the connections if it can.

        `headers` are added to those of this client. The key and the headers of this client are also sent to another
        `base_url`. None for an option is the same as leaving it out.
        """
        check_options(options, "Client")
        client = type(self).__new__(type(self))
        vars(client).update(vars(self))  # The attributes of a subclass stay.
        client._options = {**self._options, **without_none(options)}
        if options.get("headers") is not None:
            client._options["headers"] = {**self._settings.headers, **client._options["headers"]}
        old = self._settings
        client._settings = new = Settings(**client._options, environment=old.environment)
        new.adopt_from(old)
        if (new.address, new.proxy, new.verify) != (old.address, old.proxy, old.verify):
            client._pool = Pool()
        return client

    @property
    def base_url(self) -> str:
        """The URL of the server, as passed to the client."""
        return self._settings.base_url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings.shown_url!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it holds a key and connections")

    def _call(self, driver: AnyDriver, arguments: BaseRequest) -> Call:
        """A new call with the options of these arguments."""
        return Call(self._settings, self._pool, driver, arguments.call_options)

    async def _reply(self, driver: AnyDriver, request: CompletionRequest) -> Reply[Any]:
        """The complete reply.

        If its text does not match `response_format`, the text and the error are added to the prompt of the request, and
        it is sent again.
        """
        n_left = request.retries_on_mismatch
        while True:
            try:
                return await BaseStream[Any](self._call(driver, request), request)._finish()
            except DoesNotFit as error:
                n_left -= 1
                if n_left < 0 or (error.partial is not None and error.partial.refusal):  # It would decline again.
                    raise
                output = [] if error.partial is None else [error.partial.message]
                correction = {"role": "user", "content": f"{error}. Answer again, with the corrected JSON alone."}
                request.prompt = [*request.prompt, *output, correction]

    async def _list_models(self, driver: AnyDriver) -> list[Model]:
        arguments = BaseRequest(self._settings, {}, "request")
        return await fetch_models(self._call(driver, arguments))

    async def _request(
        self, driver: AnyDriver, method: str, path: str, json: Any, options: Mapping[str, Any]
    ) -> Response:
        if not (method.isascii() and method.isalpha()):
            raise ValueError(f"not a valid HTTP method: {method!r}")
        call = self._call(driver, BaseRequest(self._settings, options, "request"))
        content = await call.fetch(method.upper(), path, json)
        return Response(call.status, call.headers, content)

    async def _embed(self, driver: AnyDriver, text: Any, options: Mapping[str, Any]) -> Any:
        arguments = BaseRequest(self._settings, options, "embed")
        from .embeddings import embed  # Imported here, as few programs need it.

        return await embed(self._call(driver, arguments), arguments, text)


class Client(BaseClient):
    """A chat client. It can be used by many threads, and after a fork.

    Args:
        base_url: The URL of the server, with /v1; default: OPENAI_BASE_URL, or http://127.0.0.1:8080/v1. A unix socket
            is `unix:/path/to/socket`.
        api_key: The key; default: OPENAI_API_KEY, which is sent only to OPENAI_BASE_URL, to this machine and over
            https. A local server needs none.
        model: The name of the model; default: LOCALCHAT_MODEL, or the only model of the server.
        timeout: A Timeout, or a number of seconds as in Timeout(30); default: Timeout(). No limit: Timeout(None).
        max_retries: The number of retries of a request without a response, or with a status such as 429 or 503.
        on_retry: Called before each retry with its number, the delay in seconds and the error.
        headers: Sent with every request.
        proxy: The URL of a proxy, or False for none; default: the proxy of the environment.
        verify: True, False, the path of a CA file, or an ssl.SSLContext.
        max_bytes: The limit of the bytes of a response after decompression; default: 256 MiB.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. The client can still be used."""
        self._pool.close()

    @overload
    def chat(
        self, prompt: Prompt | None = None, *, response_format: type[Value], **options: Unpack[ChatOptions]
    ) -> Reply[Value]: ...

    @overload
    def chat(
        self, prompt: Prompt | None = None, *, response_format: object = None, **options: Unpack[ChatOptions]
    ) -> Reply[Any]: ...

    def chat(self, prompt: Prompt | None = None, **options: Any) -> Reply[Any]:
        """Send a prompt, which is text or a list of messages, and return the complete reply.

        Most options are fields of the request.

        Raises:
            IncompleteReply: A content filter cut the text, or a token limit although `max_tokens` is not set: an
                incomplete text often looks complete. The error has the reply as `partial`.
            LocalChatError: The reply is not complete; see its subclasses.
            DoesNotFit: The text does not match `response_format`.
            TypeError: An option is unknown, or the prompt is neither text nor a list of messages.
        """
        return run_blocking(self._reply(Driver(), CompletionRequest(self._settings, prompt, options, "chat")))

    @overload
    def stream(
        self, prompt: Prompt | None = None, *, response_format: type[Value], **options: Unpack[StreamOptions]
    ) -> Stream[Value]: ...

    @overload
    def stream(
        self, prompt: Prompt | None = None, *, response_format: object = None, **options: Unpack[StreamOptions]
    ) -> Stream[Any]: ...

    def stream(self, prompt: Prompt | None = None, **options: Any) -> Stream[Any]:
        """Send a prompt, which is text or a list of messages, and return the response as a stream of events.

        Iterate the stream for events, or its `text` for text; leave the `with` block to cancel the request. The events
        of a cut reply end with its finish reason; `finish`, and a value for `response_format`, raise IncompleteReply.
        """
        return self._stream(CompletionRequest(self._settings, prompt, options, "stream"))

    def _stream(self, request: CompletionRequest) -> Stream[Any]:
        return Stream(self._call(Driver(), request), request)

    @overload
    def map(
        self, prompts: Iterable[Prompt], /, *, response_format: type[Value], **options: Unpack[MapOptions]
    ) -> list[Reply[Value]]: ...

    @overload
    def map(
        self, prompts: Iterable[Prompt], /, *, response_format: object = None, **options: Unpack[MapOptions]
    ) -> list[Reply[Any]]: ...

    def map(self, prompts: Iterable[Prompt], /, **options: Any) -> list[Reply[Any]]:
        """Send many prompts and return their replies in the same order. That of a failed request has its `error`.

        The options are those of `chat`, for every prompt, and some more.
        """
        from .many_prompts import ManyPrompts

        return ManyPrompts(self, prompts, options).map()

    def models(self) -> list[Model]:
        """The models that the server lists: their names, each with `context_length`, `state` and `raw`."""
        return run_blocking(self._list_models(Driver()))

    def request(self, method: str, path: str, json: Any = None, **options: Unpack[RequestOptions]) -> Response:
        """Send any other request, with the same timeouts, retries and errors.

        The path is relative to the base URL (`rerank`), or absolute if it begins with / (`/health`). `json` is the body
        unless it is None. The response has `status`, `headers`, `content` (bytes), `text` and `json()`.
        """
        return run_blocking(self._request(Driver(), method, path, json, options))

    def run(
        self, prompt: Prompt | None = None, tools: Iterable[AnyTool] | None = None, **options: Unpack[RunOptions]
    ) -> Reply[Any]:
        """Send a prompt with tools, run the tool calls of the model, and repeat until it calls none.

        Tools are functions; their annotations and docstrings describe them to the model. The options are those of
        `stream`, for every request, and some more. The calls of a reply that was cut are not run.

        Raises:
            TooManyRounds: The model called tools in every round.
            LocalChatError: As from `chat`.
        """
        return self.run_stream(prompt, tools, **options).finish()

    def run_stream(
        self, prompt: Prompt | None = None, tools: Iterable[AnyTool] | None = None, **options: Unpack[RunOptions]
    ) -> ToolRun:
        """Like `run`, but return an iterator over the events, which include the results of tools."""
        from .agent.tool_run import ToolRun

        return ToolRun(self, prompt, tools, **options)

    def conversation(self, *, tools: Iterable[AnyTool] | None = None, **options: Unpack[RunOptions]) -> Conversation:
        """A list of messages that grows turn by turn. The options are those of Conversation and of `run`."""
        from .agent.conversation import Conversation

        return Conversation(self, tools=tools, **options)

    def complete(self, prompt: TextPrompt, **options: Unpack[CompletionOptions]) -> Reply[Any]:
        """Complete a text without a chat template (/completions). The prompt may also be tokens, or several texts."""
        return run_blocking(self._reply(Driver(), CompletionRequest(self._settings, prompt, options, "complete")))

    # The overload for str is first, since a str is also a Sequence of str.
    @overload
    def embed(  # type: ignore[overload-overlap]
        self, text: str, /, **options: Unpack[EmbeddingOptions]
    ) -> Embeddings[float]: ...

    @overload
    def embed(self, text: Texts, /, **options: Unpack[EmbeddingOptions]) -> Embeddings[list[float]]: ...

    def embed(self, text: Any, /, **options: Unpack[EmbeddingOptions]) -> Any:
        """The vector of a text, or the vectors of several texts (/embeddings).

        A request has at most `batch_size` (256) texts. The result is a list with `usage` and `model`.

        Raises:
            ModelNotNamed: No model is named, and the server has several.
            ProtocolError: The response does not contain one vector for each text.
        """
        return run_blocking(self._embed(Driver(), text, options))


@overload
def chat(
    prompt: Prompt | None = None, *, response_format: type[Value], **options: Unpack[_ChatFunctionOptions]
) -> Reply[Value]: ...


@overload
def chat(
    prompt: Prompt | None = None, *, response_format: object = None, **options: Unpack[_ChatFunctionOptions]
) -> Reply[Any]: ...


def chat(
    prompt: Prompt | None = None, *, base_url: str | None = None, api_key: str | None = None, **options: Any
) -> Reply[Any]:
    """Send a prompt with a new client and return the complete reply; see Client.chat."""
    with Client(base_url, api_key) as client:
        return client.chat(prompt, **options)
