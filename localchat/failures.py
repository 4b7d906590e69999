"""Failures of the network and refusals of a server as errors with what to do next, and which are retried. No I/O."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

from .errors import ConnectError, IncompleteStream, LocalChatError, ProtocolError, StatusError, TimedOut, cut
from .events import ErrorEvent
from .model_list import Model, parse_models
from .payloads import parse_error
from .settings import Settings

_LENGTHS = re.compile(r"maximum context length is (\d{1,9}) tokens.*?(?:requested|resulted in)\D{0,20}(\d{1,9}) tokens")

# Delays between tries, in seconds, and the longest Retry-After that is obeyed.
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 120.0
_RETRIED_STATUSES = frozenset({408, 409, 429})


def retry_delay(error: LocalChatError, tries: int, max_retries: int) -> float | None:
    """Seconds to wait before the next try, None if there is to be none."""
    after = None
    if isinstance(error, StatusError):
        asked = error.headers.get("x-should-retry")
        retried = error.status in _RETRIED_STATUSES or (error.status >= 500 and error.status != 501)
        if not (retried if asked not in ("true", "false") else asked == "true"):
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


def unreachable(settings: Settings, error: Exception, proxy: str | None) -> str:
    shown = settings.address.shown
    if proxy is not None:
        return f"no connection to {shown} through the proxy: {error}"
    if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        return f"nothing listens on {shown}: start a server there (python -m localchat.server) or set OPENAI_BASE_URL"
    if isinstance(error, socket.gaierror):
        return f"the host {settings.address.host!r} is not known: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"the certificate of {shown} is not trusted: name the CA with verify=PATH or SSL_CERT_FILE ({error})"
    if "WRONG_VERSION_NUMBER" in str(error):
        return f"{shown} does not use TLS: use http:// ({error})"
    return f"no connection to {shown}: {error}"


def broken(settings: Settings, error: Exception) -> str:
    return f"{settings.address.shown} gave no answer: {cut(settings.mask(str(error) or type(error).__name__))}"


def status_error(settings: Settings, status: int, headers: Mapping[str, str], body: str) -> StatusError:
    body = settings.mask(body)
    headers = {name: settings.mask(value) for name, value in headers.items()}
    reported = parse_error(body)
    hint = _status_hint(settings, status, headers, reported)
    message = f"{status} from {settings.address.shown}: {reported.message}" + (f" ({hint})" if hint else "")
    return StatusError.class_for(status)(
        message,
        status=status,
        error_type=reported.error_type,
        code=reported.code,
        param=reported.param,
        retry_after=_retry_after(headers),
        request_id=headers.get("x-request-id"),
        headers=headers,
        body=body,
    )


def read_models(settings: Settings, raw: bytes) -> list[Model]:
    """The models in a response of /models."""
    try:
        return parse_models(json.loads(raw))
    except (ValueError, RecursionError) as error:
        raise not_json(settings, "list of models is", raw) from error


def not_json(settings: Settings, what: str, raw: bytes) -> ProtocolError:
    head = settings.mask(cut(raw.decode("utf-8", "replace")))
    return ProtocolError(f"the {what} not JSON: {head}", head=head)


def _status_hint(settings: Settings, status: int, headers: Mapping[str, str], reported: ErrorEvent) -> str:
    """What to do about it; empty if that is unknown."""
    if 300 <= status < 400:
        base = re.sub("/(models|embeddings|(chat/)?completions)$", "", headers.get("location", "nowhere"))
        return f"it redirects to {base}: use that as the base URL"
    if status in (401, 403):
        if settings.key:
            return "is the API key right?"
        own = "pass api_key: OPENAI_API_KEY goes to https, to this machine and to OPENAI_BASE_URL alone"
        return own if os.environ.get("OPENAI_API_KEY") else "set OPENAI_API_KEY or pass api_key"
    if status in (404, 405) and not settings.address.path:
        return "is /v1 missing in the base URL?"
    return _too_many_tokens(reported.raw, reported.message)


def wants_names(error: StatusError, path: str) -> bool:
    """Whether the server does not know the model, so that the names of those on offer would help."""
    return path != "models" and "model" in f"{error.code} {error}".lower()


def add_names(settings: Settings, error: StatusError, raw: bytes) -> None:
    """Add the names in a list of models."""
    names = [name for name in read_models(settings, raw) if name not in str(error)]
    if names:
        error.args = (f"{error} (it offers {', '.join(names[:20])})",)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `retry-after-ms`, or `retry-after` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) else None
    if "retry-after" not in headers:
        return None
    import email.utils  # Late: it costs some ms.

    date = email.utils.parsedate_tz(headers["retry-after"])
    try:
        return None if date is None else email.utils.mktime_tz(date) - time.time()
    except (ValueError, OverflowError):  # A year beyond the calendar.
        return None


def _too_many_tokens(body: Any, message: str) -> str:
    """By how much a prompt is too long: llama.cpp servers give both numbers, others write them out."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    written = _LENGTHS.search(message)
    context, tokens = map(int, written.groups()) if written else (error.get("n_ctx"), error.get("n_prompt_tokens"))
    if not isinstance(tokens, int) or not isinstance(context, int) or tokens <= context:
        return ""
    return f"{tokens} tokens are {tokens - context} more than the context of {context} holds"
