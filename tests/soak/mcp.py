"""Damaged messages of MCP servers, over both transports, and starts and ends of their processes."""

import base64
import contextlib
import itertools
import json
import os
import random
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from localchat import Timeout
from localchat.mcp import MCPError, MCPServer, http
from tests.support.fuzz import pieces_of, replace_value
from tests.support.mcp_http import CLOSE, EVENTS, NOT_ALLOWED, MCPHTTPServer, event, json_response
from tests.support.mcp_server import command, text
from tests.support.raw_responses import chunks
from tests.support.raw_server import Peer, Request

BATCH = 50  # An ordinary call follows so many damaged ones.
TIMEOUT = Timeout(60)  # No call waits so long, since the correct response follows each damaged one, or the end.

ID: Any = "@ID@"  # Replaced by the id of the call.
MESSAGES: list[Any] = [
    {"jsonrpc": "2.0", "id": ID, "result": text("a", structuredContent={"b": [1]}, resultType="complete")},
    {"jsonrpc": "2.0", "id": ID, "result": {"content": [{"type": "image", "data": "R0lG", "mimeType": "image/gif"}]}},
    {
        "jsonrpc": "2.0",
        "id": ID,
        "result": {"resultType": "input_required", "inputRequests": {"a": {"method": "b"}}},
    },
    {"jsonrpc": "2.0", "id": ID, "error": {"code": -32020, "message": "no", "data": {"supported": ["2025-11-25"]}}},
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": ID, "progress": 1, "total": 2}},
    {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "debug", "data": {"a": "\x1b[1m"}}},
    {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
    {"jsonrpc": "2.0", "id": "x", "method": "sampling/createMessage", "params": {"messages": []}},
    [{"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "id": 2, "method": "ping"}],
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 10**400, 1.5, 1e308, float("nan"), "", "x", "\ud800", "\0\x1b", [], {}, [[]], {"a": 1}),
    *("complete", "input_required", "text", "tools/list", {"type": "text"}, "A" * 5000, [None] * 300),
]
BYTES = (*b'\0\r\n :"{}[],\\\x1b\x7f\xff\xc3', *b"0a-")


def damaged_messages_of(chance: random.Random) -> list[bytes]:
    """Some messages as JSON, of which some have wrong values or wrong bytes."""
    texts = []
    for _ in range(chance.randrange(1, 4)):
        message = json.loads(json.dumps(chance.choice(MESSAGES)))
        for _ in range(chance.randrange(3)):
            replace_value(message, chance, VALUES)
        raw = bytearray(json.dumps(message).replace('"@ID@"', "@ID@").encode())
        if chance.random() < 0.4:
            damage(raw, chance)
        texts.append(bytes(raw))
    return texts


def damage(raw: bytearray, chance: random.Random) -> None:
    """Change some bytes, remove the end, or repeat or insert a part."""
    kind = chance.randrange(4)
    at = chance.randrange(len(raw) + 1)
    if kind == 0:
        for _ in range(chance.randrange(1, 6)):
            raw[chance.randrange(len(raw))] = chance.choice(BYTES)
    elif kind == 1:
        del raw[at:]
    elif kind == 2:
        raw[at:at] = raw[at : at + chance.randrange(1, 40)] or b"x"
    else:
        raw[at:at] = chance.choice([b"\n", b"\r\n", b"\n\n", b"\xff", b"\xef\xbb\xbf", b"[" * 5000, b"Hello\n"])


def damaged_messages(n: int, seed: int) -> str:
    """Half of `n` calls over stdio and half over HTTP, which damaged messages answer: each ends as documented."""
    counts = {"stdio": over_stdio(n // 2, seed), "HTTP": over_http(n - n // 2, seed)}
    shown = "; ".join(f"{name}: {count['results']} results, {count['errors']} errors" for name, count in counts.items())
    return f"{n:,} calls that damaged messages answer: {shown}"


def outcome(server: MCPServer, name: str, arguments: dict[str, Any]) -> str:
    """How a call ends. Raises what is not documented, and TimedOut: no call has to wait."""
    try:
        server.call(name, arguments)
    except MCPError as error:
        if server.name not in str(error):
            raise AssertionError("the error does not name the server") from error
        return "errors"
    return "results"


def over_stdio(n: int, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    case = 0
    while case < n:
        with MCPServer(*command(), timeout=TIMEOUT) as server:
            server.tools()
            ends = False
            while case < n and not ends:
                chance = random.Random(f"{seed} {case}")
                raw = b"".join(line + chance.choice([b"\n"] * 9 + [b""]) for line in damaged_messages_of(chance))
                exits = chance.random() < 0.02
                pieces = [base64.b64encode(piece).decode() for piece in pieces_of(raw, chance)]
                try:
                    counts[outcome(server, "write", {"pieces": pieces, "exits": exits})] += 1
                    ends = exits or not is_usable(server)
                except Exception as error:
                    raise AssertionError(f"case {case} of seed {seed}: {error!r}") from error
                case += 1
    return counts


def is_usable(server: MCPServer) -> bool:
    """Whether the server has not ended the connection. What is left of damaged lines may fail the first call."""
    return any(outcome(server, "echo", {"text": "ordinary"}) == "results" for _ in range(3))


def over_http(n: int, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    case = 0
    gets = itertools.count()

    def respond(request: Request, peer: Peer) -> Any:
        """Close the connection after a damaged response, for whose end the client would otherwise wait."""
        # Each response has its own chance: threads of the client send requests at the same time.
        if request.method == "GET":
            chance = random.Random(f"{seed} GET {next(gets)}")
            peer.send(response(chance, b"5") if chance.random() < 0.5 else NOT_ALLOWED)
            return CLOSE
        is_damaged = request.body and request.json.get("params", {}).get("name") == "echo"
        if not is_damaged or request.json["params"]["arguments"]["text"] == "ordinary":
            return None
        peer.send(response(random.Random(f"{seed} {case}"), str(request.json["id"]).encode()))
        return CLOSE

    before = http._RESUME_S, http._MAX_RETRY_S
    http._RESUME_S, http._MAX_RETRY_S = 0.001, 0.01  # A damaged `retry` may be an hour.
    try:
        with MCPHTTPServer(respond=respond) as running, MCPServer(running.url, timeout=TIMEOUT) as server:
            server.tools()
            for case in range(n):
                counts[outcome(server, "echo", {"text": "damaged"})] += 1
                if case % BATCH == BATCH - 1:
                    assert server.call("echo", {"text": "ordinary"}).text == "ordinary"
    except Exception as error:
        raise AssertionError(f"case {case} of seed {seed}: {error!r}") from error
    finally:
        http._RESUME_S, http._MAX_RETRY_S = before
    return counts


def response(chance: random.Random, call_id: bytes) -> bytes:
    """A response over HTTP with damaged messages, and perhaps a damaged head or body."""
    messages = [raw.replace(b"@ID@", call_id) for raw in damaged_messages_of(chance)]
    if chance.random() < 0.3:
        raw = bytearray(json_response({}).replace(b"{}", messages[0]))
        raw = raw.replace(b"Content-Length: 2", b"Content-Length: %d" % len(messages[0]))
    else:
        events = []
        for number, message in enumerate(messages):
            identified = event(None, f"{number}" if chance.random() < 0.5 else "", 1)
            events.append(identified.replace(b"data: ", b"data: " + message))
        raw = bytearray(EVENTS + b"\r\n" + chunks(*pieces_of(b"".join(events), chance), end=chance.random() < 0.8))
    if chance.random() < 0.3:
        damage(raw, chance)
    return bytes(raw)


def starts(n: int, seed: int) -> str:
    """Start and end `n` servers, some of which do what they must not do. No process is left."""
    mark = uuid.uuid4().hex
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    for _ in range(n):
        how = chance.choice(["2025-11-25", "2026-07-28", "greet", "exit", "ignore", "busy", "crash", "children"])
        counts[how] += 1
        words = [*command(how if how in ("greet", "exit", "ignore") or how[0] == "2" else "2025-11-25"), mark]
        try:
            with MCPServer(*words, timeout=Timeout(60, first=0.3 if how == "ignore" else 60)) as server:
                server.ping()
                if how == "busy":
                    threading.Thread(target=_call_quietly, args=(server, "wait"), daemon=True).start()
                if how == "crash":
                    _call_quietly(server, "misbehave", {"how": chance.choice(["exit", "crash", "close", "binary"])})
                if how == "children":
                    _call_quietly(server, "misbehave", {"how": "children"})
        except (MCPError, TimeoutError):
            assert how in ("exit", "ignore"), how
    left = processes_with(mark)
    assert not left, f"{len(left)} processes are left: {left}"
    return f"{n:,} servers ({', '.join(f'{count} {how}' for how, count in counts.items())}): no process is left"


def _call_quietly(server: MCPServer, name: str, arguments: Any = None) -> None:
    with contextlib.suppress(MCPError):
        server.call(name, arguments)


def processes_with(mark: str) -> list[str]:
    """The command lines that have this mark, of processes that have not ended."""
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if mark in line:
                lines.append(line[-200:])
    return lines
