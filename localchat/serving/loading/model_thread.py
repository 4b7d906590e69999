"""The thread that loads and unloads models, one after another, while the loaded ones go on serving.

It carries out what `unloading.py` decides. All states of models change under one lock, which is never held while a
model loads or a process ends.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..core.errors import InferenceError
from ..core.model_options import ServiceOptions
from ..engine.values import EngineStopped
from ..models.memory import NotEnoughMemory, OtherModels
from ..models.model_file import ModelFile, summary_of
from . import unloading
from .load_log import LoadLog
from .models_lock import ModelsLock
from .served_model import ServedModel, State

if TYPE_CHECKING:
    from ..chat.model import Model

log = logging.getLogger("localchat.server")

# Loads a model beside others, and reports the loaded share, from 0 to 1.
LoadModel = Callable[[ModelFile, OtherModels, Callable[[float], None]], "Model"]

_PAUSE_S = 0.25  # The pause after an unexpected error, before the next model.
CLOSE_S = 10.0  # How long the thread may take to end.
# How long another model may not take the place of a loaded one, so that the requests that waited for it begin.
FIRST_USE_S = 5.0


class ModelThread:
    """The queue of models to be loaded, and the thread that works on it. It starts with the first model."""

    def __init__(
        self,
        lock: ModelsLock,
        loaded: Callable[[], list[ServedModel]],
        load: LoadModel,
        options: ServiceOptions,
        load_log: LoadLog,
        clock: Callable[[], float],
    ) -> None:
        """`loaded` returns the loaded models."""
        self.is_stopped = False
        self._lock = lock
        self._loaded = loaded
        self._load_model = load
        self._options = options
        self._log = load_log
        self._clock = clock
        self._queue: deque[ServedModel] = deque()
        self._thread: threading.Thread | None = None

    def enqueue(self, served: ServedModel) -> None:
        """Load a model that is UNLOADED or FAILED as soon as its turn comes. Called under the lock.

        The first call starts the thread. Raises RuntimeError if the system cannot start one.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="localchat-models", daemon=True)
            thread.start()
            self._thread = thread
        served.queue(self._clock())
        self._queue.append(served)
        self._lock.notify_all()

    def stop(self) -> None:
        """Load and unload no more. Does not wait."""
        with self._lock:
            self.is_stopped = True
            self._lock.notify_all()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    # The rest runs on the thread.

    def _run(self) -> None:
        while not self.is_stopped:
            try:
                self._step()
            except BaseException:  # Requests wait for this thread.
                log.exception("loading or unloading a model failed")
                with self._lock:
                    self._lock.wait(_PAUSE_S)

    def _step(self) -> None:
        """Unload a model that has expired, or load the next one of the queue; wait while there is neither."""
        with self._lock:
            now = self._clock()
            expiring = unloading.next_to_expire(self._loaded(), now)
            left_s = math.inf if expiring is None else unloading.time_left_s(expiring, now)
            if expiring is not None and left_s <= 0:
                expiring.drain()
                work = partial(self._unload, expiring, "no request uses it")
            elif self._queue:
                served = self._queue.popleft()
                served.begin_load()
                work = partial(self._load, served)
            else:
                self._lock.wait(min(left_s, threading.TIMEOUT_MAX))
                return
        work()

    def _load(self, served: ServedModel) -> None:
        self._log.on_begin()
        model: Model | None = None
        error: BaseException | None = None
        try:
            model = self._load_beside_others(served)
        except EngineStopped:  # The server stops.
            pass
        except BaseException as reason:  # Also a panic of a library in Rust: requests wait for this load.
            log.debug("loading failed", exc_info=True)
            error = reason
        with self._lock:
            if model is not None:
                served.finish_load(model, self._clock(), self._options.idle_unload)
            elif error is not None:
                served.fail_load(error, self._clock())
            else:
                served.abandon_load()
            failure = served.failure
            self._lock.notify_all()
        if model is not None:
            self._log.on_loaded(served.file, model)
            self._wait_for_first_use(served)
        elif failure is not None:
            self._log.on_failure(served.file, failure.error)

    def _wait_for_first_use(self, served: ServedModel) -> None:
        """Let the requests that waited for a model begin. Otherwise models could take each other's place for ever."""
        with self._lock:
            self._lock.wait_for(
                lambda: not served.n_waiting or served.state is not State.READY or self.is_stopped, FIRST_USE_S
            )

    def _is_needed(self, served: ServedModel) -> bool:
        return served.is_needed and not self.is_stopped

    def _load_beside_others(self, served: ServedModel) -> Model | None:
        """Load a model. As long as it does not fit beside the others, unload one of them and try again.

        Returns None if no request waits for it any more. Raises the errors of `Loader.load`; NotEnoughMemory only if
        it would not fit without the others either.
        """
        if problem := summary_of(served.file).problem:  # A damaged file takes no other model's place.
            raise InferenceError(problem)

        def on_progress(share: float) -> None:
            served.progress = share
            self._log.on_progress(served.file, share)

        while self._is_needed(served):
            if not unloading.has_place(self._loaded(), self._options.max_models):
                self._make_room(served)
                continue
            try:
                return self._load_model(served.file, unloading.memory_of(self._loaded()), on_progress)
            except NotEnoughMemory as error:
                if not unloading.may_fit_alone(self._loaded(), error):
                    raise
                self._make_room(served, waits=not error.would_fit)
        return None

    def _make_room(self, new: ServedModel, *, waits: bool = True) -> None:
        """Unload one model for a new one, as soon as one is idle; without `waits`, none if all are in use.

        The caller tries the load again in any case.
        """
        try:
            idle = self._drain_idle(new, waits=waits)
            if idle is not None:
                self._unload(idle, f"{new.file.name} takes its place")
        finally:
            self._resume_drained()

    def _drain_idle(self, new: ServedModel, *, waits: bool) -> ServedModel | None:
        """Drain the loaded model that is to be unloaded for a new one, and return it. No request uses it.

        With `waits`, wait until there is one. Returns None without it, and if nothing need be unloaded any more: the
        new model is not needed, or a loaded one has crashed, which makes room, too.
        """
        with self._lock:
            began_at, n_loaded = self._clock(), len(self._loaded())
            while self._is_needed(new) and len(loaded := self._loaded()) >= n_loaded:
                idle = unloading.least_recent_idle(loaded)
                if idle is not None:
                    if idle.state is State.READY:
                        idle.drain()
                    return idle
                if not waits:
                    return None
                self._wait_for_idle(loaded, began_at)
        return None

    def _wait_for_idle(self, loaded: list[ServedModel], began_at: float) -> None:
        """Wait for a change of the models, which are all in use since `began_at`. Called under the lock.

        After a while, drain one of them, so that no further request uses it.
        """
        left_s = unloading.drains_in_s(loaded, self._clock() - began_at)
        if left_s <= 0:
            unloading.next_to_drain(loaded).drain()
        self._lock.wait(left_s if 0 < left_s < math.inf else None)

    def _resume_drained(self) -> None:
        """Resume the models that are DRAINING: another one has become idle before them, so they are not unloaded."""
        with self._lock:
            for served in self._loaded():
                if served.state is State.DRAINING:
                    served.resume()
                    self._lock.notify_all()

    def _unload(self, served: ServedModel, reason: str) -> None:
        """Unload a model that is DRAINING and that no request uses. Its memory is free when this returns."""
        model = served.model
        assert model is not None
        try:
            model.engine.close()
            log.info("the model %s has been unloaded: %s", served.file.name, reason)
        finally:
            with self._lock:
                served.finish_unload()
                if self._is_needed(served):
                    self.enqueue(served)
                self._lock.notify_all()
