"""Short runs of the reliability programs for MCP servers. `make soak` runs them at full length."""

import sys

import pytest

from tests.soak import mcp


def test_damaged_messages():
    assert "300 calls that damaged messages answer" in mcp.damaged_messages(300, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_starts_leave_no_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("localchat.mcp.process._CLOSE_S", 0.5)
    monkeypatch.setattr("localchat.mcp.process._TERMINATE_S", 0.2)
    assert "no process is left" in mcp.starts(8, 1)
