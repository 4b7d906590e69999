"""The weight of the client, and the comparison with `openai`. A test of times would fail on a busy machine."""

import re
import sys

import pytest

from bench import client as bench
from bench import dialects


def test_openai_differs_from_the_dialects(capsys):
    pytest.importorskip("openai", reason="no release for this Python")
    dialects.main(["ollama-tools", "tail-cut", "openai-tools"])
    out = capsys.readouterr().out
    assert "ollama-tools: calls: [('fgg'" in out
    assert "tail-cut: raises: None, not 'IncompleteStream'" in out


@pytest.mark.skipif(sys.platform != "linux", reason="other systems measure memory in another way")
def test_memory():
    assert bench.peak_memory("localchat with network") < 25


def test_benchmark_prints_a_row_for_each_aim(capsys):
    """Without the rows of `openai`, whose import takes seconds."""
    aims = [str(aim) for aim in bench.measure(with_openai=False, n_events=50, rounds=1)]
    assert len([aim for aim in aims if re.match(r"7\. .*aim [<>]=", aim)]) == len(aims) == 6
    assert "localchat, asynchronous" in capsys.readouterr().out
