"""The options of the server. `model_options.py` has those of models, and says what a declaration is."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BadRequest
from .model_options import ModelOptions, ServiceOptions, Whole, option, path_of
from .params import parse_default


def _key(text: str) -> str:
    """A key without surrounding white space, such as the line break at the end of a file."""
    key = text.strip()
    if not key or not key.isprintable():
        raise ArgumentTypeError("the key is empty, or has characters that an HTTP header cannot have")
    return key


def _name(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("the name is empty")
    return text


def _keys(text: str) -> list[str]:
    try:
        lines = path_of(text).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ArgumentTypeError(f"cannot read keys from {text}: {error}") from error
    keys = [_key(line) for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ArgumentTypeError(f"{text} has no key: write one per line")
    return keys


def _origin(text: str) -> str:
    """An origin as browsers send it: a scheme and a host, perhaps with a slash at the end; or *, or null."""
    if re.fullmatch(r"(?i)\*|null|[a-z][a-z0-9+.-]*://[^/\s]+/?", text) is None:
        raise ArgumentTypeError(f"expected * or an origin, such as https://example.org, got {text!r}")
    return text


def _sampling_value(text: str) -> dict[str, Any]:
    try:
        return parse_default(text)
    except BadRequest as error:
        raise ArgumentTypeError(error.message) from error


@dataclass(frozen=True)
class _AccessOptions:
    """connections and access"""

    # fmt: off
    host: str = option("127.0.0.1", "--host HOST", help="address to listen on; 0.0.0.0 for all (default: %(default)s)")
    port: int = option(8080, "--port PORT", Whole(0, 65535), help="port; 0 for any free one (default: %(default)s)")
    uds: Path | None = option(None, "--uds PATH", path_of, help="listen on this Unix socket instead of an address")
    tls_cert: Path | None = option(None, "--tls-cert FILE", path_of,
        help="serve HTTPS with the certificates in this file (PEM)")
    tls_key: Path | None = option(None, "--tls-key FILE", path_of,
        help="private key of the certificate (default: in --tls-cert)")
    drain: int = option(5, "--drain SECONDS", Whole(0),  # Container runtimes kill a process 10 seconds after SIGTERM.
        help="after SIGTERM, time for requests in flight to end (default: %(default)s)")
    api_key: str | None = option(None, "--api-key KEY", _key,  # `api_keys` has this key, too.
        help="require this key; prefer LOCALCHAT_API_KEY, since other users can see the options of a process")
    api_keys: Sequence[str] = option((), "--api-key-file FILE", _keys, help="require a key of this file, one per line")
    insecure: bool = option(False, "--insecure", help="allow a --host that the network can reach without a key")
    cors: Sequence[str] = option((), "--cors ORIGIN", _origin, repeats=True,
        help="allow web pages of this origin, such as https://example.org, or * for all (may be repeated)")
    has_page: bool = option(True, "--no-page", help="do not serve the chat page at /")


@dataclass(frozen=True)
class _RequestOptions:
    """requests"""

    # fmt: off
    alias: str | None = option(None, "--alias NAME", _name,
        help="name of the model (default: the name of the file)")
    strict: bool = option(False, "--strict", help="refuse requests with unknown fields")
    max_tokens: int | None = option(None, "--max-tokens N", Whole(1),
        help="default limit of output tokens (default: the context)")
    defaults: Mapping[str, Any] = option(dict, "--default NAME=VALUE", _sampling_value, repeats=True,
        help="default of a sampling parameter, such as temperature=0.7 (may be repeated)")
    keep_tools: bool = option(False, "--keep-tools", help="put tools into the prompt even if 'tool_choice' is \"none\"")
    allow_template: bool = option(False, "--allow-chat-template", help="accept 'chat_template' in requests")
    thought_field: bool = option(False, "--thought-field",
        help="repeat the reasoning in a field 'thought' beside the choices")
    reasoning_budget: int = option(-1, "--reasoning-budget N", Whole(-1),
        help="default limit of reasoning tokens; 0 ends reasoning at once, -1 means no limit (default: %(default)s)")
    reasoning_budget_message: str = option("", "--reasoning-budget-message TEXT",
        help="text that ends reasoning at the limit")


@dataclass(frozen=True)
class Options(ServiceOptions, _AccessOptions, ModelOptions, _RequestOptions):
    """The values of all options, and limits that no option sets."""

    model: str | None = None  # The path or name of the model.
    # A conversation of a million tokens has about 5 MB, or 15 MB with escaped characters. The size is limited, since
    # parts of the parser hold the interpreter lock for the whole body.
    max_body_bytes: int = 16 * 1024 * 1024
    # Each connection has a thread. This is about twice the default of running and waiting requests together, and less
    # than the limit of open files on most systems, 1,024.
    max_connections: int = 512
    write_timeout_s: float = 30  # A client that reads nothing of its response for this long is disconnected.
    # After this time without output, also in the queue, a stream sends a ping: some proxies and clients close a stream
    # that is idle for longer; 0: never.
    ping_s: float = 10


# The groups of --help. Their docstrings are the titles.
GROUPS: tuple[Any, ...] = (ServiceOptions, _AccessOptions, ModelOptions, _RequestOptions)
