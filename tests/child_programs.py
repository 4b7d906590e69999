"""Replaces the program of the child processes that decode before the server does."""

from __future__ import annotations

import sys

import pytest

from localchat.serving.engine import LoadOptions, self_test


def replace_child(monkeypatch: pytest.MonkeyPatch, program: str) -> list[tuple[str, LoadOptions]]:
    """Replace the program. Returns the list of the model files and options for which it is started."""
    started: list[tuple[str, LoadOptions]] = []

    def command(path: str, options: LoadOptions) -> list[str]:
        started.append((path, options))
        # Without site-packages, a child process starts faster.
        return [sys.executable, "-S", "-c", program, path, self_test.to_json(options)]

    monkeypatch.setattr(self_test, "child_command", command)
    return started
