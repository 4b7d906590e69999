"""The policy of unloading: which model is unloaded, when, and whether that makes room for another one.

A model is unloaded if no request has used it for a time (`--idle-unload`, `keep_alive`), and for another one if
`--max-models` are loaded or if memory is short. Each function decides for the loaded models of one moment, and changes
nothing: the thread of the models carries the decision out, and asks again when something has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..models.memory import NotEnoughMemory, OtherModels
from .served_model import ServedModel, State

# How long a model that is in use stays open for new requests while another one waits for its place.
GRACE_S = 5.0
# What an engine process takes at most beside the weights and the context, such as libraries and kernels.
_PROCESS_BYTES = 1 << 30


def time_left_s(served: ServedModel, now: float) -> float:
    """How long a loaded model stays loaded unless a request uses it; infinity: for ever, 0: it is unloaded at once."""
    if served.n_users:
        return math.inf
    return 0.0 if served.unload_requested else max(served.expires_at - now, 0.0)


def next_to_expire(loaded: Sequence[ServedModel], now: float) -> ServedModel | None:
    return min(loaded, key=lambda served: time_left_s(served, now), default=None)


def has_place(loaded: Sequence[ServedModel], max_models: int) -> bool:
    """Whether one more model may be loaded. A `max_models` of 0 means that there is no limit."""
    return not max_models or len(loaded) < max_models


def may_fit_alone(loaded: Sequence[ServedModel], error: NotEnoughMemory) -> bool:
    """Whether a model that did not fit may fit once all loaded ones are unloaded."""
    return error.n_missing <= sum(served.n_bytes + _PROCESS_BYTES for served in loaded)


def memory_of(loaded: Sequence[ServedModel]) -> OtherModels:
    """What the engine process of a further model has to know of the loaded ones."""
    in_memory = [(served, model.engine.facts) for served in loaded if (model := served.model) is not None]
    idle = [facts for served, facts in in_memory if not served.n_users]
    return OtherModels(
        n_mapped=sum(facts.n_mapped_bytes for _, facts in in_memory),
        n_idle=sum(facts.n_bytes + facts.n_context_bytes - facts.n_gpu_bytes for facts in idle),
        n_idle_on_gpus=sum(facts.n_gpu_bytes for facts in idle),
    )


def least_recent_idle(loaded: Sequence[ServedModel]) -> ServedModel | None:
    """The model that makes room for another one: the least recently used one of those that no request uses."""
    idle = (served for served in loaded if not served.n_users)
    return min(idle, key=lambda served: served.used_at, default=None)


def drains_in_s(loaded: Sequence[ServedModel], waited_s: float) -> float:
    """The seconds until one of the models is drained, if all are in use and another one has waited for `waited_s`.

    The first that becomes idle makes room, but all could stay in use for ever. So one is drained after a while. A model
    that is alone is drained at once: no other one can become idle before it. Infinity: one is drained already.
    """
    if not loaded or any(served.state is State.DRAINING for served in loaded):
        return math.inf
    return GRACE_S - waited_s if len(loaded) > 1 else 0.0


def next_to_drain(loaded: Sequence[ServedModel]) -> ServedModel:
    """The model to drain if all are in use: the least recently used one."""
    return min(loaded, key=lambda served: served.used_at)
