"""Lets a model call the tools of an MCP server, and prints every call with its result.

    python examples/mcp_tools.py "What is in this folder?" npx -y @modelcontextprotocol/server-filesystem .
    python examples/mcp_tools.py "What is new?" https://mcp.example.com/mcp

A server is a program that runs with your rights: start only one that you trust. Each call is confirmed here.
The server of the model is the one at OPENAI_BASE_URL, by default http://127.0.0.1:8080/v1.
"""

from __future__ import annotations

import sys

from localchat import Client, ToolCall
from localchat.mcp import MCPServer


def confirm(call: ToolCall) -> bool | str:
    """True if the user allows the call, else a reason for the model."""
    answer = input(f"Run {call.name}({call.arguments_json!r})? [y/n] ")
    return answer.strip() == "y" or "the user did not allow this"


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(f"usage: {sys.argv[0]} QUESTION COMMAND [ARGUMENT ...] or QUESTION URL")
    question, *command = sys.argv[1:]
    with MCPServer(*command) as server:
        print(f"{server.name} has {len(server.tools())} tools")
        with Client().run_stream(question, server.tools(), on_call=confirm) as run:
            for event in run:
                if event.type == "content_delta":
                    print(event.delta, end="", flush=True)
                elif event.type == "tool_result":
                    print(f"[{event.call.name} gave {event.content[:200]}]")
    print()


if __name__ == "__main__":
    main()
