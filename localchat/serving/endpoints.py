"""What answers the paths: chat, completions, vectors, tokens, and how the server stands.

Between HTTP and the rest: bodies go to api/, requests to the model, and what comes back to the exchange.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..engine import Cancelled
from ..protocol import errors
from ..protocol.chat import parse_chat
from ..protocol.chat_response import StreamReply
from ..protocol.completions import CompletionStream, completion_body, parse_completion
from ..protocol.embeddings import embeddings_body, parse_embeddings
from ..protocol.inputs import check_tokens
from ..protocol.rerank import parse_rerank, rerank_body
from ..protocol.status import PROMETHEUS_TYPE, Slot, metrics_text, props_body, slots_body
from ..protocol.streaming import Streaming
from ..protocol.tokens import parse_detokenize, parse_tokenize, text_body, tokens_body
from . import metrics
from .body import PeerGone
from .exchange import MAX_LOGGED_CHARS, Exchange, printable
from .metrics import Metrics
from .stream import News, send_stream

if TYPE_CHECKING:  # They bring jinja2, and the server first looks whether that is there.
    from ..generation.answer import Answer
    from ..generation.completion import Completion
    from ..generation.embeddings import Embedding
    from ..generation.model import Service

log = logging.getLogger("localchat.server")

# A client that makes up names must not fill the memory.
MAX_TOLD = 100

Table = dict[str, dict[str, Callable[[Exchange], None]]]


class Endpoints:
    """Answers on exchanges; the options are those of the server's settings."""

    def __init__(
        self,
        service: Service,
        *,
        strict: bool,
        allow_chat_template: bool,
        thought_field: bool,
        ping_s: float,
    ) -> None:
        self.metrics = Metrics()
        self._service = service
        self._strict = strict
        self._allow_chat_template = allow_chat_template
        self._thought_field = thought_field
        self._ping_s = ping_s
        # Members that were told of in the log: once each is enough (K10).
        self._told: set[str] = set()

    def table(self) -> Table:
        return {
            "/chat/completions": {"POST": self._chat},
            "/completions": {"POST": self._complete},
            "/embeddings": {"POST": self._embed},
            "/rerank": {"POST": self._rerank},
            "/reranking": {"POST": self._rerank},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/apply-template": {"POST": self._apply_template},
            "/props": {"GET": self._props},
            "/slots": {"GET": self._slots},
            "/metrics": {"GET": self._metrics},
        }

    def _chat(self, exchange: Exchange) -> None:
        request = parse_chat(exchange.body(), strict=self._strict, allow_template=self._allow_chat_template)
        self.note_ignored(request.unknown)
        exchange.name_request(request.request_id)
        with self._service.resolve(request.model).answer(request) as answer, self.busy(exchange, answer):
            if request.stream:
                reply, patience_s = answer.streamed(thought=self._thought_field), self.patience_s(request)
                send_stream(exchange, _chunks_of_answer(answer, reply, patience_s), reply.failed, patience_s)
            else:
                whole = answer.whole(thought=self._thought_field)
                while answer.is_running:
                    answer.advance(whole)
                exchange.send_json(200, whole.body(answer.usage, answer.prompt_logprobs))

    def _complete(self, exchange: Exchange) -> None:
        from ..generation.completion import Completion

        request = parse_completion(exchange.body(), strict=self._strict)
        self.note_ignored(request.unknown)
        with Completion(self._service.resolve(request.model), request) as completion, self.busy(exchange, completion):
            if request.stream:
                stream, patience_s = CompletionStream(completion.head, request), self.patience_s(request)
                send_stream(exchange, _chunks_of_completion(completion, stream, patience_s), stream.failed, patience_s)
            else:
                while completion.is_running:
                    completion.advance()
                body = completion_body(completion.head, request, completion.choices(), completion.usage)
                exchange.send_json(200, body)

    def _embed(self, exchange: Exchange) -> None:
        from ..generation.embeddings import Embedding

        request = parse_embeddings(exchange.body(), strict=self._strict)
        self.note_ignored(request.unknown)
        model = self._service.resolve(request.model)
        embedding = Embedding(model)
        with self._watched(exchange, embedding):
            vectors = embedding.embed(request)
        exchange.summary = f"{len(vectors)} vectors of {embedding.n_tokens} tokens"
        body = embeddings_body(model.name, vectors, embedding.n_tokens, as_base64=request.as_base64)
        exchange.send_json(200, body)

    def _rerank(self, exchange: Exchange) -> None:
        from ..generation.embeddings import Embedding

        request = parse_rerank(exchange.body(), strict=self._strict)
        self.note_ignored(request.unknown)
        model = self._service.resolve(request.model)
        embedding = Embedding(model)
        with self._watched(exchange, embedding):
            scores = embedding.scores(request)
        exchange.summary = f"{len(scores)} scores of {embedding.n_tokens} tokens"
        exchange.send_json(200, rerank_body(model.name, request, scores, embedding.n_tokens))

    def _tokenize(self, exchange: Exchange) -> None:
        request = parse_tokenize(exchange.body(), strict=self._strict)
        self.note_ignored(request.unknown)
        engine = self._service.resolve(request.model).engine
        tokens = engine.tokenize(request.text, add_bos=request.adds_special, parse_special=request.parses_special)
        exchange.send_json(200, tokens_body(tokens, request, lambda token: engine.backend.piece(token, True)))

    def _detokenize(self, exchange: Exchange) -> None:
        request = parse_detokenize(exchange.body(), strict=self._strict)
        self.note_ignored(request.unknown)
        engine = self._service.resolve(request.model).engine
        check_tokens(request.tokens, engine.facts.n_vocab, "tokens")
        exchange.send_json(200, text_body([engine.backend.piece(token, True) for token in request.tokens]))

    def _apply_template(self, exchange: Exchange) -> None:
        request = parse_chat(exchange.body(), strict=self._strict, allow_template=self._allow_chat_template)
        self.note_ignored(request.unknown)
        exchange.send_json(200, {"prompt": self._service.resolve(request.model).prompt_text(request)})

    def _props(self, exchange: Exchange) -> None:
        model = self._service.model()
        facts = model.engine.facts
        body = props_body(
            model.name,
            __version__,
            n_ctx=facts.n_ctx,
            n_slots=facts.n_slots,
            sampling=_sampling_values(model.sampling),
            template=model.template.source,
            bos=facts.bos,
            eos=facts.eos,
        )
        exchange.send_json(200, body)

    def _slots(self, exchange: Exchange) -> None:
        engine = self._service.model().engine
        running = engine.running()
        slots = [Slot(s.id, s.n_prompt, s.n_cached, s.n_computed, s.n_drawn, s.max_tokens) for s in running]
        exchange.send_json(200, slots_body(slots, engine.facts.n_slots, engine.facts.n_ctx))

    def _metrics(self, exchange: Exchange) -> None:
        """Also while the model loads, or when its engine has failed: that is when one looks."""
        found = list(self.metrics.of_requests())
        with contextlib.suppress(errors.ApiError):
            found += metrics.of_engine(self._service.model().engine)
        exchange.send_text(PROMETHEUS_TYPE, metrics_text(found))

    @contextlib.contextmanager
    def busy(self, exchange: Exchange, work: Answer | Completion) -> Iterator[None]:
        """As `_watched`, and the log tells what became of it."""
        exchange.id = work.head.id
        try:
            with self._watched(exchange, work):
                yield
        finally:
            exchange.summary = work.summary

    @contextlib.contextmanager
    def _watched(self, exchange: Exchange, work: Answer | Completion | Embedding) -> Iterator[None]:
        """Within the `with`, the work ends when its client leaves or the server ends."""
        try:
            with self._service.at_work.during(work), exchange.watched(work.cancel):
                yield
        except Cancelled as error:
            raise PeerGone from error

    def patience_s(self, asked: Streaming) -> float | None:
        """How long a stream may be silent; None for ever."""
        return (self._ping_s if asked.ping_s is None else asked.ping_s) or None

    def note_ignored(self, names: tuple[str, ...]) -> None:
        for name in {name[:MAX_LOGGED_CHARS] for name in names} - self._told:
            if len(self._told) < MAX_TOLD:
                self._told.add(name)
                log.info("requests have the member '%s', which is ignored here", printable(name))


def _chunks_of_answer(answer: Answer, reply: StreamReply, patience_s: float | None) -> News:
    has_news = answer.advance(reply, patience_s)
    while answer.is_running:
        yield reply.take() if has_news else []
        has_news = answer.advance(reply, patience_s)
    reply.usage(answer.usage)
    return reply.take()


def _chunks_of_completion(completion: Completion, stream: CompletionStream, patience_s: float | None) -> News:
    def chunks() -> list[str]:
        usage = completion.usage if stream.wants_figures else None
        return [stream.chunk(i, news, usage) for i, news in completion.news()]

    completion.advance(patience_s)
    while completion.is_running:
        yield chunks()
        completion.advance(patience_s)
    return [*chunks(), *stream.usage(completion.usage)]


def _sampling_values(sampling: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(sampling).items() if value is not None}
