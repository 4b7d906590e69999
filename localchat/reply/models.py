"""The models that a server lists, and which of them a call without `model` uses. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelNotNamed, ProtocolError

# The fields in which servers report the context length, in the order of their precedence: of an entry of the list
# (vLLM, OpenRouter, LM Studio and others), then of its `meta` (llama.cpp).
_LENGTH_FIELDS = "max_model_len context_length loaded_context_length max_context_length context_window n_ctx"
_META_LENGTH_FIELDS = ("n_ctx", "n_ctx_train")

_SHOWN_NAMES = 20


class Model(str):
    """The name of a model that a server lists, with the data that the server reports of it."""

    # The limit of tokens of a request, prompt and output together; None if the server does not report it.
    context_length: int | None
    # The entry of the list: an object, or only a name.
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
        """The field `meta` of the entry (number of parameters, size and others); empty if there is none."""
        meta = self.raw.get("meta") if isinstance(self.raw, dict) else None
        return meta if isinstance(meta, dict) else {}


def _context_length(entry: Mapping[str, Any]) -> int | None:
    meta = entry.get("meta")
    found = [entry.get(name) for name in _LENGTH_FIELDS.split()]
    found += [meta.get(name) for name in _META_LENGTH_FIELDS] if isinstance(meta, dict) else []
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)


def parse_models(body: Any) -> list[Model]:
    """Parse a list of models: OpenAI's {data: [{id}]}, Ollama's {models: [{name}]}, or a JSON array.

    Raises:
        ProtocolError: The body is not a list of models.
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
    """The only model of a server; None if the list is empty.

    Raises:
        ModelNotNamed: The server has several models.
    """
    names = list(dict.fromkeys(models))
    if len(names) > 1:
        raise ModelNotNamed(f"the server has several models, name one with model=...: {shown_names(names)}")
    return names[0] if names else None


def shown_names(names: Sequence[str]) -> str:
    """The first names as text for a message, with the number of the others."""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + more
