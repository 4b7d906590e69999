"""The models of the server: named by requests, loaded when one needs them, ended when others need their place."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..core import errors
from ..engine import EngineStopped, NotEnoughMemory
from ..models.catalog import ModelFile, ModelFileError
from ..models.names import Catalog
from .model import Model

log = logging.getLogger("localchat.server")

# A model that could not be loaded is tried again after this many seconds, or when its file has changed.
RETRY_S = 60.0
# How often a request that waits for a model checks whether its client is still there.
_POLL_S = 0.25


class InFlight:
    """The requests in flight. At shutdown, `refuse` rejects new ones, then `stop` ends the remaining ones."""

    def __init__(self) -> None:
        # Whether new requests are refused. Requests in flight continue until `stop`.
        self.is_stopping = False
        # Whether `stop` was called, which ends the requests in flight.
        self.is_stopped = False
        # Guards the attributes below and writes to `is_stopped`.
        self._lock = threading.Lock()
        self._n_admitted = 0
        self._stops: set[Callable[[], None]] = set()

    @property
    def is_idle(self) -> bool:
        return self._n_admitted == 0

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request as in flight for the `with` block, also before it generates, unless the server stops.

        Raises:
            ShuttingDown: New requests are refused.
        """
        with self._lock:
            if self.is_stopping:
                raise errors.ShuttingDown(errors.SHUTTING_DOWN)
            self._n_admitted += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_admitted -= 1

    @contextlib.contextmanager
    def during(self, stop: Callable[[], None]) -> Iterator[None]:
        """Let `InFlight.stop` end a request in the `with` block by `stop`; immediately if it was called already."""
        with self._lock:
            self._stops.add(stop)
            if self.is_stopped:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stops.discard(stop)

    def refuse(self) -> None:
        """Refuse new requests from now on."""
        with self._lock:
            self.is_stopping = True

    def stop(self) -> None:
        """Refuse new requests and end those in flight."""
        with self._lock:
            self.is_stopping = self.is_stopped = True
            for stop in self._stops:
                stop()


class Failure(NamedTuple):
    """Why a model could not be loaded."""

    reason: str
    until: float
    """The time of the next try."""
    stamp: int
    """The modification time of the file."""


class ServedModel:
    """A model that requests may name, and its state. The lock of the service guards it."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        # The loaded model; None: it is not loaded.
        self.model: Model | None = None
        # Whether it waits to be loaded, or loads, and the loaded share.
        self.is_loading = False
        self.progress = 0.0
        self.began_at = 0.0
        # Whether it will be ended as soon as no request uses it. New requests wait until it has been loaded again.
        self.is_ending = False
        self.failure: Failure | None = None
        # The requests that use it, the time at which the last one ended, and that at which it is ended if it is idle.
        self.n_users = 0
        self.used_at = 0.0
        self.expires_at = math.inf

    @property
    def state(self) -> str:
        """The state with llama.cpp's words."""
        if self.model is not None:
            return "loaded"
        return "loading" if self.is_loading else "failed" if self.failure else "unloaded"


