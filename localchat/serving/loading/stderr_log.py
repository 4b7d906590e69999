"""The log of the server on stderr, and the messages at its start, which are written without the time."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("localchat.server")

_PLAIN = "is_plain"  # The attribute of log records that are written without the time.


def log_to_stderr() -> None:
    """Write the log of this package to stderr from now on. Without a stderr, as in some services, write nothing."""
    handler = _Handler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    package_log = logging.getLogger("localchat")
    package_log.handlers = [handler]
    package_log.setLevel(logging.INFO)
    # llama.cpp logs many lines while it loads a model.
    logging.getLogger("localchat.engine.llama").setLevel(logging.WARNING)


def report(message: str) -> None:
    """Write a message at the start of the server."""
    log.info("%s", message, extra={_PLAIN: True})


def report_failure(message: str) -> int:
    """Write why the server cannot start, and return the exit status."""
    log.error("localchat.server: %s", message, extra={_PLAIN: True})
    return 1


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.9 and 3.10 refuse the argument.
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A terminal that is gone or a full disk loses the line, without a traceback for each."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if getattr(record, _PLAIN, False) else super().format(record)
