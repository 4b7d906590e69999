"""The errors of a call and their messages, with a hint what to do. No I/O."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from ..errors import ProtocolError, StatusError, cut
from ..events import ErrorEvent
from ..reply.models import Model, parse_models, shown_names
from ..reply.payloads import parse_error
from .retries import retry_after
from .settings import Settings

# The message of servers that do not report the context length and the number of tokens in fields.
_LENGTHS = re.compile(r"maximum context length is (\d{1,9}) tokens.*?(?:requested|resulted in)\D{0,20}(\d{1,9}) tokens")


def connect_message(settings: Settings, error: Exception, proxy: str | None) -> str:
    """The message of an error that prevented a connection."""
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


def no_response_message(settings: Settings, error: Exception) -> str:
    """The message of an error of a connection that no response came over."""
    return f"no response from {settings.address.shown}: {cut(settings.mask(str(error) or type(error).__name__))}"


def status_error(settings: Settings, status: int, headers: Mapping[str, str], body: str) -> StatusError:
    """The error of a status other than 2xx."""
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
        retry_after=retry_after(headers),
        request_id=headers.get("x-request-id"),
        headers=headers,
        body=body,
    )


def read_models(settings: Settings, raw: bytes) -> list[Model]:
    """Parse a response of /models.

    Raises:
        ProtocolError: The response is not a list of models.
    """
    try:
        return parse_models(json.loads(raw))
    except (ValueError, RecursionError) as error:
        raise not_json(settings, "list of models is", raw) from error


def lists_no_models(error: StatusError | ProtocolError) -> bool:
    """Whether this error of a request for /models means that the server, like many with one model, has no list."""
    return isinstance(error, ProtocolError) or error.status in (404, 405, 501)


def not_json(settings: Settings, what: str, raw: bytes) -> ProtocolError:
    """The error of a body that is not JSON. `what` is the subject of its message with the verb."""
    head = settings.mask(cut(raw.decode("utf-8", "replace")))
    return ProtocolError(f"the {what} not JSON: {head}", head=head)


def _status_hint(settings: Settings, status: int, headers: Mapping[str, str], reported: ErrorEvent) -> str:
    """What to do about an error; empty if that is unknown."""
    if 300 <= status < 400:
        base = re.sub("/(models|embeddings|(chat/)?completions)$", "", headers.get("location", "nowhere"))
        return f"it redirects to {base}: use that as the base URL"
    if status in (401, 403):
        if settings.key:
            return "is the API key right?"
        not_sent = "pass api_key: OPENAI_API_KEY goes to https, to this machine and to OPENAI_BASE_URL alone"
        return not_sent if os.environ.get("OPENAI_API_KEY") else "set OPENAI_API_KEY or pass api_key"
    if status in (404, 405) and not settings.address.path:
        return "is /v1 missing in the base URL?"
    return _context_length_hint(reported.raw, reported.message)


def is_unknown_model(error: StatusError, path: str) -> bool:
    """Whether the server does not have the requested model, so that the list of its models explains the error."""
    return path != "models" and "model" in f"{error.code} {error}".lower()


def add_model_names(settings: Settings, error: StatusError, raw: bytes) -> None:
    """Add the names in a response of /models to the message of an error."""
    names = [name for name in read_models(settings, raw) if name not in str(error)]
    if names:
        error.args = (f"{error} (it offers {shown_names(names)})",)


def _context_length_hint(body: Any, message: str) -> str:
    """By how many tokens a prompt is too long. llama.cpp reports the numbers in fields, others in the message."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    match = _LENGTHS.search(message)
    context, tokens = map(int, match.groups()) if match else (error.get("n_ctx"), error.get("n_prompt_tokens"))
    if not isinstance(tokens, int) or not isinstance(context, int) or tokens <= context:
        return ""
    return f"{tokens} tokens are {tokens - context} more than the context of {context} holds"