class Service:
    """The models of this server. One of them, the default, serves requests that name none.

    One thread loads and ends models, one after another; the others are served meanwhile.
    """

    def __init__(
        self,
        file: ModelFile,
        *,
        catalog: Catalog | None = None,
        load: Callable[[ServedModel], Model] | None = None,
        any_name: bool = False,
        max_models: int = 0,
        idle_unload_s: float = math.inf,
        waits: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            file: The default model.
            catalog: All models that requests may name; None: the default one alone.
            load: Loads a model, and sets its `progress`. Raises what `Front.start` raises.
            any_name: Whether other names mean the default model.
            max_models: The limit of loaded models; 0: as many as memory holds.
            idle_unload_s: A model that no request has used for this many seconds is ended.
            waits: Whether requests wait for a model that loads. False: they get ModelLoading.
            clock: Returns seconds.
        """
        self.in_flight = InFlight()
        self.default = ServedModel(file)
        self.waits = waits
        self._catalog = catalog
        self._load = load
        self._any_name = any_name
        self._max_models = max_models
        self._idle_unload_s = idle_unload_s
        self.clock = clock
        # Guards the rest and the models; notified of each change.
        self._changed = threading.Condition()
        self._models = {file.path: self.default}
        self._to_load: deque[ServedModel] = deque()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._began_at = clock()

    def ready(self, model: Model) -> None:
        """Serve this model as the default one from now on."""
        with self._changed:
            self.default.model = model
            if self._is_closed:
                model.engine.close()
            self._changed.notify_all()

    def close(self) -> None:
        """End all models. Call this after the last request has ended."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        for served in self._models.values():
            if served.model is not None:
                served.model.engine.close()

    # --- names ---

    def served(self) -> list[ServedModel]:
        """All models that requests may name, the default one first."""
        files = self._catalog.models() if self._catalog else ()
        return list(dict.fromkeys([self.default, *map(self._served, files)]))

    def find(self, name: str) -> ServedModel:
        """The model that a request names.

        Raises:
            ModelNotFound: There is no such model, or the name means several.
        """
        if name.strip().casefold() in ("", self.default.file.name.casefold()):
            return self.default
        problem = f"there is no model {name.strip()!r} here; on offer: {self.default.file.name!r}"
        problem += "; started with --any-name, the server accepts every name"
        if self._catalog is not None:
            try:
                return self._served(self._catalog.find(name))
            except ModelFileError as error:
                problem = str(error)
        if self._any_name or self.default.file.is_named(name):
            return self.default
        raise errors.ModelNotFound(problem, "model")

    def _served(self, file: ModelFile) -> ServedModel:
        with self._changed:
            served = self._models.setdefault(file.path, ServedModel(file))
            if served is not self.default:
                served.file = file
            return served

    # --- the use of a model ---

    def model(self) -> Model:
        """The default model if it is loaded, else the loaded one that was used last.

        Raises:
            ModelLoading: No model is loaded.
            InferenceError: The engine has failed, or its process cannot be started.
        """
        with self._changed:
            loaded = [served for served in self._models.values() if served.model is not None]
            best = max(loaded, key=lambda served: (served is self.default, served.used_at), default=None)
        if best is None or best.model is None:
            raise self._loading(self.default)
        return _working(best.model)

    def check(self) -> None:
        """Raise an error while the server cannot serve requests yet: the default model loads for the first time."""
        with self._changed:
            default = self.default
            if default.model is None and not default.used_at and default.failure is None:
                raise self._loading(default)
        if default.model is not None:
            _working(default.model)

    @contextlib.contextmanager
    def using(
        self, served: ServedModel, keep_alive_s: float | None = None, while_waiting: Callable[[], None] = lambda: None
    ) -> Iterator[Model]:
        """The loaded model, which is not ended within the `with`.

        Args:
            keep_alive_s: How long the model stays loaded after the request; None: `idle_unload_s`.
            while_waiting: Called several times a second while the model loads. It may raise an error to stop waiting.

        Raises:
            ModelLoading: The model is not loaded, and requests do not wait.
            InferenceError: The model cannot be loaded, or its engine has failed.
            ShuttingDown: The server has been closed.
        """
        model = self._acquire(served, while_waiting)
        try:
            yield _working(model)
        finally:
            with self._changed:
                served.n_users -= 1
                served.used_at = self.clock()
                served.expires_at = served.used_at + (self._idle_unload_s if keep_alive_s is None else keep_alive_s)
                self._changed.notify_all()

    def load(self, served: ServedModel) -> None:
        """Load a model soon, unless it is loaded. Returns at once.

        Raises:
            InferenceError: The model could not be loaded a short while ago.
        """
        with self._changed:
            self._is_usable(served)

    def unload(self, served: ServedModel) -> None:
        """End a model as soon as no request uses it. Returns at once."""
        with self._changed:
            served.expires_at = -math.inf
            self._changed.notify_all()

    def _acquire(self, served: ServedModel, while_waiting: Callable[[], None]) -> Model:
        while True:
            with self._changed:
                if not self._is_usable(served):
                    if not self.waits or self._load is None:
                        raise self._loading(served)
                    self._changed.wait(_POLL_S)
                if self._is_usable(served):
                    assert served.model is not None
                    served.n_users += 1
                    return served.model
            while_waiting()

    def _is_usable(self, served: ServedModel) -> bool:
        """Whether a model is loaded. If it is not, it will be."""
        if self._is_closed or self.in_flight.is_stopped:
            raise errors.ShuttingDown(errors.SHUTTING_DOWN)
        if served.model is not None and not served.is_ending:
            return True
        failure = served.failure
        if failure is not None and self.clock() < failure.until and failure.stamp == served.file.stamp:
            raise errors.InferenceError(f"the model {served.file.name!r} cannot be loaded: {failure.reason}")
        if not served.is_loading and self._load is not None:
            served.is_loading, served.progress, served.began_at = True, 0.0, self.clock()
            self._to_load.append(served)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="localchat-models", daemon=True)
                self._thread.start()
        return False

    def _loading(self, served: ServedModel) -> errors.ModelLoading:
        """The error for a model that is not loaded, with an estimate of the remaining time."""
        passed_s = self.clock() - (served.began_at or self._began_at)
        left_s = passed_s * (1 - served.progress) / served.progress if served.progress else passed_s
        text = f"the model is loading ({served.progress:.0%}): try again soon"
        return errors.ModelLoading(text if served.is_loading or not self._load else "no model is loaded", left_s)

    # --- the thread that loads and ends models ---

    def _run(self) -> None:
        while True:
            with self._changed:
                idle = self._expired()
                if not self._to_load and not idle and not self._is_closed:
                    self._changed.wait(self._next_expiry_s())
                    continue
                if self._is_closed:
                    return
                next_one = self._to_load.popleft() if self._to_load else None
            for served in idle:
                self._end(served, "it was idle")
            if next_one is not None:
                self._load_one(next_one)

    def _expired(self) -> list[ServedModel]:
        now = self.clock()
        return [m for m in self._models.values() if m.model is not None and not m.n_users and m.expires_at <= now]

    def _next_expiry_s(self) -> float | None:
        """Seconds until the next idle model is to be ended; None: there is none."""
        times = [m.expires_at for m in self._models.values() if m.model is not None and not m.n_users]
        first = min(times, default=math.inf)
        return None if first == math.inf else max(first - self.clock(), 0)

    def _load_one(self, served: ServedModel) -> None:
        assert self._load is not None
        while self._max_models and self._n_loaded() >= self._max_models and self._end_least_recent(served):
            pass
        model: Model | None = None
        reason = ""
        while model is None and not reason and not self._is_closed:
            try:
                model = self._load(served)
            except NotEnoughMemory as error:
                if not self._end_least_recent(served):
                    reason = str(error)
            except EngineStopped:
                reason = errors.SHUTTING_DOWN
            except Exception as error:
                log.debug("loading failed", exc_info=True)
                reason = str(error)
        with self._changed:
            served.model, served.is_loading = model, False
            served.used_at, served.expires_at = self.clock(), math.inf
            served.failure = Failure(reason, self.clock() + RETRY_S, served.file.stamp) if reason else None
            self._changed.notify_all()

    def _n_loaded(self) -> int:
        with self._changed:
            return sum(served.model is not None for served in self._models.values())

    def _end_least_recent(self, new: ServedModel) -> bool:
        """End the least recently used model for a new one. Idle ones come first. False: there is none."""
        with self._changed:
            loaded = [served for served in self._models.values() if served.model is not None]
            victim = min(loaded, key=lambda served: (served.n_users > 0, served.used_at), default=None)
        if victim is None:
            return False
        self._end(victim, f"{new.file.name} takes its place")
        return True

    def _end(self, served: ServedModel, why: str) -> None:
        """End a model after the requests that use it. Its memory is free when this returns."""
        with self._changed:
            served.is_ending = True
            self._changed.wait_for(lambda: not served.n_users or self._is_closed)
            model = served.model
            if model is None or self._is_closed:
                return
            served.model = None
        model.engine.close()
        log.info("the model %s has been unloaded: %s", served.file.name, why)
        with self._changed:
            served.is_ending = False
            self._changed.notify_all()


def _working(model: Model) -> Model:
    failure = model.engine.failure
    if failure is not None:
        raise errors.InferenceError(f"the engine has failed: {failure}")
    return model
