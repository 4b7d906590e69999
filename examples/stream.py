"""Streams one answer, event by event, and prints the usage.

    python examples/stream.py "What is your name?"

The server is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import sys

from localchat import Client


def main() -> None:
    question = " ".join(sys.argv[1:]) or "What is your name?"
    with Client().stream(question) as stream:
        for event in stream:
            if event.type == "content_delta":
                print(event.delta, end="", flush=True)
            elif event.type == "message_stop":
                print(f"\n[{event.reason}]")
    usage = stream.reply.usage
    if usage is not None:
        print(f"[{usage.input_tokens} tokens in, {usage.output_tokens} out]")


if __name__ == "__main__":
    main()
