"""The models of the server, as the threads of requests see them: found by name, and lent to a request.

A model that is not loaded is queued for the thread that loads models (`model_thread.py`), and the request waits.
`served_model.py` has the states of a model.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..core import errors
from ..core.mailbox import Mailbox
from ..core.model_options import ServiceOptions
from ..models.catalog import Catalog
from ..models.model_file import ModelFile, ModelFileError
from .load_log import LoadLog
from .model_thread import LoadModel, ModelThread
from .models_lock import ModelsLock
from .served_model import ServedModel, State

if TYPE_CHECKING:
    from ..chat.model import Model

log = logging.getLogger("localchat.server")


class Service:
    """The models of this server. Any thread may call all methods.

    One of the models, the default, serves requests that name none.
    """

    def __init__(
        self,
        file: ModelFile,
        options: ServiceOptions = ServiceOptions(),
        *,
        load: LoadModel,
        catalog: Catalog | None = None,
        load_log: LoadLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`file` is the default model, `catalog` has all that requests may name; None: the default one alone."""
        self.default = ServedModel(file)
        self.requests_wait = options.waits  # Whether requests wait for a model that is not loaded.
        self.clock = clock
        self._options = options
        self._catalog = catalog
        self._lock = ModelsLock()  # Guards the models and the queue of the thread.
        # By the name, the file and the settings, so that a name may mean another file later. The default is under None.
        self._models: dict[object, ServedModel] = {None: self.default}
        self._model_thread = ModelThread(self._lock, self.loaded_models, load, options, load_log or LoadLog(), clock)

    @property
    def is_stopped(self) -> bool:
        return self._model_thread.is_stopped

    def close(self) -> None:
        """End all models. Call this after the last request has ended."""
        self.stop()
        self._model_thread.join()
        with contextlib.ExitStack() as closing:
            for served in self.loaded_models():
                if (model := served.model) is not None:
                    closing.callback(model.engine.close)

    def stop(self) -> None:
        """End the requests in flight, which check `is_stopped` or wait for an engine, and load no more."""
        self._model_thread.stop()
        for served in self.loaded_models():
            if (model := served.model) is not None:
                model.engine.stop()

    # --- names ---

    def all_models(self) -> list[ServedModel]:
        """All models that requests may name, the default one first, and loaded ones whose file was removed."""
        files = self._catalog.models() if self._catalog else ()
        return list(dict.fromkeys([self.default, *map(self._served_of, files), *self.loaded_models()]))

    def find(self, name: str) -> ServedModel:
        """The model that a request names, or the base of the adapter that it names.

        Raises ModelNotFound if no model has this name, or several have.
        """
        wanted, default = name.strip().casefold(), self.default.file.name
        if wanted in ("", default.casefold(), *self.default.file.adapter_names):
            return self.default
        problem = f"there is no model {name.strip()!r} here; on offer: {default!r}"
        problem += "; started with --any-name, the server accepts every name"
        if self._catalog is not None:
            try:
                file = self._catalog.find(name, default=default)
            except ModelFileError as error:
                problem = str(error)
            else:
                served = self._served_of(file)
                if wanted in file.adapter_names - served.file.adapter_names:
                    problem = f"the adapter {name.strip()!r} was added after the start of the server: start it again"
                    raise errors.ModelNotFound(problem, "model")
                return served
        for served in self.loaded_models():  # Its file may have been removed.
            if served.file.name.casefold() == wanted:
                return served
        if self._options.any_name or wanted.partition(":")[0] == default.casefold():  # A tag such as ":8b" is ignored.
            return self.default
        raise errors.ModelNotFound(problem, "model")

    def _served_of(self, file: ModelFile) -> ServedModel:
        """The model of a file in the catalog."""
        default = self.default.file  # The catalog may list it under another name.
        if file.name == default.name or (file.path, file.settings) == (default.path, default.settings):
            return self.default
        with self._lock:
            key = file.name, file.path, repr(file.settings), file.adapters
            served = self._models.setdefault(key, ServedModel(file))
            served.file = file
            for other in self.loaded_models():
                if other is not served and other.file.name == file.name:  # The name means another file now.
                    self.request_unload(other)
            return served

    def loaded_models(self) -> list[ServedModel]:
        """The models that are READY or DRAINING."""
        with self._lock:
            return [served for served in self._models.values() if served.model is not None]

    def loaded_model(self, name: str = "") -> Model:
        """The loaded model of this name, for a request that shows its state and must not load it.

        Without a name: the default model if it is loaded, otherwise the loaded model that was used last. Raises what
        `find` raises; ModelLoading if it is not loaded.
        """
        served = self.find(name)
        if not name:
            served = max(self.loaded_models(), key=lambda other: (other is self.default, other.used_at), default=served)
        model = served.model
        if model is None:
            raise self._not_loaded(served)
        return model

    # --- requests ---

    def check_default(self) -> None:
        """Raise an error if a request for the default model would get it at once.

        ModelLoading until the model has been loaded once; InferenceError after a failed load, as long as it is not to
        be tried again. From then on the next request loads the model, so the server accepts requests.
        """
        with self._lock:
            self._check_failure(self.default)
            if not self.default.was_loaded:
                raise self._not_loaded(self.default)

    def is_serving(self) -> bool:
        """Whether a request for the default model, or for a loaded one, is served: at once or after a load."""
        if self.loaded_models():
            return True
        try:
            self.check_default()
        except errors.ApiError:
            return False
        return self.requests_wait or not self.default.is_underway

    @contextlib.contextmanager
    def using(
        self, served: ServedModel, keep_alive_s: float | None = None, mailbox: Mailbox | None = None
    ) -> Iterator[Model]:
        """Lend a model to a request for the `with` block, once it is loaded.

        It is not unloaded within the block, and stays loaded for `keep_alive_s` after it; None: for `--idle-unload`.
        The calling thread waits in its mailbox.

        Raises ModelLoading if requests do not wait (`--no-wait`); InferenceError if the model cannot be loaded;
        ShuttingDown; and what the mailbox raises.
        """
        model = self._wait_until_ready(served, mailbox or Mailbox())
        try:
            yield model
        finally:
            with self._lock:
                served.n_users -= 1
                served.keep_for(self.clock(), self._options.idle_unload if keep_alive_s is None else keep_alive_s)
                self._lock.notify_all()

    def _wait_until_ready(self, served: ServedModel, mailbox: Mailbox) -> Model:
        """Wait until the model is READY, and count one more user of it."""
        with self._lock:
            served.n_waiting += 1
            served.unload_requested = False  # This request came later, also if an earlier one still uses the model.
        try:
            began_at = self.clock()
            with self._lock.announced_to(mailbox):
                while True:
                    with self._lock:
                        self._queue_unless_ready(served, by_itself=not self.requests_wait, waits_since=began_at)
                        if served.state is State.READY:
                            assert served.model is not None
                            served.n_users += 1
                            return served.model
                        if not self.requests_wait:
                            raise self._not_loaded(served)
                    mailbox.take(self._lock)
        finally:
            with self._lock:
                served.n_waiting -= 1
                self._lock.notify_all()

    def request_load(self, served: ServedModel) -> None:
        """Load a model as soon as its turn comes, unless it is loaded. Does not wait.

        Raises InferenceError if a recent try has failed.
        """
        with self._lock:
            self._queue_unless_ready(served, by_itself=True)
            served.unload_requested = False

    def request_unload(self, served: ServedModel) -> None:
        """Unload a model, also one that loads, as soon as no request uses it. Does not wait."""
        with self._lock:
            served.unload_requested = True
            self._lock.notify_all()

    def _queue_unless_ready(self, served: ServedModel, *, by_itself: bool, waits_since: float | None = None) -> None:
        """Queue a model that is UNLOADED or FAILED. Called under the lock.

        With `by_itself` it is loaded even if no request waits for it. A model that is DRAINING is queued by the
        thread once it is unloaded. Raises what `_check_failure` raises.
        """
        if self.is_stopped:
            raise errors.ShuttingDown
        if served.state is State.READY and served.model is not None and served.model.engine.has_died:
            served.crash()
        if served.state is State.READY:
            return
        self._check_failure(served, waits_since)
        served.load_requested = served.load_requested or by_itself
        if served.state in (State.UNLOADED, State.FAILED):
            self._model_thread.enqueue(served)

    def _check_failure(self, served: ServedModel, waits_since: float | None = None) -> None:
        """Raise the error of the last load, if that is not to be tried again yet.

        A request that waits since some time also gets the error of a load that has failed meanwhile. Otherwise it would
        load the model again and again if the failure may be tried again at once.
        """
        failure = served.failure
        if failure is None or failure.file_stamp != served.file.stamp:
            return
        has_waited_for_it = waits_since is not None and failure.failed_at >= waits_since
        if has_waited_for_it or self.clock() < failure.retry_at:
            text = f"the model {served.file.name!r} cannot be loaded: {failure.error}"
            raise type(failure.error)(text)

    def _not_loaded(self, served: ServedModel) -> errors.ModelLoading:
        """The error for a model that is not loaded, with an estimate of the remaining time."""
        text, left_s = f"the model {served.file.name!r} is not loaded", 0.0
        if served.is_underway:
            text = f"the model is loading ({served.progress:.0%}): try again soon"
            passed_s = self.clock() - served.queued_at
            left_s = passed_s * (1 - served.progress) / served.progress if served.progress else passed_s
        return errors.ModelLoading(text, left_s)
