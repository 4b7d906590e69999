"""The endpoints that list, describe, load and unload models."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..api import ollama
from ..chat.model import Model
from ..core.fields import parse_body
from ..models.gguf import GGUFError, read_header
from ..models.model_file import summary_of
from ..models.service import ServedModel, Service
from .exchange import Exchange


@dataclass(frozen=True)
class ModelEndpoints:
    """The handlers. Lists have the models that are not loaded, too, as far as the start of their files tells."""

    service: Service[Model]

    def list(self, exchange: Exchange) -> None:
        served = self.service.served()
        # The same models in OpenAI's format, and in that of llama.cpp and Ollama.
        data, models = [_entry(one) for one in served], ollama.tags_body(map(_card, served))
        exchange.send_json(200, {"object": "list", "data": data, **models})

    def get(self, exchange: Exchange) -> None:
        exchange.send_json(200, _entry(self.service.find(exchange.tail)))

    def load(self, exchange: Exchange) -> None:
        """Load a model in the background, as llama-server's router does."""
        self._change(exchange, self.service.load)

    def unload(self, exchange: Exchange) -> None:
        self._change(exchange, self.service.unload)

    def _change(self, exchange: Exchange, change: Callable[[ServedModel[Model]], None]) -> None:
        change(self.service.find(parse_body(exchange.read()).required_text("model")))
        exchange.send_json(200, {"success": True})

    def tags(self, exchange: Exchange) -> None:
        exchange.send_json(200, ollama.tags_body(map(_card, self.service.served())))

    def running(self, exchange: Exchange) -> None:
        loaded = [one for one in self.service.served() if one.model is not None]
        now, clock = time.time(), self.service.clock()
        ends = [one.expires_at if one.expires_at == math.inf else now + one.expires_at - clock for one in loaded]
        exchange.send_json(200, ollama.ps_body(zip(map(_card, loaded), ends)))

    def show(self, exchange: Exchange) -> None:
        served = self.service.find(ollama.parse_show(parse_body(exchange.read())))
        exchange.send_json(200, ollama.show_body(_card(served, with_template=True)))


def _entry(served: ServedModel[Model]) -> dict[str, Any]:
    """The entry of a model in /v1/models."""
    card, model = _card(served), served.model
    if model is not None:
        meta = model.meta()
    else:
        header = summary_of(served.file)
        description = f"{header.architecture} {header.quantisation}".strip()
        meta = {"description": description, "size": card.n_bytes, "n_ctx_train": card.n_ctx}
    return {
        "id": card.name,
        "object": "model",
        "created": card.created,
        "owned_by": "localchat",
        # vLLM's name for `n_ctx`.
        **({"max_model_len": meta["n_ctx"]} if "n_ctx" in meta else {}),
        "meta": meta,
        "status": {"value": served.state, **({"error": served.failure} if served.failure else {})},
        "capabilities": list(card.capabilities),
    }


def _card(served: ServedModel[Model], *, with_template: bool = False) -> ollama.ModelCard:
    """The description of a model. `with_template` reads the whole header of a model that is not loaded."""
    file, header, model = served.file, summary_of(served.file), served.model
    metadata: Mapping[str, str] = {"general.architecture": header.architecture}
    if model is not None:
        metadata = model.engine.facts.metadata
    elif with_template:
        with contextlib.suppress(GGUFError, OSError):  # The summary tells that there is a problem.
            metadata = {name: str(v) for name, v in read_header(file.path).items() if v is not None}
    template = metadata.get("tokenizer.chat_template", "") if model is None else model.template.source
    return ollama.ModelCard(
        name=file.name,
        created=file.stamp // 10**9,
        n_bytes=file.n_bytes,
        n_params=header.n_params if model is None else model.engine.facts.n_params,
        n_ctx=header.n_ctx_train if model is None else model.engine.facts.n_ctx,
        quantisation=header.quantisation,
        metadata=metadata,
        template=template,
        capabilities=("embedding",) if header.is_embedding else tuple(_capabilities(model, template)),
    )


def _capabilities(model: Model | None, template: str) -> Iterator[str]:
    """What a model that generates text can do, with Ollama's words."""
    yield "completion"
    # A model whose template does not render tools was not trained on tools. Requests with tools still work: a system
    # message describes the tools.
    if "tools" in template if model is None else model.template.capabilities.shows_tools:
        yield "tools"
    if "think" in template or (model is not None and model.template.dialect.reasoning.start in template):
        yield "thinking"
    if model is not None and model.engine.facts.fim_tokens is not None:
        yield "insert"
