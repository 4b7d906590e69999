"""The models that a server lists, of which a request that names no model uses the only one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import IncompleteStream, ModelNotNamed, ProtocolError, StatusError, StreamError
from ..transport.call import Call

# The fields with the context length, by precedence, of an entry of the list, then of its `meta` (llama.cpp).
_LENGTH_FIELDS = "max_model_len context_length loaded_context_length max_context_length context_window n_ctx"
_META_LENGTH_FIELDS = "n_ctx n_ctx_train"

_SHOWN_NAMES = 20  # How many names an error lists.

NO_LIST_STATUSES = (404, 405, 501)  # The statuses of servers that have no list of models.
# The errors of the request for the list after which a call, or the chat on the terminal, goes on without the list.
LIST_ERRORS = (IncompleteStream, ProtocolError, StatusError, StreamError)


class Model(str):
    """The name of a model that a server lists; `raw` is the entry of the list, an object or only a name."""

    raw: Any

    def __new__(cls, name: str, raw: Any = None) -> Model:
        model = super().__new__(cls, name)
        model.raw = raw
        return model

    @property
    def context_length(self) -> int | None:
        """The limit of tokens of a request, prompt and output together; None if the server does not report it."""
        entry = self.raw if isinstance(self.raw, dict) else {}
        meta = entry.get("meta")
        lengths = [entry.get(name) for name in _LENGTH_FIELDS.split()]
        lengths += [meta.get(name) for name in _META_LENGTH_FIELDS.split()] if isinstance(meta, dict) else []
        return next((n for n in lengths if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)

    @property
    def state(self) -> str | None:
        """ "loaded", "loading", "unloaded" or "failed"; None if the server does not report it."""
        entry = self.raw if isinstance(self.raw, dict) else {}
        status = entry.get("status")  # llama.cpp's field; that of LM Studio is `state`.
        state = status.get("value") if isinstance(status, dict) else entry.get("state")
        return state if isinstance(state, str) else None


async def fetch_models(call: Call) -> list[Model]:
    """The models that the server lists."""
    return parse_models(await call.fetch_json("GET", "models", None))


async def default_model(call: Call) -> str | None:
    """The model of the client, or the only one of the server; None if the server has no list or lists none.

    Many servers with one model have no list and need no name. So an error in place of the list does not fail the call:
    the response to the request itself shows whether the model has to be named.
    """
    settings = call.settings
    learned = settings.learned
    if settings.model is None and learned.model is None and learned.may_list_models:
        try:
            learned.model = choose_model(await fetch_models(call))
        except LIST_ERRORS as error:
            is_missing = isinstance(error, ProtocolError) or getattr(error, "status", 0) in NO_LIST_STATUSES
            learned.may_list_models = not is_missing
    return settings.model or learned.model


def parse_models(body: Any) -> list[Model]:
    """Parse a list of models: OpenAI's {data: [{id}]}, Ollama's {models: [{name}]}, or a JSON array."""
    if isinstance(body, dict) and body.keys() & {"data", "models"}:
        body = body.get("data") or body.get("models") or []
    if not isinstance(body, list):
        raise ProtocolError("the list of models has neither data nor models")
    models = []
    for item in body:
        entry = item if isinstance(item, dict) else {"id": item}
        name = entry.get("id") or entry.get("name") or entry.get("model")
        if isinstance(name, str) and name:
            models.append(Model(name, item))
    return models


def choose_model(models: Sequence[str]) -> str | None:
    """The only model, or the only loaded one; None if there is none. Raises ModelNotNamed if there are several."""
    names = list(dict.fromkeys(models))
    loaded = [name for name in names if isinstance(name, Model) and name.state == "loaded"]
    for candidates in (loaded, names):
        if len(candidates) == 1:
            return candidates[0]
    if not names:
        return None
    others = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    shown = ", ".join(names[:_SHOWN_NAMES]) + others
    raise ModelNotNamed(f"the server has several models, name one (model=..., or --model): {shown}")
