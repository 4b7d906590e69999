"""The models that a server lists, and which of them a call without `model` uses. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import ModelNotNamed, ProtocolError

# Where servers report the number of tokens that a request may use, the first that is there counts: at the top of an
# entry (vLLM and OpenRouter, LM Studio, others), or in its `meta` (llama.cpp).
_LENGTH_FIELDS = "max_model_len context_length loaded_context_length max_context_length context_window n_ctx"
_META_LENGTH_FIELDS = ("n_ctx", "n_ctx_train")

_SHOWN_NAMES = 20


class Model(str):
    """A model as a server lists it: its name, and what the server reports of it."""

    # Tokens that a request may use, prompt and output together; None if the server does not report it.
    context_length: int | None
    # The entry of the list as it came; a name alone if that was all.
    raw: Any

    def __new__(cls, name: str, raw: Any = None) -> Model:
        model = super().__new__(cls, name)
        model.raw = raw
        model.context_length = _context_length(raw) if isinstance(raw, dict) else None
        return model

    def __reduce__(self) -> tuple[type[Model], tuple[str, Any]]:
        return Model, (str(self), self.raw)

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the entry holds in `meta`: number of parameters, size and the like, from servers that report it."""
        meta = self.raw.get("meta") if isinstance(self.raw, dict) else None
        return meta if isinstance(meta, dict) else {}


def _context_length(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    found = [entry.get(name) for name in _LENGTH_FIELDS.split()]
    found += [meta.get(name) for name in _META_LENGTH_FIELDS] if isinstance(meta, dict) else []
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)


def parse_models(body: Any) -> list[Model]:
    """The models in a list: OpenAI's {data: [{id}]}, Ollama's {models: [{name}]}, or a bare list.

    Raises:
        ProtocolError: It is no list of models.
    """
    if isinstance(body, dict):
        body = body.get("data", body.get("models"))
    if not isinstance(body, list):
        raise ProtocolError("the list of models has neither data nor models")
    found = []
    for item in body:
        named = item if isinstance(item, dict) else {"id": item}
        name = named.get("id") or named.get("name") or named.get("model")
        if isinstance(name, str) and name:
            found.append(Model(name, item))
    return found


def choose_model(models: Sequence[str]) -> str | None:
    """The model of a server that lists one; None if it lists none.

    Raises:
        ModelNotNamed: It lists several.
    """
    names = list(dict.fromkeys(models))
    if len(names) > 1:
        raise ModelNotNamed(f"the server has several models, name one with model=...: {shown_names(names)}")
    return names[0] if names else None


def shown_names(names: Sequence[str]) -> str:
    """Names for a message."""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
