"""The workers of `--rpc`, which compute layers of a model on other machines by llama.cpp's RPC: whether they respond.

llama.cpp ends the process if it cannot reach a worker or if that speaks another version, and waits without a limit for
one that is silent. So each worker gets a hello from here first. This module does not know llama.cpp's library.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

# llama.cpp's RPC is the same in all releases with this major version, and newer minor ones know the older ones. These
# are the numbers of the tested releases of llama-cpp-python (ggml-rpc.h).
PROTOCOL = (7, 0)
# The first message: the number of its command, the length of what follows, and no capabilities of the connection. The
# response: the length of what follows, the version, and capabilities.
HELLO = struct.pack("<BQ24x", 14, 24)
RESPONSE = struct.Struct("<QBBB25x")
# A worker responds to the hello in a millisecond, unless it serves another connection: it serves one at a time.
_CONNECT_S, _HELLO_S = 2.0, 2.0


def worker_problems(endpoints: Sequence[str]) -> list[str]:
    """What is wrong with the workers at these addresses, HOST:PORT; empty if all respond as they should."""
    with ThreadPoolExecutor(max(len(endpoints), 1)) as threads:
        problems = threads.map(_problem, endpoints)
        return [
            f"the worker {endpoint} of --rpc {problem}" for endpoint, problem in zip(endpoints, problems) if problem
        ]


def _problem(endpoint: str) -> str:
    """What is wrong with a worker; empty if it responds as it should."""
    host, _, port = endpoint.rpartition(":")
    response = b""
    try:
        # llama.cpp knows IPv4 alone.
        with socket.socket(socket.AF_INET) as sock:
            sock.settimeout(_CONNECT_S)
            sock.connect((host, int(port)))
            sock.sendall(HELLO)
            end = time.monotonic() + _HELLO_S
            while len(response) < RESPONSE.size:
                sock.settimeout(max(end - time.monotonic(), 0.001))
                if not (part := sock.recv(RESPONSE.size - len(response))):
                    break
                response += part
    except socket.timeout:
        if not response:
            return "does not respond: it serves another server, is stopped, or is another program"
    except OSError as error:
        if not response:
            return f"cannot be reached ({error.strerror or error}): start it with `python -m localchat.worker`"
    if len(response) < RESPONSE.size or RESPONSE.unpack(response)[0] != RESPONSE.size - 8:
        return f"is another program: it responds {response[:40]!r}" if response else "ends the connection at once"
    _, major, minor, _ = RESPONSE.unpack(response)
    if major != PROTOCOL[0] or minor > PROTOCOL[1]:
        expected = "{}.{}".format(*PROTOCOL)
        return (
            f"speaks RPC {major}.{minor}, this server {expected}: install the same version of llama-cpp-python on both"
        )
    return ""
