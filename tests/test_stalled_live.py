"""Streams that nobody reads hold up no other request."""

from __future__ import annotations

import contextlib
import json
import socket
import time

from .fakes import endless
from .serving import serving

N_SLOTS = 4


def test_streams_that_nobody_reads_give_their_slots_to_a_request_that_is_read():
    """Their output is longer than what the sockets hold."""
    n_tokens = 20_000
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(endless, n_slots=N_SLOTS, n_ctx=30_000, n_cells=150_000))
        body = json.dumps(
            {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": n_tokens, "logprobs": True}
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        # Connections have the buffer sizes of the socket that accepts them.
        server.server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for _ in range(N_SLOTS):
            sock = stack.enter_context(contextlib.closing(socket.socket()))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(20)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(head + body)
        started = time.monotonic()
        status, response = server.chat("hello", max_tokens=5)
        assert (status, response["choices"][0]["finish_reason"]) == (200, "length")
        assert time.monotonic() - started < 8
        stats = server.engine.stats()
        assert stats.n_running + stats.n_waiting == N_SLOTS, "the unread streams have not ended"
