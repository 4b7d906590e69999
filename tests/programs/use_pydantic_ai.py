"""`python use_pydantic_ai.py openai-chat|openai QUESTION`: an agent of Pydantic AI with a tool, which continues a conversation.

The conversation is a file of the working folder.
"""

import sys
from pathlib import Path

from pydantic_ai import Agent, ModelMessagesTypeAdapter

CONVERSATION = Path("conversation.json")

provider, question = sys.argv[1:]
agent = Agent(f"{provider}:local", instructions="Answer in one sentence.")


@agent.tool_plain
def read_notes() -> str:
    """Read the notes."""
    return Path("notes.txt").read_text(encoding="utf-8")


messages = ModelMessagesTypeAdapter.validate_json(CONVERSATION.read_bytes()) if CONVERSATION.exists() else None
result = agent.run_sync(question, message_history=messages)
print(result.output)
CONVERSATION.write_bytes(result.all_messages_json())
