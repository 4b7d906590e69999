"""`python use_langchain.py chat|responses QUESTION`: an agent of LangChain with a tool.

It continues the conversation of the last run, which is a file of the working folder.
"""

import json
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain.messages import HumanMessage
from langchain_core.messages import messages_from_dict, messages_to_dict
from langchain_openai import ChatOpenAI

CONVERSATION = Path("conversation.json")


def read_notes(name: str) -> str:
    """Read a file of notes."""
    return Path(name).read_text(encoding="utf-8")


interface, question = sys.argv[1:]
model = ChatOpenAI(model="local", use_responses_api=interface == "responses")
agent = create_agent(model, tools=[read_notes], system_prompt="Answer in one sentence.")
messages = messages_from_dict(json.loads(CONVERSATION.read_text("utf-8"))) if CONVERSATION.exists() else []
values = {"messages": [*messages, HumanMessage(question)]}
for mode, value in agent.stream(values, stream_mode=["messages", "values"]):
    if mode == "values":
        values = value
    elif mode == "messages":
        print(value[0].text, end="", flush=True)
print()
CONVERSATION.write_text(json.dumps(messages_to_dict(values["messages"])), encoding="utf-8")
