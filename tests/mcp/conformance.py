"""The client that the conformance suite of MCP runs: its last argument is the URL of the server of a scenario.

npx @modelcontextprotocol/conformance client --command "python -m tests.mcp.conformance" --suite core
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from localchat.mcp import MCPServer

# Arguments of tools that a schema does not determine.
ARGUMENTS = {"a": 2, "b": 3}


def accept(params: dict[str, Any]) -> dict[str, Any]:
    """Accept a form; the client fills in its defaults."""
    properties = params.get("requestedSchema", {}).get("properties", {})
    return {"action": "accept", "content": {"confirmed": True} if "confirmed" in properties else {}}


def main() -> None:
    """List the tools, and call them: as the scenario says, or each once."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    revision = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION") or None
    with MCPServer(
        sys.argv[-1],
        revision=revision,
        on_request={"elicitation/create": accept, "roots/list": lambda params: {"roots": []}},
    ) as server:
        tools = {tool.name: tool for tool in server.tools()}
        calls = context.get("toolCalls") or [
            {"name": name, "arguments": _arguments(tools, tool)} for name, tool in tools.items()
        ]
        for call in calls:
            print(call["name"], server.call(call["name"], call["arguments"]))


def _arguments(tools: Any, tool: Any) -> dict[str, Any]:
    """Arguments of a call: those that are required. An argument `schema` is the schema of the first tool."""
    required = tool.parameters.get("required", [])
    values = {**ARGUMENTS, "schema": next(iter(tools.values())).parameters}
    return {name: values.get(name, "text") for name in required}


if __name__ == "__main__":
    main()
