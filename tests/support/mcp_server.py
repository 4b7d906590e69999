"""An MCP server in the standard library, for the tests of the client; as a program, on stdin and stdout.

    python -m tests.support.mcp_server [REVISION]

It knows one revision. A call of the tool `misbehave` makes the program do what servers must not do.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Send = Callable[[Json], None]

ROOT = Path(__file__).parents[2]
MODERN = "2026-07-28"
PIXEL = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"
SOUND = b"RIFF\x24\0\0\0WAVEfmt "


def command(*arguments: str) -> tuple[str, ...]:
    """The command of the program, which runs in any folder."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.support.mcp_server import main; main()"
    return (sys.executable, "-c", code, *arguments)


def _object(required: tuple[str, ...] = (), **properties: Any) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
TOOLS: dict[str, Json] = {
    "echo": {"description": "Return the text.", "inputSchema": _object(("text",), text=_TEXT)},
    "add": {
        "description": "Add two numbers.",
        "inputSchema": _object(("a", "b"), a=_NUMBER, b=_NUMBER),
        "outputSchema": _object(("sum",), sum=_NUMBER),
    },
    "fail": {"title": "Fail", "inputSchema": _object()},
    "media": {"inputSchema": _object()},
    "resources": {"inputSchema": _object()},
    "return": {"description": "Return this result.", "inputSchema": _object(result={"type": "object"})},
    "wait": {"description": "Report progress some times, then never return.", "inputSchema": _object(n=_NUMBER)},
    "count": {"description": "Report progress some times, then return.", "inputSchema": _object(n=_NUMBER)},
    "log": {"inputSchema": _object(level=_TEXT)},
    "request": {"description": "Make a request and return the response.", "inputSchema": _object(method=_TEXT)},
    "environment": {"inputSchema": _object()},
    "grow": {"description": "Add a tool.", "inputSchema": _object(name=_TEXT)},
    "cancelled": {"description": "The ids of the calls that were cancelled.", "inputSchema": _object()},
    "write": {"description": "Write these bytes to stdout, then return or exit.", "inputSchema": _object()},
    "misbehave": {"inputSchema": _object(("how",), how=_TEXT)},
}


def text(content: str, **fields: Any) -> Json:
    """A result with a text."""
    return {"content": [{"type": "text", "text": content}], **fields}


