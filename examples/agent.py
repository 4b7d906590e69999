"""An agent: the model calls functions on the files of a folder until it can answer.

    python examples/agent.py "What is 17 + 25?"
    python examples/agent.py "Count the files in docs."

The program prints every call with its result. The functions read only files of the current folder.
The server is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from localchat import Client, ToolCall

ROOT = Path.cwd()
MAX_CHARS = 4000


def count_files(folder: str) -> int:
    """Count the files in a folder."""
    return len(list_files(folder))


def list_files(folder: str) -> list[str]:
    """List the files in a folder."""
    return sorted(path.name for path in (ROOT / folder).iterdir())


def read_file(path: str) -> str:
    """Read a file."""
    return (ROOT / path).read_text(encoding="utf-8")[:MAX_CHARS]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    return a * b


def approve(call: ToolCall) -> bool | str:
    """True if the call may run, else a reason, which the model gets as the result of the call."""
    for value in (call.arguments or {}).values():
        if isinstance(value, str) and not (ROOT / value).resolve().is_relative_to(ROOT):
            return "only files of this folder may be read"
    return True


def main() -> None:
    question = " ".join(sys.argv[1:]) or "What is 17 + 25?"
    tools = (count_files, list_files, read_file, add, multiply)
    with Client().run_stream(question, tools=tools, on_call=approve, max_rounds=8) as run:
        for event in run:
            if event.type == "content_delta":
                print(event.delta, end="", flush=True)
            elif event.type == "tool_result":
                print(f"[{event.call.name}({event.call.arguments_json}) gave {event.content[:200]}]")
    print()


if __name__ == "__main__":
    main()
