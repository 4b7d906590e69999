"""Chooses the class for the layout of a KV cache."""

from __future__ import annotations

import time
from collections.abc import Callable

from .kv_cache import KVCache
from .own_cells import OwnCells
from .protocols import CacheBackend
from .shared_cells import SharedCells


def new_kv_cache(backend: CacheBackend, clock: Callable[[], float] = time.perf_counter) -> KVCache:
    """The KV cache of a backend whose slots are all free."""
    return (SharedCells if backend.limits.is_unified else OwnCells)(backend, clock)
