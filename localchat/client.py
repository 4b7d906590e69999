"""The chat client over blocking sockets.

The client can be copied into another project, as one file (`python -m localchat.extras.vendor`) or as the files that
docs/client.md lists; they need the standard library only. `aio` has the asynchronous client. The two share all code
that does not wait for the network.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from .errors import Cancelled, IncompleteReply, LocalChatError
from .events import Reply, StreamEvent, Value
from .reply.models import Model
from .reply.payloads import Prompt, check_prompt, with_extra_body
from .transport.base import BaseClient
from .transport.call import Result, Steps
from .transport.keywords import (
    ChatKeywords,
    CompletionKeywords,
    EmbeddingKeywords,
    MapKeywords,
    PeerKeywords,
    QuickKeywords,
    RequestKeywords,
    RunKeywords,
    StreamKeywords,
    check_keywords,
)
from .transport.options import CHAT_PATH, TextPrompt
from .transport.settings import companion
from .transport.sockets import Driver
from .transport.streams import Response

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .agent.conversation import Conversation
    from .agent.tool_run import ToolRun
    from .agent.tools import AnyTool
    from .extras.embeddings import Embeddings

# The type that `response_format` names, and of `reply.parsed`.
T = TypeVar("T")


class Stream(Generic[Value]):
    """A streamed response. Iterate it for events, or `text` for text; leave the `with` block to cancel the request.

    Entering the `with` block sends the request; without one, the first iteration does. `reply` is the reply received
    so far, also after an error. A stream without references closes its connection.
    """

    def __init__(self, driver: Driver, response: Response, steps: Steps[Any]) -> None:
        self._driver = driver
        self._response = response
        self._opened = False
        # The generator gets no reference to this object: in a cycle, a dropped stream would not close its connection.
        self._events = driver.events(steps)

    def __enter__(self) -> Stream[Value]:
        self._open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[StreamEvent]:
        return self

    def __next__(self) -> StreamEvent:
        self._open()
        event, cause = None, None
        try:
            event = next(self._events, None)
        except ValueError as error:  # Another thread is closing the generator, or the ValueError of a wrong option.
            cause = error
        if self._driver.is_cancelled and not (event is None and self._response.succeeded):
            self.close()
            raise Cancelled("the stream was closed", partial=self.reply) from cause
        if cause is not None:
            raise cause
        if event is None:
            raise StopIteration
        return event  # type: ignore[no-any-return]  # The steps yield events and waits.

    @property
    def text(self) -> Iterator[str]:
        """The pieces of the text of the first choice, as they are received."""
        for event in self:
            if event.type == "content_delta" and event.choice_index == 0:
                yield event.delta

    @property
    def reply(self) -> Reply[Value]:
        """The reply received so far; complete after the last event."""
        return self._response.reply

    def close(self) -> None:
        """Cancel the request at once, from any thread. The server notices the closed connection and stops."""
        self._driver.cancel()
        with contextlib.suppress(ValueError):  # Another thread runs the generator: it is awake now and closes it.
            self._events.close()

    def _open(self) -> None:
        """Send the request with the first step of the generator, if this was not done before."""
        if not self._opened:
            self._opened = True
            next(self._events, None)


class Client(BaseClient):
    """A chat client. It can be used by many threads, and after a fork.

    Args:
        base_url: The URL of the server, with /v1; default: OPENAI_BASE_URL, or http://127.0.0.1:8080/v1. A unix socket
            is `unix:/path/to/socket`, or `http+unix://%2Fpath%2Fto%2Fsocket/v1` with another prefix than /v1.
        api_key: The key; default: OPENAI_API_KEY, which is sent only to OPENAI_BASE_URL, to this machine and over
            https. A local server needs none.
        model: The name of the model; default: LOCALCHAT_MODEL, or the only model of the server.
        timeout: A Timeout, or a number of seconds, which sets `first`, `idle` and `connect` (5 at most) of a Timeout.
        max_retries: The number of retries of a request without a response, or with a status such as 429 or 503.
        on_retry: Called before each retry with its number, the delay in seconds and the error.
        headers: Sent with every request.
        proxy: The URL of a proxy, False for none, or None for the proxy of the environment.
        verify: True, False, the path of a CA file, or an ssl.SSLContext.
        follow_redirects: Whether to follow 307 and 308 on the same server, with the same body. Any other redirect is
            an error that names the target; the key is never sent to another server.
        record: The path of a file to which everything sent and received is written, with the key masked; see `replay`.
        log_bodies: Whether the logger `localchat.client`, which logs requests and statuses at level DEBUG, also logs
            the bodies of requests and the texts of responses. The key is masked in them.
        max_bytes: The limit of the bytes of a response after decompression; default: 256 MiB.
        transport: Makes the connections in place of the client: a `replay(file)`, for tests without a server.
    """

    # The drivers of the calls that were made; only in the client that `map` uses.
    _started: list[weakref.ref[Driver]] | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. The client can still be used."""
        self._pool.close()

    @overload
    def chat(self, prompt: Prompt, /, *, response_format: type[T], **options: Unpack[ChatKeywords]) -> Reply[T]: ...

    @overload
    def chat(
        self, prompt: Prompt, /, *, response_format: None = None, **options: Unpack[ChatKeywords]
    ) -> Reply[None]: ...

    @overload
    def chat(self, prompt: Prompt, /, *, response_format: object, **options: Unpack[ChatKeywords]) -> Reply[Any]: ...

    def chat(self, prompt: Prompt, /, **options: Any) -> Reply[Any]:
        """Send a prompt and return the complete reply.

        Args:
            prompt: Text, or a list of messages.
            options: Those of `stream`, and `retries_on_mismatch` (0): how often to repeat the request if the text does
                not match `response_format`, with the text and the mismatch added to the conversation.

        Raises:
            LocalChatError: The reply is not complete; see its subclasses.
            DoesNotFit: The text does not match `response_format`.
            TypeError: An option is unknown, or the prompt is neither text nor a list of messages.
        """
        call_options = self._chat_options(prompt, options, ChatKeywords, "chat")
        return self._run(self._read_reply, call_options, CHAT_PATH, options.get("retries_on_mismatch") or 0)

    @overload
    def stream(
        self, prompt: Prompt, /, *, response_format: type[T], **options: Unpack[StreamKeywords]
    ) -> Stream[T]: ...

    @overload
    def stream(
        self, prompt: Prompt, /, *, response_format: None = None, **options: Unpack[StreamKeywords]
    ) -> Stream[None]: ...

    @overload
    def stream(
        self, prompt: Prompt, /, *, response_format: object, **options: Unpack[StreamKeywords]
    ) -> Stream[Any]: ...

    def stream(self, prompt: Prompt, /, **options: Any) -> Stream[Any]:
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
        call_options = self._chat_options(prompt, options, StreamKeywords, "stream")
        driver = Driver()
        return Stream(driver, *self._start(driver, call_options, CHAT_PATH))

    def map(self, prompts: Iterable[Prompt], /, **options: Unpack[MapKeywords]) -> list[Reply[Any] | LocalChatError]:
        """Send many prompts and return their replies in the same order, with an error in place of a failed reply.

        Args:
            prompts: Each is text or a list of messages.
            options: Those of `chat`, for every prompt; `concurrency` (8): the number of requests in flight;
                `on_progress`: called after each reply with the number of finished prompts and of all prompts.
        """
        worker = self.with_options()
        worker._started = []
        replies: list[Reply[Any] | LocalChatError]
        replies = companion("extras.mapping").map_prompts(worker.chat, worker._started, prompts, options)
        return replies

    def models(self) -> list[Model]:
        """The models that the server lists: their names, each with `context_length`, `meta` and `raw`."""
        return self._run(self._list_models)

    def request(self, method: str, path: str, json: Any = None, **options: Unpack[RequestKeywords]) -> Any:
        """Send any other request, with the same timeouts, retries and errors.

        Args:
            method: GET or POST, for example.
            path: Relative to the base URL (`rerank`), or absolute if it begins with / (`/health`).
            json: The body, which is sent as JSON; None sends no body.
            options: `timeout`, `max_retries` and `extra_headers`, as for `stream`.

        Returns:
            The parsed JSON of the response, its text if it is not JSON, None if it is empty.
        """
        return self._run(self._request, method, path, json, options)

    def run(self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]) -> Reply[Any]:
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

    def run_stream(self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]) -> ToolRun:
        """Like `run`, but return an iterator over the events, which include the results of tools."""
        check_prompt(prompt)
        check_keywords(options, RunKeywords, "run")
        tool_run = companion("agent.tool_run")
        run: ToolRun = tool_run.start_run(tool_run.ToolRun, self, prompt, tools, **options)
        return run

    def conversation(self, **options: Any) -> Conversation:
        """A list of messages that grows turn by turn. The options are those of Conversation."""
        conversation: Conversation = companion("agent.conversation").Conversation(self, **options)
        return conversation

    @overload
    def complete(
        self, prompt: TextPrompt, /, *, response_format: type[T], **options: Unpack[CompletionKeywords]
    ) -> Reply[T]: ...

    @overload
    def complete(
        self, prompt: TextPrompt, /, *, response_format: None = None, **options: Unpack[CompletionKeywords]
    ) -> Reply[None]: ...

    @overload
    def complete(
        self, prompt: TextPrompt, /, *, response_format: object, **options: Unpack[CompletionKeywords]
    ) -> Reply[Any]: ...

    def complete(self, prompt: TextPrompt, /, **options: Any) -> Reply[Any]:
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

    def embed(
        self, text: str | Sequence[str] | Sequence[Sequence[int]], /, **options: Unpack[EmbeddingKeywords]
    ) -> Embeddings[float] | Embeddings[list[float]]:
        """The vector of a text, or the vectors of several texts (/embeddings).

        A request has at most `batch_size` (256) texts. The result is a list with `usage` and `model`.

        Raises:
            ModelNotNamed: No model is named, and the server has several, of which not exactly one is for embeddings.
            ProtocolError: The response does not contain one vector for each text.
        """
        vectors: Embeddings[Any] = self._run(self._embed, text, options)
        return vectors

    def _run(self, steps: Callable[..., Steps[Result]], *arguments: Any) -> Result:
        """The result of these steps, which get a driver and the arguments."""
        driver = Driver()
        if self._started is not None:
            self._started.append(weakref.ref(driver))
        return driver.run(steps(driver, *arguments))


