"""Runs a GGUF file behind localchat's server, which constrains calls to the offered tools."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from localchat import Client, LocalChatError

from .llama_runner import Completion, Request

_START_S = 60.0


class ServedRunner:
    """A server that runs one request at a time. Use it as a context manager, which ends the server."""

    def __init__(self, path: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "localchat.server", str(path), "--port", str(port)]
        self._server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._client = Client(f"http://127.0.0.1:{port}/v1")
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._server.poll() is None:
            with contextlib.suppress(LocalChatError):
                self._client.models()
                return
            time.sleep(0.1)
        self._server.kill()
        raise SystemExit(f"the server did not start within {_START_S:g} s; to see why, run: {' '.join(command)}")

    def __enter__(self) -> ServedRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._server.terminate()
        self._server.wait(30)

    def generate(self, request: Request, max_tokens: int, temperature: float, seed: int) -> tuple[str, Completion]:
        """The request as JSON, and the completion in the format of the model."""
        messages = [_as_sent(message) for message in request.messages]
        options: dict[str, Any] = {}
        if request.tools:
            functions = [tool.get("function", tool) for tool in request.tools]
            options["tools"] = [{"type": "function", "function": function} for function in functions]
        if request.thinking is not None:
            options["chat_template_kwargs"] = {"enable_thinking": request.thinking}
        reply = self._client.chat(messages, max_tokens=max_tokens, temperature=temperature, seed=seed, **options)
        text = reply.text
        for call in reply.tool_calls:
            body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
            text += f"\n<tool_call>\n{body}\n</tool_call>"
        if reply.reasoning:
            text = f"{'' if request.thinking else '<think>'}{reply.reasoning}</think>\n\n{text}"
        body = json.dumps({"messages": messages, **options}, ensure_ascii=False)
        return body, Completion(text, reply.finish_reason in ("stop", "tool_calls"))


def _as_sent(message: dict[str, Any]) -> dict[str, Any]:
    """The message in OpenAI's format: arguments are text, calls and their results have ids."""
    sent = dict(message)
    if "tool_calls" in sent:
        sent["tool_calls"] = [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": json.dumps(call["function"]["arguments"])},
            }
            for i, call in enumerate(sent["tool_calls"])
        ]
    if sent["role"] == "tool":
        sent.setdefault("tool_call_id", "call_0")
    return sent
