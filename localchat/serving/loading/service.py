"""The models of the server: named by requests, loaded when one needs them, ended when others need their place."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core import errors
from ..core.model_options import ServiceOptions
from ..models.catalog import Catalog
from ..models.memory import NotEnoughMemory, OtherModels
from ..models.model_file import ModelFile, ModelFileError, summary_of

if TYPE_CHECKING:
    from ..chat.model import Model

log = logging.getLogger("localchat.server")

RETRY_S = 60.0  # A model that could not be loaded is tried again after this many seconds, or when its file has changed.
MAX_TRIES = 3  # A load that crashes is tried again at the next request, up to this many times in a row.
_POLL_S = 0.25  # How often a request that waits for a model checks whether its client is still there.
# How long the requests that waited for a model have to begin, before another model may take its place.
_FIRST_USE_S = 5.0
_CLOSE_S = 10.0  # How long the thread that loads models may take to end.
# What an engine process takes at most beside the weights and the context, such as libraries and kernels.
_PROCESS_BYTES = 1 << 30


@dataclass(eq=False)
class ServedModel:
    """A model that requests may name, and its state, which the service changes under its lock."""

    file: ModelFile
    model: Model | None = None  # The loaded model; None: it is not loaded.
    is_loading: bool = False  # Whether it is queued to be loaded, or being loaded.
    progress: float = 0.0  # The loaded share, from 0 to 1.
    began_at: float = 0.0  # When it was queued to be loaded.
    # Whether it will be ended as soon as no request uses it. New requests wait until it has been loaded again.
    is_ending: bool = False
    is_wanted: bool = False  # Whether it is to be loaded even if no request waits for it.
    # Why it could not be loaded. It is tried again at `retry_at`, or when the file has another modification time.
    failure: str = ""
    # The class of the error of the requests that waited for it.
    error_class: type[errors.InferenceError] = errors.InferenceError
    failed_at: float = -math.inf
    retry_at: float = 0.0
    failed_stamp: int = 0
    n_failed: int = 0  # The failed loads in a row.
    n_users: int = 0  # The requests that use it.
    n_waiting: int = 0  # The requests that wait until it has been loaded.
    used_at: float = 0.0  # When the last request ended, or else the last load; 0: neither has happened.
    # When it is ended if no request uses it: infinity is never, minus infinity after a call of `unload`.
    expires_at: float = math.inf


class Service:
    """The models of this server. One of them, the default, serves requests that name none. One thread loads and ends
    models, one after another; loaded models go on serving meanwhile."""

    def __init__(
        self,
        file: ModelFile,
        options: ServiceOptions = ServiceOptions(),
        *,
        load: Callable[[ServedModel, OtherModels], None],
        catalog: Catalog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`file` is the default model, `catalog` has all that requests may name; None: the default one alone. `load`
        loads a model beside others: it sets its `progress` and its `model`."""
        self.default = ServedModel(file)
        self.waits = options.waits
        self._options = options
        self._catalog = catalog
        self._load_file = load
        self.clock = clock
        self.is_stopped = False
        # Guards the rest and the models; notified of each change.
        self._changed = threading.Condition()
        self._models: dict[object, ServedModel] = {None: self.default}
        self._to_load: deque[ServedModel] = deque()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """End all models. Call this after the last request has ended."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        with contextlib.ExitStack() as closing:
            for served in self.loaded():
                if served.model is not None:
                    closing.callback(served.model.engine.close)

    def stop(self) -> None:
        """End the requests in flight, which check `is_stopped` or wait for an engine, and load no more."""
        with self._changed:
            self.is_stopped = True
            self._changed.notify_all()
        for served in self.loaded():
            if (model := served.model) is not None:
                model.engine.stop()

    def served(self) -> list[ServedModel]:
        """All models that requests may name, the default one first, and loaded ones whose file was removed."""
        files: Sequence[ModelFile] = ()
        try:
            files = self._catalog.models() if self._catalog else ()
        except ModelFileError as error:  # A mapping file is being edited.
            log.warning("%s", error)
        return list(dict.fromkeys([self.default, *map(self._served_of, files), *self.loaded()]))

    def find(self, name: str) -> ServedModel:
        """The model that a request names, or the base of the adapter. Raises ModelNotFound for none or several."""
        wanted, default = name.strip().casefold(), self.default.file.name
        if wanted in ("", default.casefold(), *self.default.file.adapter_names):
            return self.default
        problem = f"there is no model {name.strip()!r} here; on offer: {default!r}"
        problem += "; started with --any-name, the server accepts every name"
        if self._catalog is not None:
            try:
                file = self._catalog.find(name)
            except ModelFileError as error:
                problem = str(error)
            else:
                served = self._served_of(file)
                if wanted in file.adapter_names - served.file.adapter_names:
                    problem = f"the adapter {name.strip()!r} was added after the start of the server: start it again"
                    raise errors.ModelNotFound(problem, "model")
                return served
        for served in self.loaded():  # Its file may have been removed.
            if served.file.name.casefold() == wanted:
                return served
        if self._options.any_name or wanted.partition(":")[0] == default.casefold():  # A tag such as ":8b" is ignored.
            return self.default
        raise errors.ModelNotFound(problem, "model")

    def _served_of(self, file: ModelFile) -> ServedModel:
        default = self.default.file  # The catalog may list it under another name.
        if file.name == default.name or (file.path, file.settings) == (default.path, default.settings):
            return self.default
        with self._changed:
            key = file.name, file.path, repr(file.settings), file.adapters
            served = self._models.setdefault(key, ServedModel(file))
            served.file = file
            for other in self.loaded():
                if other is not served and other.file.name == file.name:  # The name means another file now.
                    self.unload(other)
            return served

    def loaded(self) -> list[ServedModel]:
        """The loaded models, including those that are about to be ended."""
        with self._changed:
            return [served for served in self._models.values() if served.model is not None]

    def model(self, name: str = "") -> Model:
        """The loaded model of this name. Without a name: the default model if it is loaded, otherwise the loaded model
        that was used last. Raises what `find` raises; ModelLoading if it is not loaded, and does not load it."""
        best = self.find(name)
        if not name:
            best = max(self.loaded(), key=lambda served: (served is self.default, served.used_at), default=best)
        model = best.model
        if model is None:
            raise self._not_loaded(best)
        return model

    def check(self) -> None:
        """Raise ModelLoading while the default model loads for the first time, InferenceError if that failed later."""
        if self.default.model is None:
            if not self.default.used_at:
                raise self._not_loaded(self.default)
            self._check_failure(self.default, math.inf)

    @contextlib.contextmanager
    def using(
        self, served: ServedModel, keep_alive_s: float | None = None, while_waiting: Callable[[], None] = lambda: None
    ) -> Iterator[Model]:
        """The loaded model, which is not ended within the `with`, and stays loaded for `keep_alive_s` after it; None:
        for `idle_unload`. `while_waiting` is called several times a second while it loads, and may raise an error.
        Raises ModelLoading if requests do not wait; InferenceError if it cannot be loaded; ShuttingDown."""
        model: Model | None = None
        with self._changed:
            served.n_waiting += 1
        try:
            began_at = self.clock()
            while model is None:
                with self._changed:
                    if self._queue_unless_loaded(served, began_at, is_wanted=not self.waits):
                        model = served.model
                        served.n_users += 1
                    elif not self.waits:
                        raise self._not_loaded(served)
                    else:
                        self._changed.wait(_POLL_S)
                if model is None:
                    while_waiting()
        finally:
            with self._changed:
                served.n_waiting -= 1
                self._changed.notify_all()
        try:
            yield model
        finally:
            with self._changed:
                served.n_users -= 1
                self._keep(served, self._options.idle_unload if keep_alive_s is None else keep_alive_s)

    def load(self, served: ServedModel) -> None:
        """Load a model soon, unless it is loaded. Returns at once. Raises InferenceError if a recent try has failed."""
        with self._changed:
            self._queue_unless_loaded(served, is_wanted=True)

    def unload(self, served: ServedModel) -> None:
        """End a model as soon as no request uses it. Returns at once."""
        with self._changed:
            served.expires_at = -math.inf
            self._changed.notify_all()

    def _keep(self, served: ServedModel, seconds: float) -> None:
        """Keep a model loaded for this time from now on, unless `unload` was called meanwhile."""
        served.used_at = self.clock()
        if served.expires_at != -math.inf:
            served.expires_at = served.used_at + seconds
        self._changed.notify_all()

    def _queue_unless_loaded(self, served: ServedModel, since: float = math.inf, *, is_wanted: bool) -> bool:
        """Queue a model to be loaded unless it is loaded. Returns whether requests can use it now. Raises the error of
        a load that has failed since this time, or is not to be tried again yet."""
        if self.is_stopped:
            raise errors.ShuttingDown
        if served.model is not None and not served.is_ending and not served.model.engine.has_died:
            return True
        self._check_failure(served, since)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="localchat-models", daemon=True)
            thread.start()
            self._thread = thread
        served.is_wanted = served.is_wanted or is_wanted
        if not served.is_loading:
            served.is_loading, served.progress, served.began_at = True, 0.0, self.clock()
            served.expires_at = math.inf
            self._to_load.append(served)
            self._changed.notify_all()
        return False

    def _check_failure(self, served: ServedModel, since: float) -> None:
        is_over = self.clock() >= served.retry_at and served.failed_at < since
        if served.failure and not is_over and served.failed_stamp == served.file.stamp:
            raise served.error_class(f"the model {served.file.name!r} cannot be loaded: {served.failure}")

    def _not_loaded(self, served: ServedModel) -> errors.ModelLoading:
        """The error for a model that is not loaded, with an estimate of the remaining time."""
        passed_s = self.clock() - served.began_at
        left_s = passed_s * (1 - served.progress) / served.progress if served.progress else passed_s
        text = f"the model {served.file.name!r} is not loaded"
        if served.is_loading:
            text = f"the model is loading ({served.progress:.0%}): try again soon"
        return errors.ModelLoading(text, left_s)

    # The rest runs on the thread that loads and ends models.

    def _run(self) -> None:
        while not self.is_stopped:
            try:
                self._load_or_end_one()
            except BaseException:  # Requests wait for this thread.
                log.exception("loading or ending a model failed")
                with self._changed:
                    self._changed.wait(_POLL_S)

    def _load_or_end_one(self) -> None:
        """Load the next model of the queue, or end one that has expired; wait while there is neither."""
        with self._changed:
            unused = [served for served in self.loaded() if not served.n_users]
            idle = min(unused, key=lambda served: served.expires_at, default=None)
            left_s = math.inf if idle is None else idle.expires_at - self.clock()
            if left_s > 0 and not self._to_load:
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                return
            next_one = self._to_load.popleft() if left_s > 0 else None
            if next_one is None and idle is not None:
                idle.is_ending = True
        if next_one is not None:
            self._load_one(next_one)
        elif idle is not None:
            self._end(idle, "no request uses it")

    def _load_one(self, served: ServedModel) -> None:
        failure: BaseException | None = None
        try:
            self._load_if_needed(served)
        except BaseException as error:
            log.debug("loading failed", exc_info=True)
            failure = error
        short = errors.out_of_resources(failure)
        cause = short or failure
        with self._changed:
            served.is_loading, served.is_wanted = False, False
            served.failure = "" if cause is None else str(cause) or type(cause).__name__
            served.failed_at, served.failed_stamp = self.clock() if failure else -math.inf, served.file.stamp
            served.n_failed = served.n_failed + 1 if failure else 0
            served.error_class = errors.OutOfResources if short else errors.InferenceError
            is_transient = getattr(cause, "is_transient", False)
            served.retry_at = served.failed_at + (0 if is_transient and served.n_failed < MAX_TRIES else RETRY_S)
            self._keep(served, self._options.idle_unload)
            # Otherwise the models of waiting requests could take each other's place for ever.
            self._changed.wait_for(
                lambda: not served.n_waiting or served.is_loading or self.is_stopped,  # `is_loading`: queued again
                _FIRST_USE_S,
            )

    def _load_if_needed(self, served: ServedModel) -> None:
        """Load a model beside others or in their place, unless no request waits for it any more."""
        if (dead := served.model) is not None:
            if not dead.engine.has_died:  # It was to be ended for another model, whose request is gone.
                return
            with self._changed:
                served.model = None
            dead.engine.close()
        if problem := summary_of(served.file).problem:  # A damaged file takes no other model's place.
            log.error("cannot load %s", problem)
            raise errors.InferenceError(problem)
        while self._is_needed(served):
            if 0 < self._options.max_models <= len(self.loaded()):
                self._end_least_recent(served)
                continue
            try:
                self._load_file(served, self._others())
                return
            except NotEnoughMemory as error:
                # End no model if ending all of them would not free enough.
                freed = sum(_n_bytes(other.model) + _PROCESS_BYTES for other in self.loaded() if other.model)
                if error.n_missing > freed:
                    log.error("cannot load %s: %s", served.file.name, error)
                    raise
                self._end_least_recent(served, only_idle=not error.n_missing)

    def _is_needed(self, served: ServedModel) -> bool:
        return not self.is_stopped and (served.is_wanted or served.n_waiting > 0)

    def _others(self) -> OtherModels:
        loaded = [(served.model, served.n_users) for served in self.loaded() if served.model]
        n_mapped = sum(model.engine.facts.n_mapped_bytes for model, _ in loaded)
        return OtherModels(n_mapped, sum(_n_bytes(model) for model, n_users in loaded if not n_users))

    def _end_least_recent(self, new: ServedModel, *, only_idle: bool = False) -> None:
        """End the least recently used idle model for a new one, or wait for one as long as the new one is needed. After
        some seconds, or if there is only one, new requests for the least recently used one wait: it could stay busy."""
        began_at = self.clock()
        blocked: ServedModel | None = None
        try:
            while self._is_needed(new):
                with self._changed:
                    loaded = self.loaded()
                    victim = min(loaded, key=lambda served: (served.n_users > 0, served.used_at), default=None)
                    if victim is None or (only_idle and victim.n_users):  # It has become busy meanwhile.
                        return
                    if victim.n_users:
                        if blocked is None and (len(loaded) == 1 or self.clock() - began_at >= _FIRST_USE_S):
                            blocked, victim.is_ending = victim, True
                        self._changed.wait(_POLL_S)
                        continue
                    victim.is_ending = True
                self._end(victim, f"{new.file.name} takes its place")
                return
        finally:
            if blocked is not None:
                with self._changed:
                    blocked.is_ending = False
                    self._changed.notify_all()

    def _end(self, served: ServedModel, why: str) -> None:
        """End a model that no request uses, whose `is_ending` is set. Its memory is free when this returns."""
        with self._changed:
            model, served.model = served.model, None
        assert model is not None, "only this thread ends models"
        try:
            model.engine.close()
            log.info("the model %s has been unloaded: %s", served.file.name, why)
        finally:
            with self._changed:
                served.is_ending = False
                self._changed.notify_all()


def _n_bytes(model: Model) -> int:
    return model.engine.facts.n_bytes + model.engine.facts.n_context_bytes
