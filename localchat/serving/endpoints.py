"""What answers the paths besides chat: completions, vectors, tokens, and how the server stands."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Optional, Union

from .. import __version__
from ..api import errors
from ..api.chat import parse_chat
from ..api.completions import CompletionStream, completion_body, parse_completion
from ..api.embeddings import embeddings_body, parse_embeddings
from ..api.inputs import check_tokens
from ..api.rerank import parse_rerank, rerank_body
from ..api.status import PROMETHEUS_TYPE, Slot, metrics_text, props_body, slots_body
from ..api.tokens import parse_detokenize, parse_tokenize, text_body, tokens_body
from ..engine import Cancelled
from . import metrics
from .exchange import Exchange, PeerGone
from .metrics import Metrics
from .stream import News, send_stream

if TYPE_CHECKING:  # They bring jinja2, and the server first looks whether that is there.
    from .completion import Completion
    from .service import Service
    from .vectors import Embedding

Table = dict[str, dict[str, Callable[[Exchange], None]]]


class Endpoints:
    """Answers on exchanges. `tell_ignored` is told the members of requests that were not understood."""

    def __init__(
        self,
        service: Service,
        tell_ignored: Callable[[tuple[str, ...]], None],
        *,
        strict: bool,
        allow_chat_template: bool,
        ping_s: float,
    ) -> None:
        self.metrics = Metrics()
        self._service = service
        self._tell_ignored = tell_ignored
        self._strict = strict
        self._allow_chat_template = allow_chat_template
        self._ping_s = ping_s

    def table(self) -> Table:
        return {
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

    def _complete(self, exchange: Exchange) -> None:
        from .completion import Completion

        request = parse_completion(exchange.body(), strict=self._strict)
        self._tell_ignored(request.unknown)
        with Completion(self._service.resolve(request.model), request) as completion, self._busy(exchange, completion):
            exchange.id = completion.head.id
            try:
                if request.stream:
                    stream = CompletionStream(completion.head, request)
                    patience_s = (self._ping_s if request.ping_s is None else request.ping_s) or None
                    send_stream(exchange, _news(completion, stream, patience_s), stream.failed, patience_s)
                else:
                    _whole(exchange, completion)
            finally:
                exchange.summary = completion.summary

    def _embed(self, exchange: Exchange) -> None:
        from .vectors import Embedding

        request = parse_embeddings(exchange.body(), strict=self._strict)
        self._tell_ignored(request.unknown)
        model = self._service.resolve(request.model)
        embedding = Embedding(model)
        with self._busy(exchange, embedding):
            vectors = embedding.embed(request)
        exchange.summary = f"{len(vectors)} vectors of {embedding.n_tokens} tokens"
        body = embeddings_body(model.name, vectors, embedding.n_tokens, as_base64=request.as_base64)
        exchange.send_json(200, body)

    def _rerank(self, exchange: Exchange) -> None:
        from .vectors import Embedding

        request = parse_rerank(exchange.body(), strict=self._strict)
        self._tell_ignored(request.unknown)
        model = self._service.resolve(request.model)
        embedding = Embedding(model)
        with self._busy(exchange, embedding):
            scores = embedding.scores(request)
        exchange.summary = f"{len(scores)} scores of {embedding.n_tokens} tokens"
        exchange.send_json(200, rerank_body(model.name, request, scores, embedding.n_tokens))

    def _tokenize(self, exchange: Exchange) -> None:
        request = parse_tokenize(exchange.body())
        engine = self._service.resolve(request.model).engine
        tokens = engine.tokenize(request.text, add_bos=request.adds_special, parse_special=request.parses_special)
        exchange.send_json(200, tokens_body(tokens, request, lambda token: engine.backend.piece(token, True)))

    def _detokenize(self, exchange: Exchange) -> None:
        name, tokens = parse_detokenize(exchange.body())
        engine = self._service.resolve(name).engine
        check_tokens(tokens, engine.facts.n_vocab, "tokens")
        exchange.send_json(200, text_body([engine.backend.piece(token, True) for token in tokens]))

    def _apply_template(self, exchange: Exchange) -> None:
        request = parse_chat(exchange.body(), strict=self._strict, allow_template=self._allow_chat_template)
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
    def _busy(self, exchange: Exchange, work: Union[Completion, Embedding]) -> Iterator[None]:
        """Within the `with`, the work ends when its client leaves or the server ends."""
        try:
            with self._service.at_work.during(work), exchange.watched(work.cancel):
                yield
        except Cancelled as error:
            raise PeerGone from error


def _news(completion: Completion, stream: CompletionStream, patience_s: Optional[float]) -> News:
    def chunks() -> list[str]:
        usage = completion.usage if stream.wants_figures else None
        return [stream.chunk(i, news, usage) for i, news in completion.news()]

    completion.advance(patience_s)
    while completion.is_running:
        yield chunks()
        completion.advance(patience_s)
    return [*chunks(), *stream.usage(completion.usage)]


def _whole(exchange: Exchange, completion: Completion) -> None:
    while completion.is_running:
        completion.advance()
    body = completion_body(completion.head, completion.request, completion.choices(), completion.usage)
    exchange.send_json(200, body)


def _sampling_values(sampling: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(sampling).items() if value is not None}
