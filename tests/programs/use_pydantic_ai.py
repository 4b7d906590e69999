"""`python use_pydantic_ai.py openai-chat|openai QUESTION`: an agent of Pydantic AI with a tool.

It continues the conversation of the last run, which is a file of the working folder.
"""

import sys
from pathlib import Path

from pydantic_ai import Agent, ModelMessagesTypeAdapter

CONVERSATION = Path("conversation.json")

provider, question = sys.argv[1:]
agent = Agent(f"{provider}:local", instructions="Answer in one sentence.")


@agent.tool_plain
def read_notes(name: str) -> str:
    """Read a file of notes."""
    return Path(name).read_text(encoding="utf-8")


messages = ModelMessagesTypeAdapter.validate_json(CONVERSATION.read_bytes()) if CONVERSATION.exists() else None
result = agent.run_sync(question, message_history=messages)
print(result.output)
CONVERSATION.write_bytes(result.all_messages_json())
