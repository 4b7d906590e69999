"""The endpoints of Ollama's API, such as /api/chat and /api/tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..api.ollama import CHAT, GENERATE, OllamaText, Request
from ..api.ollama_models import (
    VERSION,
    ModelCard,
    embed_body,
    old_embed_body,
    parse_embed,
    parse_old_embed,
    parse_show,
    ps_body,
    show_body,
    tags_body,
)
from ..chat.chat_prompt import prepare_chat
from ..chat.embeddings import VectorRun
from ..chat.model import Model
from ..chat.run import Prepared
from ..chat.service import Service
from ..chat.text_prompt import prepare_text
from .endpoints import Endpoints, Handler, Table
from .exchange import Exchange
from .stream import StreamFormat


def _line(chunk: str) -> bytes:
    return chunk.encode("utf-8", "replace") + b"\n"


# Clients parse every line of this format, so there is no ping.
LINES = StreamFormat("application/x-ndjson", _line, None, b"")


def _prepare(model: Model, request: Request) -> Prepared:
    return prepare_text(model, request) if isinstance(request, OllamaText) else prepare_chat(model, request)


class Ollama:
    """The handlers. The router gives errors on these paths Ollama's format too."""

    def __init__(self, service: Service, endpoints: Endpoints) -> None:
        self._service = service
        self._endpoints = endpoints

    def table(self) -> Table:
        return {
            "/api/version": {"GET": lambda exchange: exchange.send_json(200, {"version": VERSION})},
            "/api/tags": {"GET": self._of_model(tags_body)},
            "/api/ps": {"GET": self._of_model(ps_body)},
            "/api/show": {"POST": self._show},
            "/api/chat": {"POST": self._endpoints.text_handler(CHAT, _prepare, LINES)},
            "/api/generate": {"POST": self._endpoints.text_handler(GENERATE, _prepare, LINES)},
            "/api/embed": {"POST": self._endpoints.vector_handler(parse_embed, VectorRun.embed, embed_body)},
            "/api/embeddings": {
                "POST": self._endpoints.vector_handler(parse_old_embed, VectorRun.embed, old_embed_body)
            },
        }

    def _of_model(self, body: Callable[[ModelCard], Any]) -> Handler:
        def handle(exchange: Exchange) -> None:
            exchange.send_json(200, body(model_card(self._service.model())))

        return handle

    def _show(self, exchange: Exchange) -> None:
        model = self._service.resolve(parse_show(exchange.body()))
        exchange.send_json(200, show_body(model_card(model)))


def model_card(model: Model) -> ModelCard:
    """The description of a model in Ollama's lists."""
    facts = model.engine.facts
    capabilities = {
        "completion": True,
        # A model whose template does not render tools was not trained on tools. Requests with tools still work: a
        # system message describes the tools.
        "tools": model.template.capabilities.shows_tools,
        "thinking": "think" in model.template.source or model.template.dialect.reasoning.start in model.template.source,
        "insert": facts.fim_tokens is not None,
    }
    names = tuple(name for name, has in capabilities.items() if has)
    if f"{facts.metadata.get('general.architecture', '')}.pooling_type" in facts.metadata:
        names = ("embedding",)
    return ModelCard(
        name=model.name,
        created=model.created,
        n_bytes=facts.n_bytes,
        n_params=facts.n_params,
        n_ctx=facts.n_ctx,
        metadata=facts.metadata,
        template=model.template.source,
        capabilities=names,
    )
