"""Settings of the HTTP server: address, certificate, API keys, limits and timeouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# A conversation of a million tokens has about 5 MB, or 15 MB with escaped characters. The size is limited, since parts
# of the parser hold the interpreter lock for the whole body.
DEFAULT_MAX_BODY_BYTES = 16 * 1024 * 1024

# A stream without output sends a ping after this many seconds, since proxies close idle streams after a minute.
DEFAULT_PING_S = 20.0

# Each connection has a thread. This is about twice the default of running and waiting requests together, and less
# than the limit of open files on most systems, 1,024.
DEFAULT_MAX_CONNECTIONS = 512

# A client that reads nothing of its response for this many seconds is disconnected.
DEFAULT_WRITE_TIMEOUT_S = 30


@dataclass(frozen=True)
class Settings:
    """The options of the command line that concern HTTP."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0 for any free port
    uds: Path | None = None  # the path of a Unix socket, instead of host and port
    tls_cert: Path | None = None
    tls_key: Path | None = None
    api_keys: tuple[str, ...] = ()  # requests need one of these; (): requests need no key
    strict: bool = False  # refuse unknown fields
    allow_chat_template: bool = False  # accept `chat_template` in requests
    thought_field: bool = False  # repeat the reasoning in a field `thought`
    ping_s: float = DEFAULT_PING_S  # 0 for no pings
    has_page: bool = True  # serve the chat page at /
    cors: tuple[str, ...] = ()  # origins of web pages, or "*"
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    write_timeout_s: float = DEFAULT_WRITE_TIMEOUT_S
