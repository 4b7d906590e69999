"""The endpoints: for each path and method a handler, which parses the body, runs the request and sends the response."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from ..api import chat, completions, embeddings, messages, ollama, responses, tokens
from ..api.encoder import Encoder
from ..api.response_store import ResponseStore
from ..chat.model import Model, check_in_vocabulary
from ..chat.runs.generation import GenerationRun
from ..chat.runs.start import prompt_length, prompt_text, start_chat, start_text
from ..chat.runs.vectors import embed_inputs, score_documents
from ..core import errors
from ..core.events import ResponseHead, Usage
from ..core.fields import Fields, parse_body
from ..core.mailbox import Mailbox
from ..core.request import ChatRequest, CompletionRequest, TextRequest
from ..core.server_options import Options
from ..core.text import printable
from ..engine.values import EngineGone
from ..loading.service import Service
from .access import METHODS, Access
from .clients import ClientMailbox, ClientMailboxes
from .exchange import MAX_LOGGED_CHARS, Exchange, Routing
from .metrics import Metrics
from .model_endpoints import ModelEndpoints
from .status_endpoints import StatusEndpoints
from .stream import CHAT, LINES, NAMED, WITHOUT_END, Stream, StreamFormat, send_output

log = logging.getLogger("localchat.server")

# At most this many names of unknown fields are logged and stored, since clients choose the names.
MAX_LOGGED_FIELDS = 100

# A request tries this many engine processes of its model at most, if each ends before it accepts the request.
_MAX_PROCESSES = 3

Handler = Callable[[Exchange], None]

# Endpoints that monitoring polls. They are not logged, unless they fail otherwise than while the model loads.
_POLLED = ("/health", "/metrics", "/slots")


class Endpoints:
    """The handlers of the endpoints, in a table by their paths, which requests may have with or without /v1.

    A key of the table that ends in a slash means all paths below it.
    """

    def __init__(self, service: Service, options: Options, mailboxes: ClientMailboxes) -> None:
        self._access = Access(options)
        self._metrics = Metrics()
        self._service = service
        self._mailboxes = mailboxes
        self.is_draining = False  # Set when new requests are refused, while those in flight go on.
        self.n_in_flight = 0
        self._counting = threading.Lock()
        self._options = options
        self._store = ResponseStore()
        self._logged: set[str] = set()  # The names of unknown fields that have been logged; each is logged once.
        self._table = self._new_table(service, options)

    def _new_table(self, service: Service, options: Options) -> dict[str, dict[str, Handler]]:
        """The handler for each path and method."""
        # The handlers of text, of vectors and of other values, each for a parser and what makes the response.
        text, vectors, value = self._text_handler, self._vectors_handler, self._value_handler
        models, status = ModelEndpoints(service, options), StatusEndpoints(service, options, self._metrics)
        parse_chat = partial(
            chat.parse_chat, allow_template=options.allow_template, thought_field=options.thought_field
        )
        parse_responses = partial(responses.parse_response, self._store)

        def count(parse: Callable[[Fields], ChatRequest], **fields: str) -> Handler:
            return value(
                parse, lambda model, chat, mailbox: {**fields, "input_tokens": prompt_length(model, chat, mailbox)}
            )

        openai_count = {"object": "response.input_tokens"}
        rerank = vectors(embeddings.parse_rerank, score_documents, embeddings.rerank_body)
        return {
            "/": {"GET": status.home},
            "/v1": {"GET": lambda exchange: exchange.send_json(200, {"endpoints": self._served()})},
            "/health": {"GET": status.health},
            "/props": {"GET": status.props},
            "/slots": {"GET": status.slots},
            "/lora-adapters": {"GET": status.adapters},
            "/metrics": {"GET": status.metrics},
            "/models": {"GET": models.list},
            "/models/load": {"POST": partial(models.change, service.request_load)},
            "/models/unload": {"POST": partial(models.change, service.request_unload)},
            "/models/": {"GET": models.get},
            "/chat/completions": {"POST": text(parse_chat, chat.ChatEncoder)},
            "/chat/completions/input_tokens": {"POST": count(parse_chat, **openai_count)},
            "/completions": {"POST": text(completions.parse_completion, completions.CompletionEncoder)},
            "/completion": {"POST": text(completions.parse_native, completions.NativeEncoder, WITHOUT_END)},
            "/infill": {"POST": text(completions.parse_infill, completions.NativeEncoder, WITHOUT_END)},
            "/embeddings": {"POST": vectors(embeddings.parse_embeddings, embed_inputs, embeddings.embeddings_body)},
            "/rerank": {"POST": rerank},
            "/reranking": {"POST": rerank},
            "/tokenize": {"POST": value(tokens.parse_tokenize, _tokenized)},
            "/detokenize": {"POST": value(tokens.parse_detokenize, _detokenized)},
            "/apply-template": {
                "POST": value(parse_chat, lambda model, chat, mailbox: {"prompt": prompt_text(model, chat, mailbox)})
            },
            "/responses": {"POST": text(parse_responses, responses.ResponseEncoder, NAMED)},
            "/responses/input_tokens": {"POST": count(parse_responses, **openai_count)},
            "/responses/": {"GET": self._get_response, "DELETE": self._delete_response},
            "/messages": {"POST": text(messages.parse_messages, messages.MessageEncoder, NAMED)},
            "/messages/count_tokens": {"POST": count(messages.parse_count_tokens)},
            "/api/version": {"GET": lambda exchange: exchange.send_json(200, {"version": ollama.VERSION})},
            "/api/tags": {"GET": models.tags},
            "/api/ps": {"GET": models.running},
            "/api/show": {"POST": models.show},
            "/api/chat": {"POST": text(ollama.parse_ollama, ollama.OllamaEncoder, LINES)},
            "/api/generate": {"POST": text(ollama.parse_generate, ollama.GenerateEncoder, LINES)},
            "/api/embed": {"POST": vectors(ollama.parse_embed, embed_inputs, ollama.embed_body)},
            "/api/embeddings": {"POST": vectors(ollama.parse_old_embed, embed_inputs, ollama.old_embed_body)},
        }

    def respond(self, exchange: Exchange) -> None:
        """Respond to a request. Raises ApiError if it is refused or cannot be carried out."""
        # Base URLs that end in a slash make paths such as /v1//models.
        path = re.sub("/+", "/", unquote(exchange.path)).rstrip("/") or "/"
        if path.startswith("/v1/"):
            path = path[len("/v1") :]
        route = self._route_of(path)
        path_end = "" if route is None else path[len(route) :]
        # First of all, since every error response needs it.
        exchange.routing = Routing(
            route or "other", path_end, _error_body_of(path), self._access.cors_headers(exchange)
        )
        if path != "/health":
            self._access.check(exchange)
        if exchange.method == "OPTIONS" and exchange.path == "*":  # the server as a whole (RFC 9110, 9.3.7)
            exchange.send_head(204, {"Allow": METHODS})
            return
        if route is None:
            raise self._unknown_path(exchange)
        methods = self._table[route]
        allowed = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
        if exchange.method == "OPTIONS":
            exchange.send_head(204, {"Allow": ", ".join(allowed)})
            return
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            # Below an endpoint for all paths, another method is another endpoint, such as POST /responses/compact.
            raise self._unknown_path(exchange) if exchange.routing.path_end else _wrong_method(exchange, allowed)
        with self._in_flight():
            handler(exchange)

    def _unknown_path(self, exchange: Exchange) -> errors.HttpError:
        message = f"there is no {exchange.method} {exchange.path}; this server has {', '.join(self._served())}"
        return errors.HttpError(404, "unknown_path", message)

    def _route_of(self, path: str) -> str | None:
        """The path of the endpoint for a path: the same, or one for all paths below it; None: there is none."""
        above = path[: path.find("/", 1) + 1]
        return next((route for route in (path, above) if route in self._table), None)

    @contextlib.contextmanager
    def _in_flight(self) -> Iterator[None]:
        """Count a request for the `with` block. Raises ShuttingDown if new requests are refused."""
        with self._counting:
            if self.is_draining or self._service.is_stopped:
                raise errors.ShuttingDown
            self.n_in_flight += 1
        try:
            yield
        finally:
            with self._counting:
                self.n_in_flight -= 1

    def ended(self, exchange: Exchange) -> None:
        """Log and count a request that has ended."""
        if exchange.routing.route not in _POLLED or exchange.status not in (200, errors.ModelLoading.status):
            exchange.log()
        self._metrics.count(exchange.routing.route, exchange.status, exchange.seconds)

    def _served(self) -> list[str]:
        """The method and path of each endpoint, except those for browsers."""
        paths = [path for path in self._table if path not in ("/", "/v1")]
        return [f"{method} /v1{path}" for path in paths for method in self._table[path]]

    def _text_handler(
        self, parse: Callable[[Fields], TextRequest], encoder_type: type[Encoder[Any]], format: StreamFormat = CHAT
    ) -> Handler:
        """The handler of an interface for generated text: parse, start, encode."""

        def handle(exchange: Exchange) -> None:
            request: TextRequest = self._read_request(exchange, parse)
            exchange.name_request(request.request_id)
            ping_chunk = encoder_type.ping_chunk(request)
            stream = Stream(exchange, format, self._options.ping_s, ping_chunk) if request.stream else None
            with self._mailboxes.mailbox_of(exchange, stream) as mailbox:
                if not request.asks_for_text:
                    self._load_or_unload(exchange, request, encoder_type, stream, mailbox)
                    return
                start: Any = start_text if isinstance(request, CompletionRequest) else start_chat
                start_for = partial(start, request=request, id_prefix=encoder_type.id_prefix, mailbox=mailbox)
                run: GenerationRun = self._call_with_model(exchange, request, start_for, mailbox)
                exchange.response_id = run.head.id
                try:
                    with run:
                        encoder = encoder_type(run.head, request, run.usage)
                        send_output(exchange, run, encoder, stream)
                finally:
                    exchange.summary = run.summary

        return handle

    def _call_with_model(
        self, exchange: Exchange, request: Any, function: Callable[[Model], Any], mailbox: ClientMailbox
    ) -> Any:
        """What a function returns for the model that a request names.

        The model stays loaded until the end of the exchange. If its engine process ends before it accepts what the
        function sends, the model is loaded again, and the function is called again.
        """
        served, keep_alive_s = self._service.find(request.model), getattr(request, "keep_alive", None)
        for n_left in reversed(range(_MAX_PROCESSES)):
            with contextlib.ExitStack() as stack:
                model = stack.enter_context(self._service.using(served, keep_alive_s, mailbox))
                try:
                    result = function(model.named(request.model))
                except EngineGone:
                    if not n_left or not model.engine.has_died:
                        raise
                    continue
                # The model stays in use until the end of the exchange.
                exchange.closing.push(stack.pop_all())
                return result
        raise AssertionError("the last call returns or raises")

    def _load_or_unload(
        self,
        exchange: Exchange,
        request: TextRequest,
        encoder_type: type[Encoder[Any]],
        stream: Stream | None,
        mailbox: ClientMailbox,
    ) -> None:
        """Carry out a request that asks for no text. Unloading concerns no other model, and loads none."""
        served = self._service.find(request.model)
        if request.keep_alive == 0:
            self._service.request_unload(served)
        else:
            self._call_with_model(exchange, request, lambda model: model, mailbox)
        encoder = encoder_type(ResponseHead("", int(time.time()), served.file.name), request, Usage)
        if stream is None:
            exchange.send_json(200, encoder.body())
        else:
            stream.encoder = encoder
            stream.send(has_events=True, is_last=True)

    def _vectors_handler(
        self,
        parse: Callable[[Fields], Any],
        compute: Callable[[Model, Any, Mailbox], tuple[Sequence[Any], int]],
        body: Callable[[str, Any, Any, int], Any],
    ) -> Handler:
        """The handler of an endpoint that computes vectors or scores."""

        def handle(exchange: Exchange) -> None:
            def computed(model: Model, request: Any, mailbox: Mailbox) -> Any:
                results, n_tokens = compute(model, request, mailbox)
                exchange.summary = f"{len(results)} results of {n_tokens} tokens"
                return body(model.name, request, results, n_tokens)

            self._send_value(exchange, parse, computed)

        return handle

    def _value_handler(self, parse: Callable[[Fields], Any], compute: Callable[[Model, Any, Mailbox], Any]) -> Handler:
        """The handler of an endpoint that computes one JSON value."""
        return lambda exchange: self._send_value(exchange, parse, compute)

    def _send_value(
        self, exchange: Exchange, parse: Callable[[Fields], Any], compute: Callable[[Model, Any, Mailbox], Any]
    ) -> None:
        """Compute a JSON value with the model that a request names, and send it."""
        request = self._read_request(exchange, parse)
        with self._mailboxes.mailbox_of(exchange) as mailbox:
            value = self._call_with_model(exchange, request, lambda model: compute(model, request, mailbox), mailbox)
        exchange.send_json(200, value)

    def _read_request(self, exchange: Exchange, parse: Callable[[Fields], Any]) -> Any:
        """The request in the body, parsed. The fields that the server ignores are logged, each name once."""
        body = parse_body(exchange.read())
        request = parse(body)
        body.report_unknown()
        for name in {name[:MAX_LOGGED_CHARS] for name in body.ignored(strict=self._options.strict)} - self._logged:
            if len(self._logged) < MAX_LOGGED_FIELDS:
                self._logged.add(name)
                log.info("requests have the field '%s', which is ignored here", printable(name))
        return request

    def _get_response(self, exchange: Exchange) -> None:
        if "/" in exchange.routing.path_end:
            raise self._unknown_path(exchange)
        if exchange.query.get("stream") == "true":
            raise errors.BadRequest("'stream' is not supported here: a stored response is sent as a whole", "stream")
        exchange.send_json(200, self._store.get(exchange.routing.path_end).body)

    def _delete_response(self, exchange: Exchange) -> None:
        self._store.delete(exchange.routing.path_end)
        exchange.send_json(200, {"id": exchange.routing.path_end, "object": "response", "deleted": True})


def _error_body_of(path: str) -> Callable[[errors.ApiError], Any]:
    """Makes the body of an error in the format of the interface at a path."""
    if path.startswith("/api/"):
        return ollama.error_body
    if path == "/messages" or path.startswith("/messages/"):
        return messages.error_body
    return errors.ApiError.body


def _wrong_method(exchange: Exchange, allowed: Sequence[str]) -> errors.HttpError:
    takes = f"{exchange.path} takes {' and '.join(allowed)}"
    if "websocket" in exchange.headers.get("Upgrade", "").lower():  # Clients then use HTTP instead.
        message = f"{takes} over HTTP/1.1, not a WebSocket"
        return errors.HttpError(426, "upgrade_required", message, {"Upgrade": "HTTP/1.1"})
    headers = {"Allow": ", ".join(allowed)}
    return errors.HttpError(405, "method_not_allowed", f"{takes}, not {exchange.method}", headers)


def _tokenized(model: Model, request: Any, mailbox: Mailbox) -> Any:
    options = {"add_bos": request.add_special, "parse_special": request.parse_special}
    with errors.adding_field("content"):
        ids = model.engine.tokenize(request.content, mailbox, **options)
    return tokens.tokens_body(ids, request, lambda token: model.engine.texts.piece(token, True))


def _detokenized(model: Model, request: Any, _: Mailbox) -> Any:
    check_in_vocabulary(request.tokens, model.engine.facts.n_vocab, "tokens")
    pieces = [model.engine.texts.piece(token, True) for token in request.tokens]
    return {"content": b"".join(pieces).decode("utf-8", "replace")}
