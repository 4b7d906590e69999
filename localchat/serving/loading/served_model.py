"""A model that requests may name, and its state machine.

    queue            UNLOADED, FAILED → QUEUED
    begin_load       QUEUED → LOADING
    finish_load      LOADING → READY
    fail_load        LOADING → FAILED
    abandon_load     LOADING → UNLOADED      no request needs it any more
    crash            READY → UNLOADED        its engine process has died
    drain            READY → DRAINING
    resume           DRAINING → READY        it is not unloaded after all
    finish_unload    DRAINING → UNLOADED

A transition sets every field that is read in the state that it enters, so a model that is loaded again is like one that
is loaded for the first time. This module knows no threads and no time: the methods are called under the lock of the
service, and times are arguments, in seconds of its clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from ..core.errors import InferenceError, OutOfResources, out_of_resources
from ..models.model_file import ModelFile

if TYPE_CHECKING:
    from ..chat.model import Model

# A model that could not be loaded is tried again after this many seconds, or when its file has changed.
RETRY_S = 60.0
# If the error may be gone at the next try, as that of a crash, the next request tries again, up to so often in a row.
MAX_TRIES = 3


class State(Enum):
    UNLOADED = auto()
    QUEUED = auto()  # It waits for the thread that loads models.
    LOADING = auto()  # That thread makes room for it, or its engine process loads it.
    READY = auto()
    DRAINING = auto()  # It is unloaded once no request uses it. New requests wait until it has been loaded again.
    FAILED = auto()


@dataclass(frozen=True)
class Failure:
    """Why a model could not be loaded."""

    error: InferenceError
    failed_at: float
    retry_at: float  # When it may be tried again.
    file_stamp: int  # The modification time of the file. If it has changed, the model may be tried again at once.
    n_tries: int  # The failed loads in a row.


class ServedModel:
    """A model that requests may name."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.state = State.UNLOADED
        self.was_loaded = False  # Whether it has ever been READY.
        # The requests that wait until it has been loaded, and those that use it. They may outlive its process.
        self.n_waiting = 0
        self.n_users = 0

        # --- QUEUED and LOADING ---
        self.queued_at = 0.0
        self.progress = 0.0  # The loaded share, from 0 to 1.
        self._stamp = 0  # The modification time of the file when it was queued.
        # Whether it is loaded even if no request waits for it, as by POST /models/load. In DRAINING: loaded again.
        self.load_requested = False

        # --- from QUEUED to DRAINING ---
        self.unload_requested = False  # Whether it is to be unloaded as soon as no request uses it.

        # --- READY and DRAINING ---
        self.model: Model | None = None
        self.used_at = 0.0  # When the last request ended, or else the load.
        self.expires_at = math.inf  # When it is unloaded if no request has used it meanwhile.

        # --- FAILED, and the next try until it has ended ---
        self.failure: Failure | None = None

    @property
    def is_underway(self) -> bool:
        """Whether it will be loaded without a further request."""
        return self.state in (State.QUEUED, State.LOADING)

    @property
    def is_needed(self) -> bool:
        """Whether a request waits for the load that is queued or running, or the load itself was requested."""
        return self.load_requested or self.n_waiting > 0

    @property
    def n_bytes(self) -> int:
        """The memory of the loaded model: weights and context."""
        model = self.model  # Read once, since it is None after a crash, which any thread may notice.
        return 0 if model is None else model.engine.facts.n_bytes + model.engine.facts.n_context_bytes

    def keep_for(self, now: float, seconds: float) -> None:
        """A request has ended: keep the model for this many seconds without another one."""
        self.used_at = now
        self.expires_at = now + seconds

    # --- transitions ---

    def queue(self, now: float) -> None:
        self._leave(State.UNLOADED, State.FAILED)
        self.state = State.QUEUED
        self.queued_at = now
        self._stamp = self.file.stamp
        self.progress = 0.0
        self.unload_requested = False

    def begin_load(self) -> None:
        self._leave(State.QUEUED)
        self.state = State.LOADING

    def finish_load(self, model: Model, now: float, idle_unload_s: float) -> None:
        self._leave(State.LOADING)
        self.state = State.READY
        self.was_loaded = True
        self.model = model
        self.load_requested = False
        self.failure = None
        self.keep_for(now, idle_unload_s)

    def fail_load(self, error: BaseException, now: float) -> None:
        """The load has failed. The error of a machine without memory, files or threads gets status 503."""
        self._leave(State.LOADING)
        self.state = State.FAILED
        self.load_requested = False
        n_tries = self.failure.n_tries + 1 if self.failure else 1
        cause = out_of_resources(error) or error
        is_transient = getattr(cause, "is_transient", False) and n_tries < MAX_TRIES
        error_class = OutOfResources if isinstance(cause, OutOfResources) else InferenceError
        self.failure = Failure(
            error=error_class(str(cause) or type(cause).__name__),
            failed_at=now,
            retry_at=now if is_transient else now + RETRY_S,
            file_stamp=self._stamp,
            n_tries=n_tries,
        )

    def abandon_load(self) -> None:
        """No request waits for the load any more, or the server stops."""
        self._leave(State.LOADING)
        self.state = State.UNLOADED
        self.failure = None

    def crash(self) -> None:
        """Its engine process has died. The requests that use it get that error from the process."""
        self._leave(State.READY)
        self.state = State.UNLOADED
        self.model = None

    def drain(self) -> None:
        self._leave(State.READY)
        self.state = State.DRAINING

    def resume(self) -> None:
        """It is not unloaded after all."""
        self._leave(State.DRAINING)
        self.state = State.READY
        self.load_requested = False

    def finish_unload(self) -> None:
        """Its process has ended."""
        self._leave(State.DRAINING)
        assert not self.n_users, "a model is unloaded under a request"
        self.state = State.UNLOADED
        self.model = None

    def _leave(self, *states: State) -> None:
        assert self.state in states, f"{self.file.name} is {self.state.name}, not {' or '.join(s.name for s in states)}"
