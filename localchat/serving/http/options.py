"""The values of the options of the server. `localchat/server.py` parses the command line into them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..engine.values import LoadOptions


@dataclass(frozen=True)
class Options(LoadOptions):
    """The options of the server, with their defaults, and limits that no option sets."""

    model: str | None = None  # The path or name of the model.
    models_dir: Sequence[Path] = ()
    models: Path | None = None  # A mapping file.
    max_models: int = 0  # The number of loaded models; 0: as many as fit into memory.
    idle_unload: float = math.inf  # The seconds without a request after which a model is ended.
    waits: bool = True  # Requests wait while their model loads.
    lists_models: bool = False

    host: str = "127.0.0.1"
    port: int = 8080  # 0 for any free port.
    uds: Path | None = None  # The path of a Unix socket, instead of host and port.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    drain: int = 5  # Seconds. Container runtimes kill a process 10 seconds after SIGTERM.

    api_keys: Sequence[str] = ()  # Requests need one of these; (): requests need no key.
    insecure: bool = False
    cors: Sequence[str] = ()  # Origins of web pages, or "*".
    has_page: bool = True

    alias: str | None = None
    any_name: bool = False
    strict: bool = False  # Refuse unknown fields.
    allow_template: bool = False  # Accept `chat_template`.
    thought_field: bool = False  # Repeat the reasoning in a field `thought` beside `choices`.
    max_tokens: int | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)  # Defaults of sampling parameters.
    keep_tools: bool = False
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""

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
