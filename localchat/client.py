"""The chat client over blocking sockets: requests out, answers as typed events.

To vendor the client by hand, copy the files that docs/client.md lists into a folder of yours and import Client
from there; they need the standard library only. Or take them as one file: python -m localchat.vendor. What
waits for nothing is shared with the asynchronous client in `aio`; this module waits, in the caller's thread.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from .assembly import Accumulator
from .blocking_call import Call
from .call import ANSWER_ERRORS, Answer, ended_by, reply_of
from .errors import (
    BadRequestError,
    Cancelled,
    DoesNotFit,
    IncompleteReply,
    IncompleteStream,
    LocalChatError,
    ProtocolError,
    StatusError,
    TimedOut,
    UnprocessableError,
)
from .events import Reply, StreamEvent, Value
from .failures import read_models
from .keywords import (
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
from .model_list import Model, choose_model
from .options import (
    CHAT_PATH,
    CallOptions,
    TextPrompt,
    adapted_body,
    check_text_prompt,
    read_any,
    read_options,
    read_request_options,
    request_body,
    with_media,
)
from .payloads import Prompt, check_prompt
from .settings import BaseClient, companion
from .sockets import Pool
from .timeouts import Timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .conversation import Conversation
    from .embeddings import Embeddings
    from .tool_run import ToolRun
    from .tools import AnyTool

# What a call asks for as its `response_format`, and gets as `reply.parsed`.
T = TypeVar("T")


class Stream(Generic[Value]):
    """One answer under way: iterate it for events, or `text` for text; leave the `with` to cancel.

    The request is sent by entering the `with`, or by the first step without one. `reply` is what has
    come so far, also after an error. A stream that is dropped closes its connection.
    """

    def __init__(self, call: Call, accumulator: Accumulator) -> None:
        self._call = call
        self._accumulator = accumulator
        self._opened = False
        # A generator that knew this object would keep it alive, and the connection with it.
        self._events = _events(call, accumulator)

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
        except ValueError as error:  # Perhaps since another thread is closing it just now.
            cause = error
        if self._call.is_cancelled() and not (event is None and self._call.succeeded):
            self.close()
            raise Cancelled("the stream was closed", partial=self.reply) from cause
        if event is None:
            raise cause or StopIteration
        return event

    @property
    def text(self) -> Iterator[str]:
        """The pieces of the first choice's text, as they come."""
        for event in self:
            if event.type == "content_delta" and event.choice_index == 0:
                yield event.delta

    @property
    def reply(self) -> Reply[Value]:
        """What has come so far; whole after the last event."""
        return reply_of(self._call, self._accumulator)

    def close(self) -> None:
        """Cancel, from any thread, at once. The server sees the connection close and stops generating."""
        self._call.cancel()
        with contextlib.suppress(ValueError):  # Another thread is in it: it is awake now, and closes.
            self._events.close()

    def _open(self) -> None:
        """Send the request, if that has not been done: the generator's first step."""
        if not self._opened:
            self._opened = True
            next(self._events, None)


def _events(call: Call, accumulator: Accumulator) -> Generator[StreamEvent | None, None, None]:
    """All that happens in a stream: open and yield None; read, finish, and give the connection back."""
    try:
        call.open()
        yield None
        yield from _read_events(call, accumulator)
        call.succeeded = True
    except ANSWER_ERRORS as error:
        yield from ended_by(error, call, accumulator)
        raise
    finally:
        call.release()


def _read_events(call: Call, accumulator: Accumulator) -> Iterator[StreamEvent]:
    answer = Answer(call, accumulator)
    while not answer.over:
        try:
            data = call.read()
        except (IncompleteStream, TimedOut, ProtocolError) as error:
            yield from answer.cut(error)
        else:
            yield from answer.feed(data)
    if answer.done:
        call.drain()
    yield from answer.finish()


