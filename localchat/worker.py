"""`python -m localchat.worker`: offers the devices and the memory of this machine to a server with `--rpc`.

The work is done by llama.cpp's RPC, for one server at a time. It asks for no key and encrypts nothing.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from collections.abc import Sequence

from .serving.core.model_options import WORKER_PORT, Whole
from .serving.engine.values import EngineError
from .serving.http.access import is_loopback

# Why a port that the network can reach is a danger, for messages.
WHY_DANGEROUS = (
    "whoever reaches the port can use this machine's memory, and may take over the worker: llama.cpp's RPC asks for no "
    "key. Use an SSH tunnel (docs/machines.md), or a network in which you trust every machine"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal ends the process; return 1 if the worker cannot start."""
    parser = argparse.ArgumentParser(prog="python -m localchat.worker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", help="IPv4 address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=Whole(1, 65535), default=WORKER_PORT, help="port (default: %(default)s)")
    parser.add_argument("--insecure", action="store_true", help="allow a --host that the network can reach")
    parser.add_argument("-t", "--threads", type=Whole(0, 512), default=0, help="CPU threads (default: chosen)")
    options = parser.parse_args(arguments)
    if not is_loopback(options.host) and not options.insecure:
        parser.error(f"--host {options.host} can be reached from the network: {WHY_DANGEROUS}; or add --insecure")
    try:
        host = socket.gethostbyname(options.host)
        with socket.create_server((host, options.port)):  # llama.cpp's error has no reason.
            pass
        from .serving.engine.llama import default_threads
        from .serving.engine.llama.rpc import server

        serve = server(host, options.port, options.threads or default_threads())
        print(f"This worker is for `--rpc {host}:{options.port}` (Ctrl-C ends it).", flush=True)
        if not is_loopback(options.host):
            print(f"Beware: {WHY_DANGEROUS}.", flush=True)
        for number in (signal.SIGINT, signal.SIGTERM):  # Python's handlers would wait for the end of `serve`.
            signal.signal(number, signal.SIG_DFL)
        serve()
    except OSError as error:
        return _failed(f"cannot listen at {options.host}:{options.port}: {error.strerror or error}")
    except (EngineError, ImportError) as error:
        return _failed(str(error))
    return _failed("the worker has ended")


def _failed(message: str) -> int:
    print(f"localchat.worker: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
