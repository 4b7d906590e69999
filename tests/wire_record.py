"""Records the responses of the server to some 380 requests, to compare two versions of the code.

    python -m tests.wire_record record FOLDER     starts servers with the built-in model and writes FOLDER
    python -m tests.wire_record compare A B       lists the requests whose responses differ; status 1 if any do

The code under test is that of the current directory. Requests run one after another, in a fixed order, with fixed
seeds. Ids, times and rates are replaced by placeholders, and the text of neighbouring events is joined. Two recordings
of one version are therefore equal, except for a few streams whose events have figures or ids of their tokens.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .live import running_server
from .wire_cases import SERVERS, Case

DEADLINE_S = 60

_PLACEHOLDERS = [
    (re.compile(rb"\b(chatcmpl|cmpl|req|call|msg|resp)[-_][0-9a-f]{24,}"), rb"\1-ID"),
    (re.compile(rb'("(?:created|[a-z_]*_ms|[a-z_]*_per_second|[a-z]+_time|[a-z_]*_per_sec)": ?)[0-9.e+-]+'), rb"\1T"),
    (re.compile(rb'("(?:[a-z_]*_per_second|[a-z_]*_per_token_ms|[a-z_]*_per_sec)": ?)null'), rb"\1T"),
    (re.compile(rb"(Date: )[^\r]*"), rb"\1DATE"),
    (re.compile(rb'("modified_at": ?)"[^"]*"'), rb"\1T"),
    (re.compile(rb"127\.0\.0\.1:\d+|localhost:\d+"), b"HOST"),
    (re.compile(rb"(localchat_\w+(?:\{[^}]*\})?) [0-9.e+-]+"), rb"\1 N"),
    (re.compile(rb"localchat \d+\.\d+[\w.+-]*"), b"localchat VERSION"),
]


def send(port: int, case: Case) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as peer:
        peer.sendall(case.raw())
        received = b""
        while True:
            data = peer.recv(65536)
            if not data:
                return received
            received += data


def normalised(response: bytes) -> bytes:
    """The response with joined chunks, and with placeholders for times, ids and the length, which depends on them."""
    head, _, body = response.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():
        body = dechunked(body)
    text = head + b"\n\n" + body
    for pattern, placeholder in _PLACEHOLDERS:
        text = pattern.sub(placeholder, text)
    return joined(re.sub(rb"Content-Length: \d+", b"Content-Length: N", text))


_DELTA = re.compile(rb'(data: .*"(?:content|reasoning_content|arguments|text)":")((?:[^"\\]|\\.)*)(".*)')


def joined(text: bytes) -> bytes:
    """Join neighbouring events that differ only in their text: how many tokens an event has depends on timing."""
    events: list[bytes] = []
    for event in text.split(b"\n\n"):
        new, last = _DELTA.fullmatch(event), _DELTA.fullmatch(events[-1]) if events else None
        if new and last and (new[1], new[3]) == (last[1], last[3]) and b'"logprobs":{' not in new[3]:
            events[-1] = last[1] + last[2] + new[2] + last[3]
        else:
            events.append(event)
    return b"\n\n".join(events)


def dechunked(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        n = int(size, 16)
        out, body = out + rest[:n], rest[n + 2 :]
        if n == 0:
            return out
    return out + b"<cut>"


def record(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (arguments, cases) in SERVERS.items():
        recorded: dict[str, str] = {}
        with running_server(*arguments) as url:
            port = int(re.findall(r":(\d+)", url)[0])
            for case in cases:
                assert case.name not in recorded, case.name
                recorded[case.name] = normalised(send(port, case)).decode("utf-8", "backslashreplace")
        text = json.dumps(recorded, indent=1, ensure_ascii=False)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name}: {len(recorded)} requests")
    command = [sys.executable, "-m", "localchat.server", "--help"]
    (folder / "help.txt").write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)


def compare(first: Path, second: Path) -> int:
    n_different = 0
    for path in sorted(first.glob("*.json")):
        before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        after: dict[str, Any] = json.loads((second / path.name).read_text(encoding="utf-8"))
        for name in dict.fromkeys((*before, *after)):
            if before.get(name) != after.get(name):
                n_different += 1
                print(f"--- {path.stem}: {name}\n- {before.get(name)}\n+ {after.get(name)}")
    print(f"{n_different} differences")
    return 1 if n_different else 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["record"] and len(arguments) == 2:
        record(Path(arguments[1]))
        return 0
    if arguments[:1] == ["compare"] and len(arguments) == 3:
        return compare(Path(arguments[1]), Path(arguments[2]))
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
