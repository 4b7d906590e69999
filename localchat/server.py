"""`python -m localchat.server [MODEL.gguf]`: an OpenAI-compatible chat server on http.server.

Reads the command line, opens the port, and then loads the model while the server already responds. The HTTP server
itself is in serving/http_server.py.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .serving.http.cors import is_loopback
from .serving.http.crashes import CrashRecord
from .serving.http.listener import listening, why_not_listening
from .serving.http.logs import NO_MEMORY, log_to_stderr, report_failure
from .serving.http.options import option_warnings, read_options, settings_of
from .serving.http.settings import Settings
from .serving.http.supervisor import ENGINE_FAILED, Supervisor, inherited
from .serving.models.catalog import ModelFile, ModelFileError, model_file
from .serving.models.gguf import GGUFError, check_start

if TYPE_CHECKING:
    from .serving.http.http_server import ChatServer

# The functions below import the engine and the HTTP server, for two reasons: a supervisor needs neither, and they
# import libraries that `main` first checks for.

log = logging.getLogger("localchat.server")

# The interval at which Python switches between running threads. With the default of 5 ms, a thread that parses a
# request would delay the engine by more than one step.
SWITCH_INTERVAL_S = 0.001
# Signals within this time count as one: `timeout` and systemd send a signal to the process and to its process group.
ONE_SIGNAL_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM, then return 0; 1 if the server or the model cannot start."""
    options = read_options(arguments)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log_to_stderr(options.log_format)
    missing = [name for name in ("llama_cpp", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        from .serving.engine.library_build import LIBRARY

        return report_failure(f"{missing[0]} is not installed: {sys.executable} -m pip install {LIBRARY}")
    settings = settings_of(options)
    try:
        file = model_file(options.model, alias=options.alias)
        check_start(file.path)
    except GGUFError as error:
        return report_failure(f"cannot load {error}")
    except (ModelFileError, OSError) as error:
        return report_failure(str(error))
    if options.check:
        from .serving.http.check import check

        return check(options, file)
    try:
        parent = inherited()
        if parent is not None:
            return _serve(options, settings, file, parent.listener, parent.record)
        for warning in option_warnings(options):
            log.warning("%s", warning)
        if not settings.api_keys and not settings.uds and not is_loopback(settings.host):
            log.warning("everyone who reaches %s can use this server: set LOCALCHAT_API_KEY", settings.host)
        with listening(settings.host, settings.port, settings.uds) as listener:
            if not options.supervise:
                return _serve(options, settings, file, listener)
            command = [sys.executable, "-m", "localchat.server"]
            return Supervisor([*command, *(sys.argv[1:] if arguments is None else arguments)], listener).run()
    except OSError as error:
        return report_failure(why_not_listening(settings, error))
    except (RuntimeError, MemoryError) as error:
        return report_failure(f"cannot start: {error or NO_MEMORY}")


def _serve(
    options: argparse.Namespace,
    settings: Settings,
    file: ModelFile,
    listener: socket.socket,
    record: CrashRecord | None = None,
) -> int:
    from .serving.chat.service import Service
    from .serving.http.http_server import ChatServer
    from .serving.http.loading import Loader

    server = ChatServer(Service(file, any_name=options.any_name), settings, listener, record)
    on_ready = record.set_ready if record else lambda: None
    loader = Loader(server.service, file, options, server.url, on_ready=on_ready, on_failure=server.shutdown)
    with contextlib.closing(server):
        loader.start()
        status = _serve_until_stopped(server, options.drain)
    if loader.has_failed:
        return 1
    if loader.is_alive():
        # The loader thread cannot be stopped, and Python must not shut down the interpreter while it runs.
        sys.stderr.flush()
        os._exit(status)
    return status


def _serve_until_stopped(server: ChatServer, drain_s: float) -> int:
    """Serve until a signal arrives or the engine fails, and return the exit status."""
    from .serving.http.http_server import EngineFailed, Stopped

    try:
        _stop_on_signals(server, drain_s)
        server.serve_forever()
    except Stopped:
        pass
    except EngineFailed as error:
        log.error("%s", error)
        return ENGINE_FAILED
    return 0


def _stop_on_signals(server: ChatServer, drain_s: float) -> None:
    """Install signal handlers: SIGTERM drains the server, Ctrl-C closes it now, and a second signal kills it."""
    from .serving.http.http_server import Stopped

    first_at: float | None = None

    def stop(number: int, frame: object) -> None:
        nonlocal first_at
        if first_at is None:
            first_at = time.monotonic()
            server.drain(drain_s if number == signal.SIGTERM else 0)
            if server.service.in_flight.is_idle or number != signal.SIGTERM:
                raise Stopped
        elif time.monotonic() - first_at > ONE_SIGNAL_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


if __name__ == "__main__":
    sys.exit(main())
