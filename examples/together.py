"""Asks many questions at once: the server runs them in one batch, so they take little longer than one.

    python examples/together.py

Reads OPENAI_BASE_URL, else talks to http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from localchat import Client

QUESTIONS = ("What is your name?", "How do I start the server?", "Count to 5.", "Say thanks.")


def main() -> None:
    client = Client()  # one client serves many threads
    with ThreadPoolExecutor(len(QUESTIONS)) as pool:
        for question, reply in zip(QUESTIONS, pool.map(client.chat, QUESTIONS)):
            print(f"{question}\n  {reply.text}")


if __name__ == "__main__":
    main()