@overload
def chat(prompt: Prompt, /, *, response_format: type[T], **options: Unpack[QuickKeywords]) -> Reply[T]: ...


@overload
def chat(prompt: Prompt, /, *, response_format: None = None, **options: Unpack[QuickKeywords]) -> Reply[None]: ...


@overload
def chat(prompt: Prompt, /, *, response_format: object, **options: Unpack[QuickKeywords]) -> Reply[Any]: ...


def chat(prompt: Prompt, /, **options: Any) -> Reply[Any]:
    """Send a prompt with a new client and return the complete reply; see Client.chat.

    The options are those of Client.chat and of Client.

    Raises:
        IncompleteReply: A content filter cut the text, or a token limit although `max_tokens` is not set. The result
            is often printed, and an incomplete text looks complete. `allow_truncated=True` turns this error off.
        LocalChatError: As from Client.chat.
    """
    check_keywords(options, QuickKeywords, "chat")
    allow_truncated = options.pop("allow_truncated", False)
    fields = with_extra_body(options)
    is_limited = any(fields.get(name) is not None for name in ("max_tokens", "max_completion_tokens"))
    names = ("base_url", "api_key", *PeerKeywords.__annotations__)
    client_options = {name: options.pop(name) for name in names if name in options}
    with Client(**client_options) as client:
        reply = client.chat(prompt, **options)
    is_filtered = reply.finish_reason == "content_filter"
    if (is_filtered or (reply.truncated and not is_limited)) and not allow_truncated:
        cause, other = ("by a content filter", "") if is_filtered else ("at a limit of tokens", "max_tokens or ")
        message = f"the response was cut {cause}, after {len(reply.text)} characters: set {other}allow_truncated=True"
        raise IncompleteReply(f"{message} to get it anyway; the error has it as `partial`", partial=reply)
    return reply
