"""Retries: which errors are retried, and after how many seconds. No I/O."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from ..errors import ConnectError, IncompleteStream, LocalChatError, StatusError, TimedOut

# The delay before the first retry, which doubles with each retry up to the maximum, in seconds.
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 8.0
# A longer Retry-After is not waited for.
_MAX_RETRY_AFTER_S = 120.0
# Retried besides those of 500 and above.
_RETRIED_STATUSES = frozenset({408, 409, 429})


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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds in `retry-after-ms` or `retry-after`, which may also be a date; None if there is neither."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) else None
    if "retry-after" not in headers:
        return None
    import email.utils  # Late: its import takes some ms.

    date = email.utils.parsedate_tz(headers["retry-after"])
    try:
        return None if date is None else email.utils.mktime_tz(date) - time.time()
    except (ValueError, OverflowError):  # The year is too large.
        return None
