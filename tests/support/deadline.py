"""The deadline of the waits in tests, and the wait for a condition."""

import time
from collections.abc import Callable

# A ceiling, far beyond what anything in the tests takes on a loaded machine, so that only what hangs reaches it. A test
# whose subject is a duration has a limit of its own.
DEADLINE_S = 60


def wait_for(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait until a condition is true that another thread or process makes so."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "the deadline passed"
        time.sleep(0.002)
