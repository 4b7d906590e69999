"""A conversation that is saved after each turn and continued at the next start.

    python examples/talk.py talk.json

Each line of the input is a turn. After an error, such as a server that is not running, the conversation is unchanged
and the next line is another attempt.
The server is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from localchat import Client, Conversation, LocalChatError


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "talk.json")
    client = Client()
    talk = Conversation.load(path, client) if path.exists() else client.conversation(system="Be brief.")
    print(f"{len(talk.messages)} messages in {path}")
    for line in sys.stdin:
        try:
            for text in talk.stream(line.strip()).text:
                print(text, end="", flush=True)
            print()
            talk.save(path)
        except LocalChatError as error:
            print(f"not added: {error}")


if __name__ == "__main__":
    main()
