"""The tools of public MCP servers, as agents send them: each list is converted to a grammar in a limited time.

tests/data/mcp_tools.json has the names and schemas of the servers' public documentation, without descriptions.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.api.chat import ChatRequest
from localchat.serving.chat.constraints import constraint as constraints
from localchat.serving.chat.constraints.constraint import constraint_for
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.engine.values import Constraint
from tests.support.constraints import fits
from tools import formats

SERVERS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "mcp_tools.json").read_text())
TEMPLATES = dict(formats.sources([]))
# A family with arguments in tags, and one with its own notation. The test with all servers at once uses JSON.
FAMILIES = ("glm.jinja", "gemma-4.jinja")
# The limit of thread time for the tools of half of the servers in one family. An idle machine needs a fifth of it.
MAX_SECONDS = 5.0

# The places that no grammar enforces in any family.
NOT_ENFORCED = {("convert-contents", "#/allOf/0/if"), ("jq_filtered", "#/properties/coins/uniqueItems")}


def compiled(tools_of: dict[str, Any], template: ChatTemplate) -> Constraint:
    tools = tuple({"type": "function", "function": {"name": n, "parameters": s}} for n, s in tools_of.items())
    request = ChatRequest(messages=({"role": "user", "content": "x"},), tools=tools, tool_choice="auto")
    constraint = constraint_for(request, template, "<|im_start|>assistant\n")
    assert constraint is not None
    return constraint


@pytest.fixture
def not_enforced(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """The places that no grammar enforces, with their tools."""
    found: set[tuple[str, str]] = set()
    monkeypatch.setattr(constraints, "_report", lambda name, place, reason: found.add((name, place)))
    constraints._constraint.cache_clear()
    return found


def test_tools_of_servers_become_grammars(not_enforced: set[tuple[str, str]]):
    """Each server in one of the families."""
    for i, family in enumerate(FAMILIES):
        template = ChatTemplate(TEMPLATES[family], bos_token=formats.BOS, eos_token=formats.EOS)
        began = time.thread_time()
        for tools in list(SERVERS.values())[i :: len(FAMILIES)]:
            compiled(tools, template)
        assert time.thread_time() - began < MAX_SECONDS
    assert not_enforced == NOT_ENFORCED


def test_tools_of_all_servers_at_once_become_a_grammar(not_enforced: set[tuple[str, str]]):
    """Its calls follow the schemas."""
    tools = {f"{server}-{name}": schema for server, tools in SERVERS.items() for name, schema in tools.items()}
    assert len(SERVERS) > 100
    assert len(tools) > 600
    grammar = compiled(tools, ChatTemplate(TEMPLATES["hermes.jinja"]))
    assert {(name.partition("-")[2], place) for name, place in not_enforced} == NOT_ENFORCED
    call = '<tool_call>\n{"name": "linear-create_issue", "arguments": {"title": 1}}\n</tool_call>'
    assert not fits(grammar, call)
