"""The state of the served model (loading, loaded or failed), and the requests in flight on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..models.catalog import Catalog, ModelNotFound
from ..protocol import errors
from .in_flight import InFlight

if TYPE_CHECKING:
    from .model import Model


class Service:
    """The model of this server: loading (since this object was made), loaded, or failed. `clock` is in seconds."""

    def __init__(self, catalog: Catalog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = 0.0
        self.in_flight = InFlight()
        self._catalog = catalog
        self._clock = clock
        self._started_at = clock()
        # Guards the attributes below: the model may become ready while the server shuts down.
        self._lock = threading.Lock()
        self._model: Model | None = None
        self._is_closed = False

    def ready(self, model: Model) -> None:
        """Serve this model from now on."""
        with self._lock:
            self._model = model
            if self._is_closed:
                model.engine.close()

    def stop(self) -> None:
        """End all requests with an error, and refuse new ones. Requests that end still need the model."""
        self.in_flight.stop()

    def close(self) -> None:
        """Free the model, after the last request."""
        with self._lock:
            self._is_closed = True
            if self._model is not None:
                self._model.engine.close()

    def model(self) -> Model:
        """The model that serves.

        Raises:
            ModelLoading: It is not loaded yet.
            InferenceError: Its engine has failed for good.
            ShuttingDown: `stop` was called.
        """
        if self.in_flight.is_stopping:
            raise errors.ShuttingDown(errors.SHUTTING_DOWN)
        model = self._model
        if model is None:
            message = f"the model is being loaded ({self.progress:.0%}): try again soon"
            raise errors.ModelLoading(message, self._loading_left_s())
        failure = model.engine.failure
        if failure is not None:
            raise errors.InferenceError(f"the engine has failed, restart the server: {failure!r}")
        return model

    def _loading_left_s(self) -> float:
        """Estimated from the progress so far; without progress, as long again as the load has taken."""
        passed_s = self._clock() - self._started_at
        return passed_s * (1 - self.progress) / self.progress if self.progress else passed_s

    def resolve(self, name: str) -> Model:
        """The model that a request names.

        Raises:
            ModelNotFound: No model of that name is served; and what `model` raises.
        """
        try:
            self._catalog.find(name)
        except ModelNotFound as error:
            raise errors.ModelNotFound(str(error), "model") from error
        return self.model()
