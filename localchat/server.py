"""`python -m localchat.server [MODEL.gguf]`: an OpenAI-compatible chat server on http.server.

Reads the command line, opens the port, and then loads the model while the server already responds. The HTTP server
itself is in serving/http/http_server.py. The model runs in a process of its own (serving/engine/front.py): this process
imports neither llama.cpp nor numpy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import signal
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .serving.core.errors import NO_MEMORY
from .serving.engine.tuning import LIBRARY
from .serving.http.access import is_loopback
from .serving.http.connections import listening, why_not_listening
from .serving.http.loading import Loader
from .serving.http.logs import log_to_stderr, report_failure
from .serving.http.options import Options, chosen_model, read_options
from .serving.models.catalog import Catalog
from .serving.models.gguf import GGUFError, read_start
from .serving.models.memory import gigabytes
from .serving.models.model_file import ModelFile, ModelFileError, summary_of

if TYPE_CHECKING:
    from .serving.http.http_server import ChatServer

# The functions below import the HTTP server, which imports libraries that `main` first checks for.

log = logging.getLogger("localchat.server")

# Signals within this time count as one: `timeout` and systemd send a signal to the process and to its process group.
ONE_SIGNAL_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM, then return 0; 1 if the server or the model cannot start."""
    options = read_options(arguments)
    log_to_stderr()
    missing = [name for name in ("llama_cpp", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        return report_failure(f"{missing[0]} is not installed: {sys.executable} -m pip install {LIBRARY}")
    catalog = Catalog(options.models_dir, options.models)
    # A model on the command line is served alone, unless a folder or a mapping file is given as well.
    serves_all = options.model is None or options.models_dir or options.models
    try:
        if options.lists_models:
            print(_list_text(catalog.models()))
            return 0
        file = chosen_model(options, catalog)
        read_start(file.path)
    except GGUFError as error:
        return report_failure(f"cannot load {error}")
    except (ModelFileError, OSError) as error:
        return report_failure(str(error))
    if not options.api_keys and not options.uds and not is_loopback(options.host):
        log.warning("every client that reaches %s can use this server: set LOCALCHAT_API_KEY", options.host)
    try:
        with listening(options) as listener:
            return _serve(options, file, catalog if serves_all else None, listener)
    except OSError as error:
        return report_failure(why_not_listening(options, error))
    except (RuntimeError, MemoryError) as error:
        return report_failure(f"cannot start: {error or NO_MEMORY}")


def _list_text(models: Iterable[ModelFile]) -> str:
    """A table of models for a terminal: name, size, quantisation, context and where each was found."""
    rows = [("NAME", "SIZE", "QUANTISATION", "CONTEXT", "FOUND IN")]
    for model in models:
        header = summary_of(model)
        context = f"{header.n_ctx_train:,}" if header.n_ctx_train else ""
        place = f"{model.source}: {header.problem or model.path}"
        rows.append((model.name, gigabytes(model.n_bytes), header.quantisation, context, place))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[4]]) for row in rows)


def _serve(options: Options, file: ModelFile, catalog: Catalog | None, listener: socket.socket) -> int:
    loader = Loader(file, options)
    with contextlib.closing(loader):
        # These imports take as long as the engine process takes to load a small model.
        from .serving.http.http_server import ChatServer
        from .serving.models.service import Service

        service = Service(
            file,
            catalog=catalog,
            load=loader.load,
            any_name=options.any_name,
            max_models=options.max_models,
            idle_unload_s=options.idle_unload,
            waits=options.waits,
        )
        server = ChatServer(service, options, listener)
        with contextlib.ExitStack() as closing:
            # In reverse order: a server that stops does not wait until a model has been loaded.
            for close in (server.close, loader.close, service.stop):
                closing.callback(close)
            loader.url, loader.on_failure = server.url, server.shutdown
            service.load(service.default)
            with contextlib.suppress(KeyboardInterrupt):
                _stop_on_signals(server, options.drain)
                server.serve_forever()
    return 1 if loader.has_failed else 0


def _stop_on_signals(server: ChatServer, drain_s: float) -> None:
    """Install signal handlers: SIGTERM drains the server, Ctrl-C closes it now, and a second signal kills it."""
    first_at: float | None = None

    def stop(number: int, frame: object) -> None:
        nonlocal first_at
        if first_at is None:
            first_at = time.monotonic()
            server.drain(drain_s if number == signal.SIGTERM else 0)
            if server.service.is_idle or number != signal.SIGTERM:
                raise KeyboardInterrupt
        elif time.monotonic() - first_at > ONE_SIGNAL_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


if __name__ == "__main__":
    sys.exit(main())