class ToolServer:
    """Answers the messages of one client. `send` sends a message to it, and may be called by any thread."""

    def __init__(self, send: Send, revision: str = "2025-11-25", page_size: int = 4) -> None:
        self.revision = revision
        self.received: list[Json] = []  # All messages.
        self.cancelled: list[Any] = []
        self.tools: dict[str, Json] = dict(TOOLS)
        self._send = send
        self._page_size = page_size
        self._responses: dict[str, Any] = {}  # Those to requests of this server, by the id of the call.
        self._wake = threading.Condition()

    def take(self, message: Json) -> None:
        """Take a message of the client. Calls of tools run in threads."""
        self.received.append(message)
        method = message.get("method")
        if method is None:
            with self._wake:
                self._responses[message["id"]] = message.get("result", message.get("error"))
                self._wake.notify_all()
        elif method == "notifications/cancelled":
            self.cancelled.append(message["params"]["requestId"])
        elif method == "tools/call":
            threading.Thread(target=self._answer, args=(message,), daemon=True).start()
        elif "id" in message:
            self._answer(message)

    def _answer(self, message: Json) -> None:
        try:
            result = self._result(message)
        except Exception as error:
            self._send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32602, "message": f"{error}"}})
            return
        if result is not None:
            self._send({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _result(self, message: Json) -> Json | None:
        """The result of a request. None: it never comes."""
        method, params = message["method"], message.get("params", {})
        is_modern = self.revision == MODERN
        capabilities = {"tools": {"listChanged": True}, "logging": {}}
        info = {
            "capabilities": capabilities,
            "serverInfo": {"name": "test", "version": "1"},
            "instructions": "Be kind.",
        }
        if method == "initialize" and not is_modern:
            return {"protocolVersion": self.revision, **info}
        if is_modern and "io.modelcontextprotocol/protocolVersion" not in params.get("_meta", {}):
            raise ValueError("the request has no revision")
        if method == "server/discover" and is_modern:
            return {"resultType": "complete", "supportedVersions": [MODERN], **info}
        if method in ("ping", "logging/setLevel") and not is_modern:
            return {}
        if method == "tools/list":
            start, names = int(params.get("cursor", 0)), list(self.tools)
            end = start + self._page_size
            following = {"nextCursor": str(end)} if end < len(names) else {}
            caching = {"resultType": "complete", "ttlMs": 60_000} if is_modern else {}
            return {"tools": [{"name": name, **self.tools[name]} for name in names[start:end]], **following, **caching}
        if method == "tools/call":
            return self._call(message["id"], params)
        raise LookupError(f"there is no method {method}")

    def _call(self, call_id: Any, params: Json) -> Json | None:
        name, arguments = params["name"], params.get("arguments", {})
        if name not in self.tools:
            raise LookupError(f"there is no tool {name}")
        token = params.get("_meta", {}).get("progressToken")
        if name == "echo":
            return text(arguments["text"])
        if name == "add":
            value = arguments["a"] + arguments["b"]
            return text(json.dumps({"sum": value}), structuredContent={"sum": value})
        if name == "fail":
            return text("it went wrong", isError=True)
        if name == "return":
            return dict(arguments["result"])
        if name == "media":
            pixel, sound = (base64.b64encode(data).decode() for data in (PIXEL, SOUND))
            image = {"type": "image", "data": pixel, "mimeType": "image/gif"}
            return {"content": [image, {"type": "audio", "data": sound, "mimeType": "audio/wav"}]}
        if name == "resources":
            link = {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain"}
            resource = {"type": "resource", "resource": {"uri": "file:///b", "text": "the text of b"}}
            blob = {"type": "resource", "resource": {"uri": "file:///c", "mimeType": "application/zip", "blob": "UEs="}}
            return {"content": [link, resource, blob, {"type": "hologram"}]}
        if name in ("wait", "count"):
            for number in range(int(arguments.get("n", 0))):
                report = {"progressToken": token, "progress": number, "total": 9, "message": f"step {number}"}
                self._send({"jsonrpc": "2.0", "method": "notifications/progress", "params": report})
            return text("counted") if name == "count" else None
        if name == "log":
            params = {"level": arguments["level"], "data": {"what": "a \x1b[31m line"}}
            self._send({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
            self._send({"jsonrpc": "2.0", "method": "notifications/unheard_of", "params": {}})
            return text("logged")
        if name == "request":
            return self._requested(call_id, params, arguments["method"], arguments.get("params", {}))
        if name == "environment":
            return text(json.dumps(dict(os.environ)))
        if name == "grow":
            self.tools[arguments["name"]] = {"inputSchema": {"type": "object"}}
            self._send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            return text("grown")
        if name == "cancelled":
            return text(json.dumps(self.cancelled))
        if name == "write":
            for piece in arguments["pieces"]:
                os.write(1, base64.b64decode(piece).replace(b"@ID@", str(call_id).encode()))
            if arguments["exits"]:
                os._exit(0)
            return text("written")
        return misbehave(arguments["how"])

    def _requested(self, call_id: Any, params: Json, method: str, added: Json) -> Json | None:
        schema = {"type": "object", "properties": {"color": {"type": "string", "default": "red"}}}
        request = {"method": method, "params": {"message": "which?", "requestedSchema": schema, **added}}
        if self.revision == MODERN:
            if "inputResponses" in params:
                return text(json.dumps([params["inputResponses"], params.get("requestState")]))
            return {"resultType": "input_required", "inputRequests": {"one": request}, "requestState": "as it was"}
        request_id = f"of {call_id}"
        self._send({"jsonrpc": "2.0", "id": request_id, **request})
        with self._wake:
            self._wake.wait_for(lambda: request_id in self._responses, timeout=60)
        return text(json.dumps(self._responses[request_id]))


def misbehave(how: str) -> Json | None:
    """Do what a server must not do."""
    if how == "exit":
        print("I cannot go on", file=sys.stderr, flush=True)
        os._exit(3)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "close":
        os.close(1)
    written = {
        "binary": b"\xff\xfe\0\x01\n",
        "text": b"Hello from a \x1b[31mprint\n",
        "json": b'{"hello": "world"}\n',
        "number": b"42\n",
        "nested": b"[" * 100_000 + b"\n",
        "half": b'{"jsonrpc": "2.0", "id": 3, "resu',
    }
    if how in written:
        os.write(1, written[how])
    if how == "long":
        for _ in range(1600):
            os.write(1, b"x" * 65536)
    if how == "children":  # They ignore the end of the program, and have its arguments.
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        subprocess.Popen([sys.executable, "-c", code, *sys.argv[1:]], stdin=subprocess.DEVNULL)
        return text("started")
    if how == "stubborn":  # The program and its child end at SIGKILL alone.
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
        STUBBORN.set()
        return text(json.dumps([os.getpid(), child.pid]))
    return None


STUBBORN = threading.Event()


def main() -> None:
    """Run the program. `greet` prints a text before the first message, `ignore` never answers, `exit` ends at once,
    `stubborn` ignores SIGTERM."""
    how = sys.argv[1] if len(sys.argv) > 1 else "2025-11-25"
    if how == "exit":
        sys.exit("no key was given")
    if how == "greet":
        print("Welcome!", flush=True)
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lock = threading.Lock()

    def send(message: Json) -> None:
        with lock:
            view = memoryview(json.dumps(message).encode() + b"\n")
            while view:
                view = view[os.write(1, view) :]  # At the end of Python, sys.stdout waits for threads that write.

    server = ToolServer(send, how if how[0] == "2" else "2025-11-25")
    for line in sys.stdin:
        if how != "ignore":
            server.take(json.loads(line))
    if STUBBORN.is_set():
        time.sleep(1000)


if __name__ == "__main__":
    main()