class Client(BaseClient):
    """A chat client. Usable from many threads, and after a fork.

    Args:
        base_url: Up to and with /v1; else OPENAI_BASE_URL, else http://127.0.0.1:8080/v1. A unix socket
            is `unix:/path/to/socket`, or `http+unix://%2Fpath%2Fto%2Fsocket/v1` with a prefix of its own.
        api_key: Else OPENAI_API_KEY, which goes to OPENAI_BASE_URL, to this machine and over https, and to no other
            server. A local server needs none.
        model: Else LOCALCHAT_MODEL, else the only one that the server lists.
        timeout: A Timeout, or one number: seconds for the first event, the silence between bytes and the connection.
        max_retries: How often a request that got no answer is sent again.
        on_retry: Called before each retry with its number, the delay in seconds and the error.
        headers: Sent with every request.
        proxy: The proxy's URL, or False for none; None takes the environment's.
        verify: True, False, the path of a CA file, or an ssl.SSLContext.
        follow_redirects: Whether to follow 307 and 308 on the same server, with the same body. Any other
            redirect is an error that names the target; the key never goes to another server.
        record: A file into which everything sent and received is written, the key masked; see `replay`.
        log_bodies: Whether the logger `localchat.client`, which reports requests and statuses at level DEBUG, also
            reports the bodies of requests and the texts of answers. The key is masked in them.
        max_bytes: The most bytes of one answer, unpacked; 256 MiB if it is left out.
        transport: What connects instead of the client: a `replay(file)`, for tests without a server.
    """

    _pool: Pool
    _new_pool = Pool

    # The calls that were made, in the client that `map` makes for itself.
    _started: list[weakref.ref[Call]] | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. The client stays usable."""
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
        """The whole answer. Takes what `stream` takes.

        Args:
            prompt: Text, or a list of messages.
            options: As of `stream`; and `retries_on_mismatch` (0): how often to ask again, with what was wrong in
                the conversation, for an answer that does not fit its `response_format`.

        Raises:
            LocalChatError: One of its subclasses; there is no other way to get less than the answer.
            DoesNotFit: The answer is not what its `response_format` asks for.
            TypeError: An option is unknown, or the prompt is neither text nor a list of messages.
        """
        given = self._chat_options(prompt, options, ChatKeywords, "chat")
        for _ in range(options.get("retries_on_mismatch") or 0):
            try:
                return self._whole(given, CHAT_PATH)
            except DoesNotFit as error:
                given = companion("structured").corrected(given, error)
        return self._whole(given, CHAT_PATH)

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
        """An answer as it comes.

        Args:
            prompt: Text, or a list of messages.
            options: Fields of the request, and how the call is made; see ChatKeywords for all of them.
                `system` is text before the messages; `images` and `audio` (lists of paths, bytes or URLs) go into
                the last message. `response_format` may also be a type, a schema or "name, age int" (see schema);
                then the answer is checked, and `reply.parsed` is its value. `think_tags` ("auto", "prefilled" or
                "off") is what to do with <think> in the content. `timeout` and `max_retries` are as for the client,
                `extra_headers` are headers of this call. `extra_body` holds fields that have no option here.
        """
        given = self._chat_options(prompt, options, StreamKeywords, "stream")
        return self._start(given, CHAT_PATH)

    def map(self, prompts: Iterable[Prompt], /, **options: Unpack[MapKeywords]) -> list[Reply[Any] | LocalChatError]:
        """The whole answers to many prompts, in the order of the prompts; an error stands in place of its answer.

        Args:
            prompts: Each text or a list of messages.
            options: `concurrency` (8): how many are in flight at a time; `on_progress`: called with the number of
                prompts that are done, and of all; and those of `chat`, for every prompt.
        """
        worker = self.with_options()
        worker._started = []
        answers: list[Reply[Any] | LocalChatError]
        answers = companion("mapping").map_prompts(worker.chat, worker._started, prompts, options)
        return answers

    def models(self) -> list[Model]:
        """The models that the server lists: each is its name, with `context_length`, `meta` and `raw`."""
        settings = self._settings
        call = self._call(settings.timeout, settings.max_retries)
        return read_models(settings, call.fetch("GET", "models", None, {}))

    def request(self, method: str, path: str, json: Any = None, **options: Unpack[RequestKeywords]) -> Any:
        """What a server answers to any other request, within the same time limits, retries and errors.

        Args:
            method: GET or POST, say.
            path: After that of the base URL, `rerank` say; from the server's root if it begins with /: `/health`.
            json: What is sent as JSON; None sends no body.
            options: `timeout`, `max_retries` and `extra_headers`, as of the other calls.

        Returns:
            The JSON of the response, its text if it is not JSON, None if it is empty.
        """
        given = read_request_options(self._settings, method, options)
        call = self._call(given.timeout, given.max_retries)
        return read_any(call.fetch(method, path, json, given.headers))

    def run(self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]) -> Reply[Any]:
        """The answer of a model that may call functions: they are run and it is asked again until it is done.

        Args:
            prompt: Text, or a list of messages.
            tools: Functions; their annotations and docstrings describe them to the model.
            options: `max_rounds` (10: how often the model is asked), `on_call` (asked with each ToolCall before it
                runs: only True lets it), `parallel` (calls of one round run in threads), `raise_errors`
                (a tool's exception is raised instead of reported to the model), and all that `stream` takes, for
                every round.

        Raises:
            TooManyRounds: The model was still calling functions.
            LocalChatError: As from `chat`.
        """
        return self.run_stream(prompt, tools, **options).finish()

    def run_stream(self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), **options: Unpack[RunKeywords]) -> ToolRun:
        """The same run, to be iterated for events, those of the tools' results included."""
        check_prompt(prompt)
        check_keywords(options, RunKeywords, "run")
        home = companion("tool_run")
        run: ToolRun = home.start_run(home.ToolRun, self, prompt, tools, **options)
        return run

    def conversation(self, **options: Any) -> Conversation:
        """A list of messages that grows turn by turn; takes what Conversation takes."""
        conversation: Conversation = companion("conversation").Conversation(self, **options)
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
        """How a text goes on, without a chat template (/completions). Also of tokens, and of several."""
        check_text_prompt(prompt)
        given = read_options(self._settings, prompt, {"think_tags": "off", **options}, CompletionKeywords, "complete")
        return self._whole(given, "completions")

    # Type checkers take the first that fits, and a str is a Sequence of str too.
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
        """The vector of a text, or the vectors of several (/embeddings).

        Many texts go in several requests, of `batch_size` (256) each. The result is a list with `usage` and `model`.

        Raises:
            ModelNotNamed: No model is named, and none of those of the server is certain to make embeddings.
            ProtocolError: The response does not hold one vector for each text.
        """
        settings = self._settings
        given = read_options(settings, "", options, EmbeddingKeywords, "embed")
        home = companion("embeddings")
        texts, parts = home.check_texts(text), []
        call = self._call(given.timeout, given.max_retries)
        for batch in home.batches(texts, options.get("batch_size")):
            model = given.model or self._embedding_model(call, given.headers)
            raw = call.fetch("POST", "embeddings", home.embedding_body(given, batch, model), given.headers)
            parts.append(home.read_vectors(settings, given, raw, len(batch)))
        vectors: Embeddings[list[float]] = home.joined(parts)
        if not isinstance(text, str):
            return vectors
        vector: Embeddings[float] = home.first_of(vectors)
        return vector

    def _chat_options(self, prompt: Prompt, options: Mapping[str, Any], keywords: Any, what: str) -> CallOptions:
        check_prompt(prompt)
        return with_media(read_options(self._settings, prompt, options, keywords, what))

    def _whole(self, given: CallOptions, path: str) -> Reply[Any]:
        with self._start(given, path) as answer:
            for _ in answer:
                pass
            return answer.reply

    def _start(self, given: CallOptions, path: str) -> Stream[Any]:
        settings, expected = self._settings, given.expected

        def send(call: Call) -> None:
            body = first = request_body(settings, given, given.model or self._default_model(call, given.headers), path)
            while True:
                try:
                    asking = body if expected is None else expected.apply(body)
                    call.send("POST", path, asking, given.headers)
                    break
                except (BadRequestError, UnprocessableError) as error:
                    body = adapted_body(given, body, error)
            if "stream_options" in first and "stream_options" not in body:
                settings.takes_stream_options = False

        call = self._call(given.timeout, given.max_retries, send)
        call.expected = expected
        return Stream(call, Accumulator(given.n_choices, given.think_tags))

    def _call(self, timeout: Timeout, max_retries: int, send: Callable[[Call], None] | None = None) -> Call:
        call = Call(self._settings, self._pool, timeout, max_retries, send)
        if self._started is not None:
            self._started.append(weakref.ref(call))
        return call

    def _default_model(self, call: Call, headers: Mapping[str, str]) -> str | None:
        """The one named, or the only one of the server; None if the server lists none."""
        settings = self._settings
        if settings.model is None and settings.found_model is None:
            settings.found_model = choose_model(self._listed_models(call, headers))
        return settings.model or settings.found_model

    def _embedding_model(self, call: Call, headers: Mapping[str, str]) -> str | None:
        """The model of the client if it makes embeddings, else the one of the server that does."""
        home = companion("embeddings")
        settings = self._settings
        if settings.model is not None and home.makes_embeddings(settings.model):
            return settings.model
        if settings.found_embedding_model is None:
            listed = self._listed_models(call, headers)
            settings.found_embedding_model = home.choose_embedding_model(listed, settings.model)
        return settings.found_embedding_model

    def _listed_models(self, call: Call, headers: Mapping[str, str]) -> list[Model]:
        """The models of the server; none if it has no list, as many servers with one model."""
        try:
            return read_models(self._settings, call.fetch("GET", "models", None, headers))
        except (StatusError, ProtocolError) as error:
            if getattr(error, "status", 404) not in (404, 405, 501):
                raise
            return []


@overload
def chat(prompt: Prompt, /, *, response_format: type[T], **options: Unpack[QuickKeywords]) -> Reply[T]: ...


@overload
def chat(prompt: Prompt, /, *, response_format: None = None, **options: Unpack[QuickKeywords]) -> Reply[None]: ...


@overload
def chat(prompt: Prompt, /, *, response_format: object, **options: Unpack[QuickKeywords]) -> Reply[Any]: ...


def chat(prompt: Prompt, /, **options: Any) -> Reply[Any]:
    """The whole answer of the server that `base_url`, or else the environment, names; see Client.chat.

    Takes the options of Client.chat and of Client.

    Raises:
        IncompleteReply: A content filter cut the answer, or a limit of tokens while `max_tokens` was not set; unless
            `allow_truncated` is True. People print the result of this function, and half an answer looks like a whole.
        LocalChatError: As from Client.chat.
    """
    check_keywords(options, QuickKeywords, "chat")
    allow_truncated = options.pop("allow_truncated", False)
    sent = {**options, **(options.get("extra_body") or {})}
    limited = any(sent.get(name) is not None for name in ("max_tokens", "max_completion_tokens"))
    own_names = ("base_url", "api_key", *PeerKeywords.__annotations__)
    own = {name: options.pop(name) for name in own_names if name in options}
    with Client(**own) as client:
        reply = client.chat(prompt, **options)
    is_filtered = reply.finish_reason == "content_filter"
    if (is_filtered or (reply.truncated and not limited)) and not allow_truncated:
        place, other = ("by a content filter", "") if is_filtered else ("at a limit of tokens", "max_tokens or ")
        message = f"the answer was cut {place}, after {len(reply.text)} characters: set {other}allow_truncated=True"
        raise IncompleteReply(f"{message} to take what there is; the error has it as `partial`", partial=reply)
    return reply
