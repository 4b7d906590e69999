"""A stand-in for Hugging Face's hub: its API over HTTP, redirects of files to another host, ranges, ETags, faults."""

import hashlib
import json
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.deadline import DEADLINE_S
from tests.support.raw_responses import with_length
from tests.support.raw_server import Peer, Request, Server

COMMIT = "c0ffee" + "0" * 34


@dataclass(frozen=True)
class Fault:
    """What is wrong with the response to one request whose path has a text."""

    path: str
    status: int = 0
    n_bytes: int | None = None  # The connection is closed after these bytes of the body.
    headers: dict[str, str] = field(default_factory=dict)
    is_damaged: bool = False  # The last byte of the body is another one.
    released: threading.Event | None = None  # `Hub.sent` is set, and the connection stays open until this is set.


class Hub(Server):
    """Serves repositories, which are dicts of files, within the `with` block."""

    def __init__(self, repositories: dict[str, dict[str, bytes]], gated: str = "", token: str = "") -> None:
        super().__init__(serve)
        self.repositories, self.gated, self.token = repositories, gated, token
        self.sizes: dict[str, int] = {}  # Of files, in place of their real ones.
        self.faults: deque[Fault] = deque()
        self.blobs = {digest_of(data): data for files in repositories.values() for data in files.values()}
        self.environment = {"HF_ENDPOINT": f"http://127.0.0.1:{self.port}", **({"HF_TOKEN": token} if token else {})}

    def ranges(self) -> list[str]:
        """The ranges of the requests for contents; "" for a whole file."""
        return [request.headers.get("range", "") for request in self.requests if request.path.startswith("/cdn/")]

    def response(self, request: Request, fault: Fault) -> bytes:
        url = urlsplit(request.path)
        if fault.status:
            return response(fault.status, headers=fault.headers)
        if url.path == "/api/models":
            return response(200, json.dumps([{"id": name} for name in self.found(parse_qs(url.query))]).encode())
        if url.path.startswith("/api/models/"):
            return self.repository(url.path.removeprefix("/api/models/"), request.headers.get("authorization"))
        if url.path.startswith("/cdn/"):
            return self.content(self.blobs[url.path.removeprefix("/cdn/")], request, fault)
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", url.path)
        return self.resolve(match[1], match[2]) if match else response(404)

    def found(self, query: dict[str, list[str]]) -> list[str]:
        author, search = (query.get(name, [""])[0].lower() for name in ("author", "search"))
        names = [name for name, files in self.repositories.items() if any(".gguf" in file for file in files)]
        return [name for name in names if search in name.lower() and author in ("", name.lower().partition("/")[0])]

    def repository(self, name: str, key: str | None) -> bytes:
        if self.token and key not in (None, f"Bearer {self.token}"):
            return response(401, headers={"X-Error-Message": "Invalid credentials in Authorization header"})
        if name not in self.repositories:  # Without a token the real hub does not say that there is none.
            return response(404 if self.token else 401, headers={"X-Error-Code": "RepoNotFound"})
        files: list[dict[str, Any]] = []
        for file, data in self.repositories[name].items():
            lfs = {"sha256": digest_of(data), "size": len(data), "pointerSize": 134}
            files.append({"rfilename": file, "size": self.sizes.get(file, len(data)), "lfs": lfs})
        return response(200, json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode())

    def resolve(self, name: str, file: str) -> bytes:
        if name == self.gated:
            return response(401, headers={"X-Error-Code": "GatedRepo"})
        data = self.repositories[name][file]
        digest = digest_of(data)
        linked = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        return response(302, headers={**linked, "Location": f"http://localhost:{self.port}/cdn/{digest}"})

    def content(self, data: bytes, request: Request, fault: Fault) -> bytes:
        start = int((re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", "")) or "00")[1])
        if start >= len(data):
            return response(416)
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}", "ETag": f'"{digest_of(data)}"'}
        sent = data[:-1] + bytes([data[-1] ^ 1]) if fault.is_damaged else data
        return response(206 if start else 200, sent[start:], headers)


def serve(peer: Peer, hub: Any) -> None:
    peer.sock.settimeout(DEADLINE_S)
    while (request := peer.request()) is not None:
        hub.requests.append(request)
        fault = hub.faults.popleft() if hub.faults and hub.faults[0].path in request.path else Fault("")
        head, end, body = hub.response(request, fault).partition(b"\r\n\r\n")
        peer.send(head + end, b"" if request.method == "HEAD" else body[: fault.n_bytes])
        if fault.released:
            hub.sent.set()
            fault.released.wait(DEADLINE_S)
        if fault.n_bytes:
            return


def response(status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    return with_length(body, f"{status} -", "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()))


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
