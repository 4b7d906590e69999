"""The state of the served model (loading, loaded or failed), and the requests in flight on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..core import errors
from ..models.catalog import ModelFile
from .in_flight import InFlight
from .model import Model


class Service:
    """The model of this server: loading, loaded or failed."""

    def __init__(self, file: ModelFile, *, any_name: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Start in the state "loading".

        Args:
            file: The model that requests may name.
            any_name: Whether requests may use any other name as well.
            clock: Returns seconds.
        """
        self.progress = 0.0
        self.in_flight = InFlight()
        self._file = file
        self._any_name = any_name
        self._clock = clock
        self._started_at = clock()
        # Guards the attributes below: another thread may call `ready` while the server shuts down.
        self._lock = threading.Lock()
        self._model: Model | None = None
        self._is_closed = False

    def ready(self, model: Model) -> None:
        """Serve this model from now on."""
        with self._lock:
            self._model = model
            if self._is_closed:
                model.engine.close()

    def close(self) -> None:
        """Free the model. Call this after the last request has ended."""
        with self._lock:
            self._is_closed = True
            if self._model is not None:
                self._model.engine.close()

    def model(self) -> Model:
        """The loaded model.

        Raises:
            ModelLoading: The model is not loaded yet.
            InferenceError: The engine has failed, or its process cannot be started.
        """
        model = self._model
        if model is None:
            message = f"the model is loading ({self.progress:.0%}): try again soon"
            raise errors.ModelLoading(message, self._loading_left_s())
        failure = model.engine.failure
        if failure is not None:
            raise errors.InferenceError(f"the engine has failed: {failure}")
        return model

    def _loading_left_s(self) -> float:
        """The estimated remaining loading time in seconds. Before any progress, this is the time since the start."""
        passed_s = self._clock() - self._started_at
        return passed_s * (1 - self.progress) / self.progress if self.progress else passed_s

    def resolve(self, name: str) -> Model:
        """The model that a request names.

        Raises:
            ModelNotFound: The served model has another name.
            ApiError: The model cannot be used; see `model`.
        """
        if not self._any_name and not self._file.is_named(name):
            message = (
                f"there is no model {name.strip()!r} here; on offer: {self._file.name!r}; "
                "started with --any-name, the server accepts every name"
            )
            raise errors.ModelNotFound(message, "model")
        return self.model()
