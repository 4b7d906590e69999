"""What Client and AsyncClient have in common: their settings, and the steps of their methods. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import BadRequestError, DoesNotFit, ProtocolError, StatusError, UnprocessableError
from ..events import Reply
from ..reply.assembly import Accumulator
from ..reply.models import Model, choose_model
from ..reply.payloads import Prompt, check_prompt
from .call import Call, Steps
from .failures import lists_no_models, read_models
from .keywords import AllClientKeywords, ClientKeywords, CompletionKeywords, EmbeddingKeywords, check_keywords
from .options import (
    CallOptions,
    adapted_body,
    check_text_prompt,
    parse_any_body,
    read_options,
    read_request_options,
    request_body,
    with_media,
)
from .pool import Pool
from .settings import Settings, companion
from .streams import Response

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class BaseClient:
    """The base of Client and AsyncClient. `Client` describes the arguments."""

    # Makes the driver of a call: sockets.Driver or aio_sockets.AsyncDriver.
    _new_driver: Callable[[], Any]

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        **options: Unpack[ClientKeywords],
    ) -> None:
        check_keywords(options, ClientKeywords, type(self).__name__)
        self._set_up({"base_url": base_url, "api_key": api_key, "model": model, **options})

    def with_options(self, **options: Unpack[AllClientKeywords]) -> Self:
        """A client with other values for some arguments of `Client`. It shares the connections if it can."""
        check_keywords(options, AllClientKeywords, "with_options")
        base, client = self._settings, type(self).__new__(type(self))
        # The new client records into the same file, unless `record` is an argument.
        transport: AllClientKeywords = {"record": None, "transport": None if "record" in options else base.transport}
        client._set_up({**self._arguments, **transport, **options})
        settings = client._settings
        if settings.base_url == base.base_url:
            settings.found_model, settings.takes_stream_options = base.found_model, base.takes_stream_options
        if settings.can_share_connections(base):
            client._pool = self._pool
        return client

    def _set_up(self, arguments: AllClientKeywords) -> None:
        self._arguments, self._settings, self._pool = arguments, Settings(**arguments), Pool()

    @property
    def base_url(self) -> str:
        """The URL of the server, as passed to the client."""
        return self._settings.base_url

    def __repr__(self) -> str:
        """Leave out the query of the base URL, which is a key for some servers."""
        return f"{type(self).__name__}({self._settings.base_url.partition('?')[0]!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it holds a key and connections")

    # The methods of both clients, as steps.

    def _chat_options(self, prompt: Prompt, options: Mapping[str, Any], keywords: Any, what: str) -> CallOptions:
        check_prompt(prompt)
        return read_options(self._settings, prompt, options, keywords, what)

    def _completion_options(self, prompt: Any, options: Mapping[str, Any]) -> CallOptions:
        check_text_prompt(prompt)
        options = {"think_tags": "off", **options}
        return read_options(self._settings, prompt, options, CompletionKeywords, "complete")

    def _start(self, driver: Any, options: CallOptions, path: str) -> tuple[Response, Steps[Reply[Any]]]:
        """A response, and the steps that send the request and read the response."""
        call = self._call(driver, options)
        response = Response(call, Accumulator(options.n_choices, options.think_tags), options.expected)
        return response, response.steps(self._send(call, options, path))

    def _read_reply(self, driver: Any, options: CallOptions, path: str, retries: int = 0) -> Steps[Reply[Any]]:
        """The complete reply. If the text does not match the expected value, repeat the request up to `retries` times.

        Raises:
            DoesNotFit: The text does not match the expected value.
        """
        for _ in range(retries):
            try:
                return (yield from self._start(driver, options, path)[1])
            except DoesNotFit as error:
                options = companion("schema.structured").corrected(options, error)
        return (yield from self._start(driver, options, path)[1])

    def _list_models(self, driver: Any) -> Steps[list[Model]]:
        settings = self._settings
        call = Call(settings, self._pool, driver, settings.timeout, settings.max_retries)
        return read_models(settings, (yield from call.fetch("GET", "models", None, {})))

    def _request(self, driver: Any, method: str, path: str, json: Any, options: Mapping[str, Any]) -> Steps[Any]:
        call_options = read_request_options(self._settings, method, options)
        call = self._call(driver, call_options)
        return parse_any_body((yield from call.fetch(method, path, json, call_options.headers)))

    def _embed(self, driver: Any, text: Any, options: Mapping[str, Any]) -> Steps[Any]:
        settings = self._settings
        call_options = read_options(settings, "", options, EmbeddingKeywords, "embed")
        embeddings = companion("extras.embeddings")
        texts, parts = embeddings.check_texts(text), []
        call = self._call(driver, call_options)
        for batch in embeddings.batches(texts, options.get("batch_size")):
            model = call_options.model or (yield from self._embedding_model(call, call_options.headers))
            body = embeddings.embedding_body(call_options, batch, model)
            raw = yield from call.fetch("POST", "embeddings", body, call_options.headers)
            parts.append(embeddings.read_vectors(settings, call_options, raw, len(batch)))
        vectors = embeddings.joined(parts)
        return embeddings.first_of(vectors) if isinstance(text, str) else vectors

    # Parts of these steps.

    def _call(self, driver: Any, options: CallOptions) -> Call:
        return Call(self._settings, self._pool, driver, options.timeout, options.max_retries)

    def _send(self, call: Call, options: CallOptions, path: str) -> Steps[None]:
        """Send a request for a completion. If the server refuses a field, repeat it without the field."""
        settings, expected = self._settings, options.expected
        if options.media:
            options = yield from call.wait("call", None, with_media, options)
        model = options.model or (yield from self._default_model(call, options.headers))
        body = first = request_body(settings, options, model, path)
        while True:
            try:
                sent = body if expected is None else expected.apply(body)
                yield from call.send("POST", path, sent, options.headers)
                break
            except (BadRequestError, UnprocessableError) as error:
                body = adapted_body(options, body, error)
        if "stream_options" in first and "stream_options" not in body:
            settings.takes_stream_options = False

    def _default_model(self, call: Call, headers: Mapping[str, str]) -> Steps[str | None]:
        """The model of the client, or the only one of the server; None if the server lists none."""
        settings = self._settings
        if settings.model is None and settings.found_model is None:
            settings.found_model = choose_model((yield from self._listed_models(call, headers)))
        return settings.model or settings.found_model

    def _embedding_model(self, call: Call, headers: Mapping[str, str]) -> Steps[str | None]:
        """The model of the client if it is one for embeddings, else that of the server."""
        embeddings, settings = companion("extras.embeddings"), self._settings
        if settings.model is not None and embeddings.makes_embeddings(settings.model):
            return settings.model
        if settings.found_embedding_model is None:
            listed = yield from self._listed_models(call, headers)
            settings.found_embedding_model = embeddings.choose_embedding_model(listed, settings.model)
        return settings.found_embedding_model

    def _listed_models(self, call: Call, headers: Mapping[str, str]) -> Steps[Sequence[Model]]:
        """The models of the server; empty if it has no list."""
        try:
            return read_models(self._settings, (yield from call.fetch("GET", "models", None, headers)))
        except (StatusError, ProtocolError) as error:
            if lists_no_models(error):
                return []
            raise
