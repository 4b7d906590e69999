"""A stand-in for Hugging Face's hub: its API over HTTP, redirects of files to another host, ranges, ETags, faults."""

import hashlib
import json
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

COMMIT = "c0ffee" + "0" * 34
DEADLINE_S = 60


@dataclass(frozen=True)
class Fault:
    """What is wrong with the response to one request whose path has a text."""

    path: str
    status: int = 0
    n_bytes: int = 0  # The connection is closed after these bytes of the body.
    headers: dict[str, str] = field(default_factory=dict)
    is_damaged: bool = False  # The last byte of the body is another one.
    released: threading.Event | None = None  # The connection stays open until this is set.


class Hub:
    """Serves repositories, which are dicts of files, until the end of a `with` block."""

    def __init__(self, repositories: dict[str, dict[str, bytes]], gated: str = "", token: str = "") -> None:
        self.repositories = repositories
        self.gated, self.token = gated, token
        self.sizes: dict[str, int] = {}  # Of files, in place of their real ones.
        self.faults: deque[Fault] = deque()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.paused = threading.Event()  # Set when a response waits for `Fault.released`.
        self.blobs = {digest_of(data): data for files in repositories.values() for data in files.values()}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.environment = {"HF_ENDPOINT": self.url, **({"HF_TOKEN": token} if token else {})}

    def ranges(self) -> list[str]:
        """The ranges of the requests for contents; "" for a whole file."""
        return [headers.get("range", "") for method, path, headers in self.requests if path.startswith("/cdn/")]

    def __enter__(self) -> "Hub":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for fault in self.faults:
            if fault.released:
                fault.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(DEADLINE_S)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, url = self.hub, urlsplit(self.path)
        hub.requests.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
        fault = hub.faults.popleft() if hub.faults and hub.faults[0].path in self.path else Fault("")
        if fault.status:
            self.respond(fault.status, headers=fault.headers)
        elif url.path == "/api/models":
            self.respond(200, json.dumps([{"id": name} for name in self.found(parse_qs(url.query))]).encode())
        elif url.path.startswith("/api/models/"):
            self.repository(url.path.removeprefix("/api/models/"))
        elif url.path.startswith("/cdn/"):
            self.content(hub.blobs[url.path.removeprefix("/cdn/")], fault)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", url.path):
            self.resolve(match[1], match[2])
        else:
            self.respond(404)

    def respond(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def found(self, query: dict[str, list[str]]) -> list[str]:
        author, search = (query.get(name, [""])[0].lower() for name in ("author", "search"))
        names = [name for name, files in self.hub.repositories.items() if any(".gguf" in file for file in files)]
        names = [name for name in names if search in name.lower()]
        return [name for name in names if author in ("", name.lower().partition("/")[0])]

    def repository(self, name: str) -> None:
        if self.hub.token and self.headers["Authorization"] not in (None, f"Bearer {self.hub.token}"):
            return self.respond(401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
        if name not in self.hub.repositories:  # Without a token the real hub does not say that there is none.
            return self.respond(404 if self.hub.token else 401, headers={"X-Error-Code": "RepoNotFound"})
        files: list[dict[str, Any]] = []
        for file, data in self.hub.repositories[name].items():
            lfs = {"sha256": digest_of(data), "size": len(data), "pointerSize": 134}
            files.append({"rfilename": file, "size": self.hub.sizes.get(file, len(data)), "lfs": lfs})
        return self.respond(200, json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode())

    def resolve(self, name: str, file: str) -> None:
        if name == self.hub.gated:
            return self.respond(401, headers={"X-Error-Code": "GatedRepo"})
        data = self.hub.repositories[name][file]
        digest, host = digest_of(data), f"http://localhost:{self.server.server_port}"  # type: ignore[attr-defined]
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        return self.respond(302, headers={"X-Repo-Commit": COMMIT, "Location": f"{host}/cdn/{digest}", **linked})

    def content(self, data: bytes, fault: Fault) -> None:
        if fault.is_damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = int((re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "") or "00")[1])
        if start >= len(data):
            return self.respond(416)
        sent = data[start : start + fault.n_bytes] if fault.n_bytes else data[start:]
        own = {"Content-Length": str(len(data) - start), "ETag": f'"{digest_of(data)}"'}
        ranged = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        try:
            self.respond(206 if start else 200, sent, {**own, **ranged})
        except OSError:
            return None  # The client has ended.
        self.close_connection = self.close_connection or bool(fault.n_bytes)
        if fault.released:
            self.hub.paused.set()
            fault.released.wait(DEADLINE_S)
        return None
