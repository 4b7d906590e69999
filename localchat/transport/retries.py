"""Which errors of a call are retried, and when."""

from __future__ import annotations

from ..errors import ConnectError, IncompleteStream, LocalChatError, StatusError, TimedOut

# The delay before the first retry, which doubles with each retry up to the maximum, in seconds.
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 120.0  # A longer Retry-After is not waited for.
_RETRIED_STATUSES = frozenset({408, 409, 429})  # The statuses that are retried, besides those from 500 on.


def retry_delay(error: LocalChatError, tries: int, max_retries: int) -> float | None:
    """Seconds to wait before the next try; None if the error is not retried."""
    after = None
    if isinstance(error, StatusError):
        is_retried = error.status in _RETRIED_STATUSES or (error.status >= 500 and error.status != 501)
        should_retry = error.headers.get("x-should-retry")
        if should_retry in ("true", "false"):
            is_retried = should_retry == "true"
        if not is_retried:
            return None
        after = error.retry_after
    elif not isinstance(error, (ConnectError, TimedOut, IncompleteStream)) or getattr(error, "kind", "") == "total":
        return None
    if tries >= max_retries or (after or 0) > _MAX_RETRY_AFTER_S:
        return None
    if after is not None and after > 0:
        return after
    import random

    return min(_FIRST_DELAY_S * 2.0**tries, _MAX_DELAY_S) * (1 - 0.25 * random.random())
