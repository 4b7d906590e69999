"""The endpoints that list, describe, load and unload models."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api import ollama
from ..core.fields import parse_body
from ..core.model_options import Adapter
from ..core.server_options import Options
from ..loading.loader import load_options, template_of
from ..loading.served_model import ServedModel, State
from ..loading.service import Service
from ..models.gguf import read_header
from ..models.model_file import ModelFile, summary_of
from .exchange import Exchange

# The states in the words of llama-server's router.
_STATES: Mapping[State, str] = {
    State.UNLOADED: "unloaded", State.QUEUED: "loading", State.LOADING: "loading",
    State.READY: "loaded", State.DRAINING: "loaded", State.FAILED: "failed",
}  # fmt: skip
# Longer GGUF fields, such as those with an entry for each token, are left out of the response.
_MAX_METADATA_CHARS = 1000


@dataclass(frozen=True)
class ModelEndpoints:
    """The handlers.

    A model that is not loaded is described by the header of its file and by the options. A model may be loaded or
    unloaded at any time, so each function reads `served.model` once.
    """

    service: Service
    options: Options

    def list(self, exchange: Exchange) -> None:
        """The same models in OpenAI's and Anthropic's format, and in that of llama.cpp and Ollama."""
        data, models = self._all(self._entry), self._all(self._ollama_entry)
        exchange.send_json(200, {"object": "list", "data": data, "models": models})

    def get(self, exchange: Exchange) -> None:
        served = self.service.find(exchange.routing.path_end)
        exchange.send_json(200, self._entry(served, _adapter_of(served, exchange.routing.path_end)))

    def change(self, load_or_unload: Callable[[ServedModel], None], exchange: Exchange) -> None:
        """Load or unload a model in the background, as llama-server's router does."""
        load_or_unload(self.service.find(parse_body(exchange.read()).nonempty_text("model")))
        exchange.send_json(200, {"success": True})

    def tags(self, exchange: Exchange) -> None:
        exchange.send_json(200, {"models": self._all(self._ollama_entry)})

    def _all(self, entry: Callable[..., Any]) -> Sequence[Any]:
        """The entries of all models and adapters."""
        return [
            entry(served, adapter) for served in self.service.all_models() for adapter in (None, *served.file.adapters)
        ]

    def running(self, exchange: Exchange) -> None:
        """The loaded models, each with the time at which it is unloaded."""
        models = []
        for served in self.service.all_models():
            model = served.model
            if model is not None:
                left_s = 0 if served.unload_requested else max(served.expires_at - self.service.clock(), 0)
                end = ollama.time_text(time.time() + left_s)
                state = {"expires_at": end, "size_vram": 0, "context_length": model.engine.facts.n_ctx}
                models.append({**self._ollama_entry(served), **state})
        exchange.send_json(200, {"models": models})

    def show(self, exchange: Exchange) -> None:
        body = parse_body(exchange.read())
        name = body.text("model") or body.nonempty_text("name")
        served = self.service.find(name)
        exchange.send_json(200, self._details(served, _adapter_of(served, name)))

    def _entry(self, served: ServedModel, adapter: Adapter | None = None) -> dict[str, Any]:
        """The entry of a model with the fields of OpenAI's and Anthropic's.

        That of an adapter has its base in `parent`, as vLLM's has.
        """
        file, header, model = served.file, summary_of(served.file), served.model
        name, created = adapter.name if adapter else file.name, file.stamp // 10**9
        modalities = self._modalities(served)
        if model is not None:
            facts = model.engine.facts
            sizes = {name: getattr(facts, name) for name in ("n_params", "n_vocab", "n_ctx_train", "n_ctx")}
            meta = {"description": facts.description, "size": facts.n_bytes, **sizes}
        else:
            description = f"{header.architecture} {header.quantisation}".strip()
            meta = {"description": description, "size": file.n_bytes, "n_ctx_train": header.n_ctx_train}
            if n_ctx := load_options(file, self.options).n_ctx:  # Otherwise it depends on the free memory.
                meta["n_ctx"] = n_ctx
        return {
            "id": name,
            **({"parent": file.name} if adapter else {}),
            "object": "model",
            "created": created,
            "owned_by": "localchat",
            "type": "model",
            "display_name": name,
            "created_at": ollama.time_text(created),
            "lifecycle": "active",
            # vLLM's name for `n_ctx`.
            **({"max_model_len": meta["n_ctx"]} if "n_ctx" in meta else {}),
            "meta": meta,
            "status": _status(served),
            "architecture": {"input_modalities": ["text", *modalities], "output_modalities": ["text"]},
            "capabilities": [*_capabilities(served, modalities), *(["multimodal"] if modalities else [])],
        }

    def _modalities(self, served: ServedModel) -> tuple[str, ...]:
        """What a model takes besides text."""
        if (model := served.model) is not None:
            return model.engine.facts.modalities
        projector = load_options(served.file, self.options).mmproj
        return () if projector is None else summary_of(ModelFile(Path(projector), "")).modalities

    def _details(self, served: ServedModel, adapter: Adapter | None) -> dict[str, Any]:
        """What /api/show reports. Clients read `context_length` there, the context size in use or at the next load."""
        entry, model = self._ollama_entry(served, adapter), served.model
        metadata: Mapping[str, str] = {}
        if model is not None:
            metadata, template, n_ctx = model.engine.facts.metadata, model.template_source, model.engine.facts.n_ctx
        else:
            set_template = None  # That of a mapping file.
            with contextlib.suppress(OSError, ValueError):  # The description then has fewer fields.
                set_template = template_of(served.file)
                metadata = {name: str(v) for name, v in read_header(served.file.path).items() if v is not None}
            template = metadata.get("tokenizer.chat_template", "") if set_template is None else set_template
            n_ctx = load_options(served.file, self.options).limit_of_request(summary_of(served.file).n_ctx_train)
        short = {name: text for name, text in metadata.items() if len(text) <= _MAX_METADATA_CHARS}
        info: dict[str, Any] = {name: int(text) if text.isdecimal() else text for name, text in short.items()}
        family = entry["details"]["family"]
        info[f"{family}.context_length"] = n_ctx
        if n_params := _n_params(served):
            info["general.parameter_count"] = n_params
        return {
            "modelfile": f"FROM {served.file.name}\n" + (f"ADAPTER {adapter.name}\n" if adapter else ""),
            "parameters": "", "template": template, "model_info": info,
            "details": entry["details"], "modified_at": entry["modified_at"],
            "capabilities": [*_capabilities(served, self._modalities(served), template)],
        }  # fmt: skip

    def _ollama_entry(self, served: ServedModel, adapter: Adapter | None = None) -> dict[str, Any]:
        """The entry of a model or an adapter in Ollama's format, with two fields of llama.cpp."""
        file, header, n_params = served.file, summary_of(served.file), _n_params(served)
        name = adapter.name if adapter else file.name
        family = header.architecture or "unknown"
        details = {
            "parent_model": file.name if adapter else "", "format": "gguf", "family": family, "families": [family],
            "parameter_size": _size_text(n_params),
            "quantization_level": header.quantisation or "unknown",
        }  # fmt: skip
        return {
            "name": name, "model": name, "type": "model", "size": file.n_bytes, "details": details,
            # Clients only compare digests. Computing the real one would take minutes for a large file.
            "digest": hashlib.sha256(f"{name} {file.n_bytes}".encode()).hexdigest(),
            "modified_at": ollama.time_text(file.stamp // 10**9),
            "capabilities": [*_capabilities(served, self._modalities(served))],
        }  # fmt: skip


def _adapter_of(served: ServedModel, name: str) -> Adapter | None:
    """The adapter of a model that has this name."""
    wanted = name.strip().casefold()
    return next((adapter for adapter in served.file.adapters if adapter.name.casefold() == wanted), None)


def state_word(served: ServedModel) -> str:
    """The state of a model in the words of llama-server's router."""
    return _STATES[served.state]


def _status(served: ServedModel) -> Mapping[str, Any]:
    """The state, with the share of a model that is loaded so far, and with the error of one that failed."""
    value, failure = state_word(served), served.failure
    if value == "loading":
        return {"value": value, "progress": round(served.progress, 3)}
    if value != "failed" or failure is None:
        return {"value": value}
    return {"value": value, "error": failure.error.message}


def _n_params(served: ServedModel) -> int:
    model = served.model
    return summary_of(served.file).n_params if model is None else model.engine.facts.n_params


def _size_text(n_params: int) -> str:
    """The number of parameters as in Ollama's responses. Most headers do not have it."""
    if not n_params:
        return "unknown"
    return f"{n_params / 1e9:.1f}B" if n_params >= 1e9 else f"{n_params / 1e6:.2f}M"


def _capabilities(served: ServedModel, modalities: Sequence[str], template: str = "") -> Iterator[str]:
    """What a model can do, with Ollama's words. `template` is that of the file of a model that is not loaded."""
    model = served.model
    if summary_of(served.file).is_embedding:
        yield "embedding"
        return
    yield "completion"
    yield from (word for name, word in (("image", "vision"), ("audio", "audio")) if name in modalities)
    if model is None:
        yield from (name for name, word in (("tools", "tools"), ("thinking", "think")) if word in template)
        return
    templates = model.usable_templates
    # A model whose template does not render tools was not trained on tools. Requests with tools still work: a system
    # message describes the tools.
    if any(template.capabilities.shows_tools for template in templates):
        yield "tools"
    sources = [(template.source, template.dialect.reasoning.start) for template in templates]
    if any("think" in source or start in source for source, start in sources):
        yield "thinking"
    if model.engine.facts.fim_tokens is not None:
        yield "insert"
