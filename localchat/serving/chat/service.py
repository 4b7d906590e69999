"""The state of the served model (loading, loaded or failed), and the requests in flight on it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from ..core import errors
from ..models.catalog import ModelFile
from .model import Model


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

    def model(self, name: str = "") -> Model:
        """The loaded model, which a request may name.

        Raises:
            ModelNotFound: The served model has another name.
            ModelLoading: The model is not loaded yet.
            InferenceError: The engine has failed, or its process cannot be started.
        """
        if not self._any_name and not self._file.is_named(name):
            message = (
                f"there is no model {name.strip()!r} here; on offer: {self._file.name!r}; "
                "started with --any-name, the server accepts every name"
            )
            raise errors.ModelNotFound(message, "model")
        model = self._model
        if model is None:
            # The estimated remaining time. Before any progress, this is the time since the start.
            left_s = passed_s = self._clock() - self._started_at
            if self.progress:
                left_s = passed_s * (1 - self.progress) / self.progress
            raise errors.ModelLoading(f"the model is loading ({self.progress:.0%}): try again soon", left_s)
        failure = model.engine.failure
        if failure is not None:
            raise errors.InferenceError(f"the engine has failed: {failure}")
        return model
