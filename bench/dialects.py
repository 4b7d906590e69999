"""Reads the recorded dialects with `openai` and with localchat, and prints the differences.

    python -m bench.dialects [NAME ...]

The program sends each recording of tests/data/dialects as a server would send it, and reads the final completion from
the stream helper of `openai`. It prints a line for each recording whose text, calls, finish reason or tokens differ
from those of localchat. The exit status is always 0.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localchat import Client, LocalChatError

DIALECTS = Path(__file__).parents[1] / "tests" / "data" / "dialects"


class Server:
    """Sends one recording to every request and closes the connection."""

    def __init__(self) -> None:
        self.raw = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def play(self, body: bytes, content_type: str) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n"
        self.raw = head.encode() + body

    def _serve(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            with sock, sock.makefile("rb") as request:
                length = 0
                while line := request.readline().strip().lower():
                    length = int(line[15:]) if line.startswith(b"content-length:") else length
                request.read(length)
                sock.sendall(self.raw)


def ours(url: str, options: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in options.items() if name in ("n", "think_tags")}
    try:
        with Client(url, "", "m", max_retries=0) as client:
            reply = client.chat("hi", **kept)
    except LocalChatError as error:
        return {"raises": type(error).__name__}
    calls = [(call.name, call.arguments_json or "{}") for call in reply.tool_calls]
    tokens = reply.usage.total_tokens if reply.usage else None
    return {"text": reply.text, "calls": calls, "finish": reply.finish_reason, "tokens": tokens}


def theirs(url: str) -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=url, api_key="x", max_retries=0)
    try:
        with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as stream:
            completion = stream.get_final_completion()
    except Exception as error:  # The comparison includes errors of any type.
        return {"raises": type(error).__name__}
    choice = completion.choices[0]
    calls = [(call.function.name, call.function.arguments or "{}") for call in choice.message.tool_calls or ()]
    tokens = completion.usage.total_tokens if completion.usage else None
    finish: str | None = choice.finish_reason
    return {"text": choice.message.content or "", "calls": calls, "finish": finish, "tokens": tokens}


def difference(mine: dict[str, Any], other: dict[str, Any]) -> str:
    """The fields that differ, empty if there are none. Two errors are equal, and so are equal values of JSON."""
    if "raises" in mine and "raises" in other:
        return ""
    names = [name for name in (*mine, *other) if _plain(mine.get(name)) != _plain(other.get(name))]
    if "raises" in mine or "raises" in other:
        names = [name for name in names if mine.get(name) or other.get(name)]
    return "; ".join(f"{name}: {other.get(name)!r}, not {mine.get(name)!r}" for name in dict.fromkeys(names))


def _plain(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    try:
        return [(name, json.loads(text)) for name, text in value]
    except ValueError:
        return value


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dialects", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="recordings (default: all)")
    names = parser.parse_args(argv).names or sorted(path.stem for path in DIALECTS.glob("*.json"))
    server, n_different = Server(), 0
    for name in names:
        options = json.loads((DIALECTS / f"{name}.json").read_text(encoding="utf-8")).get("options", {})
        server.play((DIALECTS / f"{name}.stream").read_bytes(), options.get("content_type", "text/event-stream"))
        found = difference(ours(server.url, options), theirs(server.url))
        n_different += bool(found)
        if found:
            print(f"{name}: {found}")
    print(f"openai differs in {n_different} of {len(names)} dialects")


if __name__ == "__main__":
    main()
