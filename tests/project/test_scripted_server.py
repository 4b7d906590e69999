"""The server process with a scripted model, and runs of programs, which the tests of real programs use."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llama_cpp", reason="the server needs llama-cpp-python")

from tests.programs.program import end_all_of, run_in_group
from tests.support.chat_requests import TOOL
from tests.support.exchanges import ask
from tests.support.scripted_engine import CRASH, Rule
from tests.support.scripted_server import scripted_server

CALLS = Rule("Look", [("look", {"at": "x"}), ("look", {"at": "y"})])
RULES = [Rule("crash", CRASH), Rule("seen", "It is red."), CALLS, Rule("", "Hello!")]
USER, LOOK = {"role": "user", "content": "hi"}, {"role": "user", "content": "Look"}


def test_scripted_server_generates_texts_calls_and_errors_and_records_requests(tmp_path: Path):
    with scripted_server(tmp_path, RULES, "--any-name", n_ctx=2000) as server:

        def chat(*messages, **fields):
            return ask(server.process.port, "/v1/chat/completions", {"messages": messages, **fields})

        def message(*messages, **fields):
            status, found = chat(*messages, **fields)
            assert status == 200, found
            return found["choices"][0]["message"]

        assert message(USER)["content"] == "Hello!"
        assert message(LOOK)["content"] == "Hello!", "a call needs its function"
        called = message(LOOK, tools=[TOOL])
        assert [json.loads(call["function"]["arguments"]) for call in called["tool_calls"]] == [
            {"at": "x"},
            {"at": "y"},
        ]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "seen"} for call in called["tool_calls"]]
        history = [LOOK, called, *results]
        assert message(*history, tools=[TOOL])["content"] == "It is red."
        history += [{"role": "assistant", "content": "I see."}, USER]
        assert message(*history, tools=[TOOL])["content"] == "Hello!", "words before the last output have no effect"
        status, error = chat({"role": "user", "content": "x" * 2000})
        assert (status, error["error"]["code"]) == (400, "context_length_exceeded")
        status, error = chat({"role": "user", "content": "crash"})
        assert status == 500
        assert "SIGKILL" in error["error"]["message"]
    recorded = [request for request in server.requests() if request.method == "POST"]
    assert [request.status for request in recorded] == [200, 200, 200, 200, 200, 400, 500]
    assert recorded[1].json == {"messages": [LOOK]}
    assert "context" in recorded[5].summary
    assert "SIGKILL" in (tmp_path / "server.log").read_text(encoding="utf-8")


def test_time_limit_ends_a_program_and_its_children(tmp_path: Path):
    child = "import time; time.sleep(600)"
    program = f"import subprocess, sys; print('begins', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    run = run_in_group([sys.executable, "-c", program], tmp_path, dict(os.environ), 2)
    assert (run.status, run.output) == (None, "begins\n")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="Linux has /proc")
def test_daemons_of_a_program_are_ended(tmp_path: Path):
    variables = {**os.environ, "HOME": str(tmp_path)}
    daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=variables)
    end_all_of(tmp_path)
    assert daemon.wait(60) == -signal.SIGKILL
