"""The errors of connections and statuses, with messages that say what to do; which are retried, and when. No I/O.

The texts of servers in them are not masked here: `Call` masks every error that it raises.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from urllib.parse import urljoin

from ..errors import ConnectError, IncompleteStream, LocalChatError, ProtocolError, StatusError
from ..reply.reported_errors import parse_error
from .addresses import PROXY_LOGIN, Proxy
from .settings import Settings

# The delay before the first retry, which doubles with each retry up to the maximum, in seconds.
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 120.0  # A longer Retry-After is not waited for.
_RETRIED_STATUSES = frozenset({408, 409, 429})  # The statuses that are retried, besides those from 500 on.

# Words of OpenSSL: what the server sent is no TLS; the server requires a certificate.
_SPEAKS_NO_TLS = "WRONG_VERSION_NUMBER"
_NEEDS_CERTIFICATE = "CERTIFICATE_REQUIRED"
# Why a certificate is refused, by a word of OpenSSL's error. The last one is in every error.
_CERTIFICATE_REASONS = {
    "mismatch": "is that of another host: use a name that it has in the base URL",
    "expired": "has expired: the server needs a new one, if the clock of this machine is right",
    "not yet valid": "is not valid yet: is the clock of this machine right?",
    "": "is not trusted: name the CA with verify=PATH or SSL_CERT_FILE",
}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds in `retry-after-ms` or `retry-after`, or until the date in it; None if there is neither."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(ValueError):
            seconds = float(headers.get(name, "").partition(",")[0]) * unit
            if math.isfinite(seconds):
                return max(seconds, 0.0)
    if "retry-after" not in headers:
        return None
    from email.utils import mktime_tz, parsedate_tz  # Late: only a date needs it.

    with contextlib.suppress(ValueError, OverflowError, IndexError):  # Python 3.9 raises IndexError for some texts.
        after, now = (parsedate_tz(headers.get(name, "")) for name in ("retry-after", "date"))
        # By the clock of the server, if it sends its time.
        return after and max(mktime_tz(after) - (mktime_tz(now) if now else time.time()), 0.0)
    return None


def retry_delay(error: LocalChatError, tries: int, max_retries: int) -> float | None:
    """Seconds to wait before the next try; None if the error is not retried.

    A timeout is not retried: the server was silent for as long as the program allows. Nor is what cannot change.
    """
    after = None
    if isinstance(error, StatusError):
        is_retried = error.status in _RETRIED_STATUSES or (error.status >= 500 and error.status != 501)
        if not {"true": True, "false": False}.get(error.headers.get("x-should-retry", ""), is_retried):
            return None
        after = error.retry_after
    elif not isinstance(error, (ConnectError, IncompleteStream)) or _is_permanent(error.__cause__):
        return None
    if tries >= max_retries or (after or 0) > _MAX_RETRY_AFTER_S:
        return None
    if after is not None and after > 0:
        return after
    import random  # Few calls are retried.

    return min(_FIRST_DELAY_S * 2.0**tries, _MAX_DELAY_S) * (1 - 0.25 * random.random())


def _is_permanent(cause: BaseException | None) -> bool:
    """Whether a further try would fail for the same cause."""
    if isinstance(cause, socket.gaierror):
        return cause.errno != socket.EAI_AGAIN
    if _SPEAKS_NO_TLS in str(cause):
        return True
    ssl = sys.modules.get("ssl")  # Imported if https was used.
    if ssl is not None and isinstance(cause, ssl.SSLError):  # A connection that ended is another kind of SSLError.
        return not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError))
    return isinstance(cause, (ValueError, PermissionError, ProtocolError))


def connect_message(settings: Settings, error: Exception, proxy: Proxy | None) -> str:
    shown = settings.address.shown
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        reason = next(reason for word, reason in _CERTIFICATE_REASONS.items() if word in str(error))
        return f"the certificate of {shown} {reason} ({error})"
    if proxy is not None:
        return f"no connection to {shown} through {proxy.shown}: {error}; proxy=False avoids it"
    if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
        return f"nothing listens on {shown}: start a server there (python -m localchat.server) or set OPENAI_BASE_URL"
    if isinstance(error, socket.gaierror):
        return f"the host {settings.address.host!r} is not known: {error}"
    if _SPEAKS_NO_TLS in str(error):
        return f"{shown} does not use TLS: use http:// ({error})"
    return f"no connection to {shown}: {error}"


def no_response_message(settings: Settings, error: Exception) -> str:
    text = f"no response from {settings.address.shown}: {str(error) or type(error).__name__}"
    hint = "it requires a certificate of the client: pass verify= an ssl.SSLContext that has one"
    return f"{text} ({hint})" if _NEEDS_CERTIFICATE in text else text


def status_error(settings: Settings, status: int, headers: Mapping[str, str], body: str) -> StatusError:
    reported = parse_error(body)
    hint = _status_hint(settings, status, headers)
    return StatusError.class_for(status)(
        f"{status} from {settings.address.shown}: {reported.message}" + (f" ({hint})" if hint else ""),
        status=status,
        error_type=reported.error_type,
        code=reported.code,
        param=reported.param,
        retry_after=retry_after(headers),
        request_id=headers.get("x-request-id"),
        headers=dict(headers),
        body=body,
    )


def _status_hint(settings: Settings, status: int, headers: Mapping[str, str]) -> str:
    """What to do about an error; empty if that is unknown."""
    if 300 <= status < 400:
        base = headers.get("location", "")
        with contextlib.suppress(ValueError):  # It is no URL.
            base = urljoin(settings.base_url, base)
        base = re.sub("/(models|embeddings|(chat/)?completions)$", "", base)
        return f"it redirects to {base}: use that as the base URL"
    if status == 407:
        return PROXY_LOGIN
    if status in (401, 403):
        if settings.key:
            return "is the API key right?"
        not_sent = "pass api_key: OPENAI_API_KEY goes to https, to this machine and to OPENAI_BASE_URL alone"
        return not_sent if os.environ.get("OPENAI_API_KEY") else "set OPENAI_API_KEY or pass api_key"
    return "is /v1 missing in the base URL?" if status in (404, 405) and not settings.address.path else ""
