"""Logging to stderr as text or JSON, and the messages at the start of the server."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

log = logging.getLogger("localchat.server")

FORMATS = ("text", "json")

# The attribute of log records that the text format writes without the time: the messages at the start.
_PLAIN = "is_plain"

# Control characters, which could forge a line of the log or control a terminal, and their escapes.
_CONTROL_CHARACTERS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))}

# The error message for a MemoryError, which has no text.
NO_MEMORY = "no memory is left: raise the limit (ulimit -v), or use a smaller --ctx or --parallel"


def log_to_stderr(log_format: str) -> None:
    """Write the log of this package to stderr from now on. Without a stderr, as in some services, write nothing."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _TextFormatter("%(asctime)s %(message)s"))
    package_log = logging.getLogger("localchat")
    package_log.handlers = [handler]
    package_log.setLevel(logging.INFO)
    # llama.cpp logs many lines while it loads a model.
    logging.getLogger("localchat.engine.llama").setLevel(logging.WARNING)


def printable(text: str) -> str:
    """The text with its control characters escaped."""
    return text.translate(_CONTROL_CHARACTERS)


def report(message: str, **fields: Any) -> None:
    """Write a message at the start of the server; `fields` are added to it in JSON."""
    log.info("%s", message, extra={_PLAIN: True, "fields": fields})


def report_failure(message: str) -> int:
    """Write why the server cannot start, and return the exit status."""
    log.error("localchat.server: %s", message, extra={_PLAIN: True})
    return 1


class _TextFormatter(logging.Formatter):
    default_time_format = "%H:%M:%S"
    default_msec_format = None

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if getattr(record, _PLAIN, False) else super().format(record)


class _JsonFormatter(logging.Formatter):
    """One object per line, with the time in UTC and the `fields` of the record."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)
