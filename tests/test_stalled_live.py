"""Streams that their clients do not read delay no other request."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from email.message import Message

from localchat.serving.http import exchange
from localchat.serving.http.disconnects import DisconnectWatcher
from localchat.serving.http.incoming import Incoming

from .fakes import endless
from .serving import serving, wait_for

N_SLOTS = 4


def test_unread_streams_give_their_slots_to_a_request_that_is_read():
    """The output of each stream is larger than the buffers of its socket."""
    n_tokens = 20_000
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(endless, n_parallel=N_SLOTS, n_ctx=30_000, n_cells=150_000))
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
        wait_for(lambda: server.engine.stats().n_running == N_SLOTS)
        started = time.monotonic()
        status, response = server.chat("hello", max_tokens=5)
        assert (status, response["choices"][0]["finish_reason"]) == (200, "length")
        assert time.monotonic() - started < 8

        def all_are_open() -> bool:
            stats = server.engine.stats()
            return stats.n_running + stats.n_waiting == N_SLOTS

        wait_for(all_are_open)  # The unread streams have not ended.


def test_stall_within_a_chunk_is_noticed(monkeypatch):
    """The socket accepts the beginning of the chunk immediately, and the rest only when the client reads."""
    monkeypatch.setattr(exchange, "STALL_S", 0.05)
    payload = bytes(4_000_000)
    stalls: list[bool] = []
    has_stalled, ours, theirs = threading.Event(), *socket.socketpair()
    with ours, theirs, contextlib.closing(DisconnectWatcher()) as watcher:
        for sock in (ours, theirs):
            sock.settimeout(20)

        def on_stall(is_stalled: bool) -> None:
            stalls.append(is_stalled)
            has_stalled.set()

        head = exchange.Head("GET", "/", "HTTP/1.0", Message(), False, Incoming(ours), ours)
        sender = exchange.Exchange(head, watcher)
        sender.on_stall = on_stall
        thread = threading.Thread(target=sender.send_part, args=(payload,))
        thread.start()
        assert has_stalled.wait(20)
        n_received = 0
        while n_received < len(payload):
            n_received += len(theirs.recv(1 << 16))
        thread.join(20)
    assert (stalls, n_received) == ([True, False], len(payload))
