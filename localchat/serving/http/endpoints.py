"""The endpoints of OpenAI's and llama.cpp's APIs: for each path, the interface and prompt builder, or a function."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from ... import __version__
from ..api import chat_response, completion_response, infill, native_completion, tokens
from ..api.chat import parse_chat
from ..api.embeddings import embeddings_body, parse_embeddings
from ..api.rerank import parse_rerank, rerank_body
from ..chat.chat_prompt import prepare_chat, prompt_text
from ..chat.embeddings import VectorRun
from ..chat.errors import wire_errors
from ..chat.model import Model
from ..chat.run import GenerationRun, PromptBuilder, start
from ..chat.service import Service
from ..chat.text_prompt import prepare_text
from ..core import errors
from ..core.inputs import check_tokens
from ..core.interface import Interface
from ..core.request import ParseOptions, TextRequest
from ..core.server_state import PROMETHEUS_TYPE, metrics_text, props_body, slots_body
from ..engine import Cancelled
from ..engine.compiling import compiling_cancelled_by
from . import metrics
from .body import PeerGone
from .exchange import MAX_LOGGED_CHARS, Exchange, printable
from .metrics import Metrics
from .stream import CHAT, WITHOUT_END, StreamFormat, send_stream, send_whole

log = logging.getLogger("localchat.server")

# At most this many names of unknown fields are logged and stored, since clients choose the names.
MAX_LOGGED_FIELDS = 100

Handler = Callable[[Exchange], None]
Table = dict[str, dict[str, Handler]]


class AnyRequest(Protocol):
    """The fields that the requests of all endpoints have."""

    @property
    def model(self) -> str: ...

    @property
    def unknown(self) -> tuple[str, ...]: ...


Request = TypeVar("Request", bound=AnyRequest)
Generated = TypeVar("Generated", bound=TextRequest)


class Endpoints:
    """The handlers of the endpoints."""

    def __init__(self, service: Service, options: ParseOptions, *, ping_s: float) -> None:
        self.metrics = Metrics()
        self._service = service
        self._options = options
        self._ping_s = ping_s
        # The names of unknown fields that have been logged; each is logged once.
        self._logged: set[str] = set()

    def table(self) -> Table:
        """The handlers by path and method."""
        rerank = self.vector_handler(parse_rerank, VectorRun.scores, rerank_body)
        return {
            "/chat/completions": {"POST": self.text_handler(chat_response.INTERFACE, prepare_chat)},
            "/completions": {"POST": self.text_handler(completion_response.INTERFACE, prepare_text)},
            "/completion": {"POST": self.text_handler(native_completion.INTERFACE, prepare_text, WITHOUT_END)},
            "/infill": {"POST": self.text_handler(infill.INTERFACE, prepare_text, WITHOUT_END)},
            "/embeddings": {"POST": self.vector_handler(parse_embeddings, VectorRun.embed, embeddings_body)},
            "/rerank": {"POST": rerank},
            "/reranking": {"POST": rerank},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/apply-template": {"POST": self._apply_template},
            "/props": {"GET": self._props},
            "/slots": {"GET": self._slots},
            "/metrics": {"GET": self._metrics},
        }

    def text_handler(
        self, interface: Interface[Generated], build: PromptBuilder[Generated], format: StreamFormat = CHAT
    ) -> Handler:
        """The handler of an interface for generated text: parse, prepare the prompts, run, encode."""

        def handle(exchange: Exchange) -> None:
            request = self._read(exchange, interface.parse)
            exchange.name_request(request.request_id)
            model = self._service.resolve(request.model)
            with self.compiling(exchange):
                run = start(model, request, build, interface.id_prefix)
            with run, self.generating(exchange, run):
                if request.stream:
                    encoder = interface.stream(run.head, request, run.usage)
                    send_stream(exchange, run, encoder, self.ping_s(request), format)
                else:
                    send_whole(exchange, run, interface.whole(run.head, request))

        return handle

    def vector_handler(
        self,
        parse: Callable[[bytes, ParseOptions], Request],
        compute: Callable[[VectorRun, Request], Sequence[Any]],
        body: Callable[[str, Request, Any, int], Any],
    ) -> Handler:
        """The handler of an endpoint that computes vectors or scores."""

        def handle(exchange: Exchange) -> None:
            request, model = self.parsed(exchange, parse)
            run = VectorRun(model)
            with self._in_flight(exchange, run):
                results = compute(run, request)
            exchange.summary = f"{len(results)} results of {run.n_tokens} tokens"
            exchange.send_json(200, body(model.name, request, results, run.n_tokens))

        return handle

    def parsed(self, exchange: Exchange, parse: Callable[[bytes, ParseOptions], Request]) -> tuple[Request, Model]:
        """The request in the body, and the model that it names."""
        request = self._read(exchange, parse)
        return request, self._service.resolve(request.model)

    def _read(self, exchange: Exchange, parse: Callable[[bytes, ParseOptions], Request]) -> Request:
        request = parse(exchange.body(), self._options)
        self.log_unknown_fields(request.unknown)
        return request

    def _tokenize(self, exchange: Exchange) -> None:
        request, model = self.parsed(exchange, tokens.parse_tokenize)
        engine = model.engine
        with wire_errors(engine, "content"):
            ids = engine.tokenize(request.text, add_bos=request.adds_special, parse_special=request.parses_special)
        exchange.send_json(200, tokens.tokens_body(ids, request, lambda token: engine.piece(token, True)))

    def _detokenize(self, exchange: Exchange) -> None:
        request, model = self.parsed(exchange, tokens.parse_detokenize)
        engine = model.engine
        check_tokens(request.tokens, engine.facts.n_vocab, "tokens")
        exchange.send_json(200, tokens.text_body([engine.piece(token, True) for token in request.tokens]))

    def _apply_template(self, exchange: Exchange) -> None:
        request, model = self.parsed(exchange, parse_chat)
        exchange.send_json(200, {"prompt": prompt_text(model, request)})

    def _props(self, exchange: Exchange) -> None:
        model = self._service.model()
        facts = model.engine.facts
        sampling = {name: value for name, value in dataclasses.asdict(model.sampling).items() if value is not None}
        body = props_body(
            model.name,
            __version__,
            n_ctx=facts.n_ctx,
            n_parallel=facts.n_parallel,
            sampling=sampling,
            template=model.template.source,
            template_caps=model.template_caps(),
            bos=facts.bos,
            eos=facts.eos,
        )
        exchange.send_json(200, body)

    def _slots(self, exchange: Exchange) -> None:
        engine = self._service.model().engine
        exchange.send_json(200, slots_body(engine.running(), engine.facts.n_parallel, engine.facts.n_ctx))

    def _metrics(self, exchange: Exchange) -> None:
        """Send the metrics. Those of the engine are missing while the model loads and after the engine has failed."""
        found = [*self.metrics.of_requests(), metrics.up(self._service)]
        with contextlib.suppress(errors.ApiError):
            found += metrics.of_engine(self._service.model().engine)
        exchange.send_text(PROMETHEUS_TYPE, metrics_text(found))

    @contextlib.contextmanager
    def compiling(self, exchange: Exchange) -> Iterator[None]:
        """Within the `with`, compiling a constraint is cancelled if the client disconnects or the server stops."""
        in_flight = self._service.in_flight
        try:
            with compiling_cancelled_by(lambda: in_flight.is_stopped or exchange.has_disconnected()):
                yield
        except Cancelled as error:
            if in_flight.is_stopped:
                raise errors.ShuttingDown(errors.SHUTTING_DOWN) from error
            raise PeerGone from error

    @contextlib.contextmanager
    def generating(self, exchange: Exchange, run: GenerationRun) -> Iterator[None]:
        """Like `_in_flight`. Also suspend the run while its client does not read, and log the summary of the run."""
        exchange.id = run.head.id
        exchange.on_stall = lambda is_stalled: run.suspend() if is_stalled else run.resume()
        try:
            with self._in_flight(exchange, run):
                yield
        finally:
            exchange.summary = run.summary

    def ping_s(self, request: TextRequest) -> float | None:
        """Seconds without a chunk after which a stream sends a ping; None: never."""
        return (self._ping_s if request.ping_s is None else request.ping_s) or None

    @contextlib.contextmanager
    def _in_flight(self, exchange: Exchange, run: GenerationRun | VectorRun) -> Iterator[None]:
        """Within the `with`, the run is cancelled if the client disconnects or the server stops."""
        try:
            with self._service.in_flight.during(run), exchange.watched(run.cancel):
                yield
        except Cancelled as error:
            raise PeerGone from error

    def log_unknown_fields(self, names: tuple[str, ...]) -> None:
        """Log the names of ignored fields of a request, each name once."""
        for name in {name[:MAX_LOGGED_CHARS] for name in names} - self._logged:
            if len(self._logged) < MAX_LOGGED_FIELDS:
                self._logged.add(name)
                log.info("requests have the field '%s', which is ignored here", printable(name))
