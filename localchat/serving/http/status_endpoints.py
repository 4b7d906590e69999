"""The endpoints that show the state of the server and of its model, for people, programs and monitoring; the page."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import __version__
from ..core import errors
from ..core.server_options import Options
from ..loading.service import Service
from .exchange import Exchange
from .metrics import TYPE, Metrics

_HOME = """localchat: {}

Base URL for clients: this address with the path /v1. GET /v1 lists the endpoints.
Documentation: README.md (start), docs/server.md (options), docs/client.md, docs/tools.md, docs/clients.md (editors)
"""

_PAGE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class StatusEndpoints:
    """The handlers. None of them loads a model."""

    service: Service
    options: Options
    counts: Metrics

    def home(self, exchange: Exchange) -> None:
        if self.options.has_page and exchange.wants_page:
            page, headers = chat_page()
            exchange.send("text/html; charset=utf-8", page.encode(), headers)
            return
        try:
            model = self.service.loaded_model()
            facts = model.engine.facts
            state = f"the model {model.name} is ready ({facts.description}, context of {facts.n_ctx} tokens)."
        except errors.ApiError as error:
            state = error.message
        exchange.send("text/plain; charset=utf-8", _HOME.format(state).encode(), {"Cache-Control": "no-store"})

    def health(self, exchange: Exchange) -> None:
        self.service.check_default()
        exchange.send_json(200, {"status": "ok"})

    def props(self, exchange: Exchange) -> None:
        """The settings, with llama.cpp's field names. The path of the model file is left out."""
        model = self.service.loaded_model(exchange.query.get("model", ""))
        facts = model.engine.facts
        body = {
            "default_generation_settings": {"params": model.sampling.fields(), "n_ctx": facts.n_ctx},
            "total_slots": facts.n_parallel, "model_alias": model.name, "build_info": f"localchat {__version__}",
            "modalities": {"vision": "image" in facts.modalities, "audio": "audio" in facts.modalities, "video": False},
            "workers": [{"endpoint": endpoint, "n_layers": n} for endpoint, n in facts.workers],
            "endpoint_slots": True, "endpoint_props": False, "endpoint_metrics": True,
            "chat_template": model.template_source, "bos_token": facts.bos, "eos_token": facts.eos,
        }  # fmt: skip
        exchange.send_json(200, body)

    def adapters(self, exchange: Exchange) -> None:
        """The adapters, with llama.cpp's field names. Their ids are those of the field `lora`."""
        adapters = self.service.loaded_model(exchange.query.get("model", "")).engine.facts.adapters
        exchange.send_json(
            200,
            [
                {"id": id, "name": adapter.name, "path": Path(adapter.path).name, "scale": adapter.scale}
                for id, adapter in enumerate(adapters)
            ],
        )

    def slots(self, exchange: Exchange) -> None:
        """The slots, with llama.cpp's field names: first those of running sequences, then the idle ones."""
        engine = self.service.loaded_model(exchange.query.get("model", "")).engine
        n_slots = engine.facts.n_parallel
        slots: list[dict[str, Any]] = []
        for sequence in engine.stats().running[:n_slots]:
            n_left = sequence.max_length - sequence.n_prompt - sequence.n_sampled
            slots.append({
                "is_processing": True, "id_task": sequence.id, "n_prompt_tokens": sequence.n_prompt,
                "n_prompt_tokens_processed": min(sequence.n_computed, sequence.n_prompt),
                "n_prompt_tokens_cache": sequence.n_cached,
                "next_token": [{"has_next_token": n_left > 0, "n_remain": n_left, "n_decoded": sequence.n_sampled}],
            })  # fmt: skip
        slots += [{"is_processing": False}] * (n_slots - len(slots))
        exchange.send_json(200, [{"id": i, "n_ctx": engine.facts.n_ctx, **slot} for i, slot in enumerate(slots)])

    def metrics(self, exchange: Exchange) -> None:
        exchange.send(TYPE, self.counts.text(self.service).encode())


@functools.lru_cache(maxsize=1)
def chat_page() -> tuple[str, dict[str, str]]:
    """The chat page and the headers of its response. The browser runs only the scripts whose hashes are in them."""
    text = _PAGE.read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in re.findall(r"(?s)<(script|style)\b[^>]*>(.*?)</\1>", text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}"
    )
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    return text, {**headers, "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
