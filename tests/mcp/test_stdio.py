"""MCP servers as processes: what the blocking and the asyncio class make of good servers and of others."""

import asyncio
import base64
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from localchat import TimedOut, Timeout
from localchat.mcp import AsyncMCPServer, MCPError, MCPServer, Progress, process
from localchat.mcp.messages import LineDecoder, NotAMessage
from localchat.mcp.process import find_program, secrets_of_environment
from localchat.transport.secrets import Secrets
from tests.support.deadline import DEADLINE_S, wait_for
from tests.support.documents import ROOT, run
from tests.support.mcp_server import MODERN, TOOLS, command

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]
SHORT = Timeout(10, first=0.3)


class Blocking:
    """An AsyncMCPServer with the methods of an MCPServer, for tests of both."""

    def __init__(self, *words: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._server = AsyncMCPServer(*words, **options)

    def __enter__(self) -> Any:
        try:
            self._loop.run_until_complete(self._server.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.run_until_complete(self._server.__aexit__(*exception))
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._server, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        return lambda *arguments, **options: self._loop.run_until_complete(value(*arguments, **options))


@pytest.fixture(params=[MCPServer, Blocking], ids=["blocking", "asyncio"])
def server_class(request: Any) -> Any:
    return request.param


@pytest.mark.parametrize("revision", REVISIONS)
def test_server_of_each_revision(server_class: Any, revision: str):
    """The tools are listed over several pages, called, and their list is read again after a change."""
    with server_class(*command(revision), name="test") as server:
        assert server.revision == revision
        assert server.instructions == "Be kind."
        tools = {tool.name: tool for tool in server.tools()}
        assert list(tools) == list(TOOLS)
        assert tools["echo"].description == "Return the text."
        assert tools["echo"].parameters == TOOLS["echo"]["inputSchema"]
        assert tools["fail"].description == "Fail"
        assert [tool.name for tool in server.tools("add", "echo", prefix="t.")] == ["t_add", "t_echo"]
        assert server.call("echo", {"text": "a\nb \ud800 ü"}).text == "a\nb \ud800 ü"
        assert server.call("add", {"a": 1, "b": 2}).structured == {"sum": 3}
        server.ping()
        if revision != MODERN:
            server.call("grow", {"name": "new tool.x"})
            assert [tool.name for tool in server.tools()][-1] == "new_tool_x"


def test_list_is_read_again_only_after_a_change():
    with MCPServer(*command(), name="test") as server:
        first, second = server.tools(), server.tools()
        assert first == [] or first[0].parameters is second[0].parameters
        server.call("grow", {"name": "other"})
        assert len(server.tools()) == len(first) + 1


@pytest.mark.parametrize(
    ("how", "words"),
    {
        "exit": ["it ended with exit code 3", "its last line on stderr: I cannot go on"],
        "crash": ["it was ended by signal 9"],
        "close": ["it closed its stdout"],
        "binary": ["no text: b'\\xff\\xfe"],
        "long": ["a line has more than 67108864 bytes"],
        "text": ["it wrote a line to its stdout that is no message", "it is no JSON: 'Hello from a \\\\x1b[31mprint'"],
        "json": ['that is no message: it is no message: \'{"hello"'],
        "number": ["it is no message: '42'"],
        "nested": ["it is no JSON: '[["],
        "unknown tool": ["there is no tool unknown tool (error -32602)"],
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_server_is_an_error_of_its_calls(server_class: Any, how: str, words: list[str]):
    with server_class(*command(), name="bad one") as server:
        with pytest.raises(MCPError) as caught:
            server.call(how) if how == "unknown tool" else server.call("misbehave", {"how": how})
        assert caught.value.server == "bad one"
        for part in words:
            assert part in str(caught.value)
        if how in ("text", "json", "number", "nested", "unknown tool"):  # It can still be used.
            assert server.call("echo", {"text": "still here"}).text == "still here"
        else:
            with pytest.raises(MCPError, match="bad one"):
                server.call("echo", {"text": "gone"})


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("no-such-program",), "there is no program 'no-such-program' in PATH"),
        (command("exit"), "exit code 1; its last line on stderr: no key was given"),
        ((sys.executable, "-c", "print('hello')"), "it ended with exit code 0"),
        ((sys.executable, "-c", "import os, sys; os.write(1, b'\\xff\\n'); sys.stdin.read()"), "are no text"),
        (command("2020-01-01"), "it speaks the revision '2020-01-01', this client 2024-11-05"),
    ],
    ids=["absent", "no key", "other program", "binary", "revision"],
)
def test_server_that_does_not_start(server_class: Any, words: tuple[str, ...], reason: str):
    with pytest.raises(MCPError, match="bad") as caught, server_class(*words, name="bad"):
        raise AssertionError("it started")
    assert reason in str(caught.value)


def test_hanging_server_is_a_timeout(server_class: Any):
    with (
        pytest.raises(TimedOut, match="MCP server silent: no result of initialize"),
        server_class(*command("ignore"), name="silent", timeout=SHORT),
    ):
        raise AssertionError("it started")


def test_text_before_the_first_message_is_logged(caplog: pytest.LogCaptureFixture):
    with MCPServer(*command("greet"), name="test") as server:
        server.ping()
    assert "test: a line of its stdout is no message: it is no JSON: 'Welcome!'" in caplog.text


def test_call_is_cancelled_after_its_timeout(server_class: Any):
    with server_class(*command()) as server:
        with pytest.raises(TimedOut, match=r"no result of tools/call: no first output within Timeout\.first") as caught:
            server.call("wait", timeout=SHORT)
        assert caught.value.kind == "first"
        assert len(json.loads(server.call("cancelled").text)) == 1


def test_progress_is_reported_and_restarts_the_timeout(server_class: Any):
    with server_class(*command()) as server:
        reports: list[Progress] = []
        assert server.call("count", {"n": 3}, on_progress=reports.append).text == "counted"
        assert reports == [Progress(n, 9, f"step {n}") for n in range(3)]
        for n in (1, 1, 1, 200):  # Also those that come together with the result.
            reports.clear()
            server.call("count", {"n": n}, on_progress=reports.append)
            assert len(reports) == n
        with pytest.raises(TimedOut) as caught:
            server.call("wait", {"n": 1}, timeout=Timeout(10, stall=0.2))
        assert caught.value.kind == "stall"
        with pytest.raises(TimedOut) as caught:
            server.call("wait", timeout=Timeout(10, total=0.2))
        assert caught.value.kind == "total"


def test_reports_of_progress_go_to_a_plain_function(server_class: Any):
    async def wait(progress: Progress) -> None:
        """Would have to be awaited."""

    with server_class(*command()) as server, pytest.raises(TypeError, match="on_progress is a coroutine function"):
        server.call("count", {"n": 1}, on_progress=wait)


def test_call_that_cannot_be_sent_is_not_cancelled(server_class: Any):
    """A server must not get a cancellation of a request that it never got."""
    with server_class(*command()) as server:
        with pytest.raises(TypeError):
            server.call("echo", {"text": {1}})
        assert json.loads(server.call("cancelled").text) == []


@pytest.mark.parametrize("takes_s", [0.0, 0.15])
def test_total_timeout_includes_the_input_that_a_server_requests(server_class: Any, takes_s: float):
    def decline(params: Any) -> Any:
        threading.Event().wait(takes_s)
        return {"action": "decline"}

    with server_class(*command(MODERN), on_request={"elicitation/create": decline}) as server:
        limits = Timeout(10, total=0.1 if takes_s else 10)
        if takes_s:
            with pytest.raises(TimedOut) as caught:
                server.call("request", {"method": "elicitation/create"}, timeout=limits)
            assert caught.value.kind == "total"
        else:
            server.call("request", {"method": "elicitation/create"}, timeout=limits)


def test_function_that_fails_is_an_error_of_the_call(server_class: Any):
    with server_class(*command(MODERN), name="test", on_request={"elicitation/create": fail}) as server:
        with pytest.raises(MCPError, match="MCP server test: the function for elicitation/create failed") as caught:
            server.call("request", {"method": "elicitation/create"})
        assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("elicitation/create", {"mode": "url", "url": "https://host"}),
        ("elicitation/create", {"mode": "other"}),
        ("sampling/createMessage", {"tools": []}),
        ("sampling/createMessage", {"toolChoice": {"mode": "auto"}}),
    ],
)
@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
def test_request_that_was_not_declared_is_refused(revision: str, method: str, params: Any):
    with MCPServer(*command(revision), on_request={method: fail}) as server:
        arguments = {"method": method, "params": params}
        if revision == MODERN:
            with pytest.raises(MCPError, match=f"it requests {method}, but this client has no"):
                server.call("request", arguments)
        else:
            assert json.loads(server.call("request", arguments).text)["code"] == -32602


@pytest.mark.parametrize("code", [-32700, -32600, -32601])
def test_error_without_id_is_that_of_the_only_request(code: int):
    """If the server could not read the request. Other errors may be responses to notifications."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "what?"}}
    line = base64.b64encode(json.dumps(error).encode() + b"\n").decode()
    with MCPServer(*command()) as server:
        if code == -32601:
            assert server.call("write", {"pieces": [line], "exits": False}).text == "written"
        else:
            with pytest.raises(MCPError, match="what") as caught:
                server.call("write", {"pieces": [line], "exits": False})
            assert caught.value.code == code


CLOSES_STDIN = """
import json, os, sys, time
message = json.loads(sys.stdin.readline())
os.close(0)
info = {"protocolVersion": "2025-11-25", "capabilities": {}}
print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": info}), flush=True)
time.sleep(1000)
"""


def test_server_that_closes_its_stdin_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("localchat.mcp.process._CLOSE_S", 0.1)
    with (
        pytest.raises(MCPError, match="MCP server test: it closed its stdin"),
        MCPServer(sys.executable, "-c", CLOSES_STDIN, name="test") as server,
    ):
        server.ping()


def test_secrets_are_masked_before_an_error_is_cut():
    secret = "a-very-secret-token"
    with MCPServer(*command(), env={"TOKEN": secret}) as server:
        for n_chars in range(940, 1000, 3):
            with pytest.raises(MCPError) as caught:
                server.call(f"{'x' * n_chars} {secret} y")
            assert "a-v" not in str(caught.value)


def test_words_and_paths_of_the_environment_are_no_secrets(tmp_path: Path):
    shown = f"no file {tmp_path}/a.txt in production"
    variables = {"MODE": "production", "ROOT": str(tmp_path), "API_TOKEN": "word", "OTHER": "a-very-secret-token"}
    assert list(secrets_of_environment(variables)) == ["word", "a-very-secret-token"]
    assert Secrets(secrets_of_environment(variables)).mask(shown) == shown


RESPONDS_WITH_OTHER_IDS = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        info = {"protocolVersion": "2025-11-25", "capabilities": {}}
        print(json.dumps({"jsonrpc": "2.0", "id": TYPE(message["id"]), "result": info}), flush=True)
"""


@pytest.mark.parametrize("type_name", ["str", "float"])
def test_id_of_a_response_may_have_another_type(type_name: str):
    with MCPServer(sys.executable, "-c", RESPONDS_WITH_OTHER_IDS.replace("TYPE", type_name), timeout=20) as server:
        server.ping()


def test_programs_are_found_in_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On Windows not in the current folder, and a relative path starts at the folder of the server."""
    for folder in ("project", "programs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "npx.cmd").touch(mode=0o755)
    monkeypatch.chdir(tmp_path / "project")
    environment = {"PATH": f"{tmp_path / 'absent'}{os.pathsep}{tmp_path / 'programs'}", "PATHEXT": ".exe;.cmd"}
    for name in ("npx", "npx.cmd"):
        found = find_program(name, environment, None, is_windows=True)
        assert found == str(tmp_path / "programs" / "npx.cmd")
    assert find_program("other", environment, None, is_windows=True) is None
    assert find_program("npx.cmd", environment, None, is_windows=False) == str(tmp_path / "programs" / "npx.cmd")
    relative = find_program(os.path.join(".", "npx.cmd"), environment, tmp_path / "programs")
    assert relative is not None
    assert Path(relative) == tmp_path / "programs" / "npx.cmd"


def test_cancelled_task_cancels_the_call():
    async def run() -> str:
        async with AsyncMCPServer(*command()) as server:
            reported = asyncio.Event()
            task = asyncio.create_task(server.call("wait", {"n": 1}, on_progress=lambda report: reported.set()))
            await asyncio.wait_for(reported.wait(), 10)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return (await server.call("cancelled")).text

    assert len(json.loads(asyncio.run(run()))) == 1


def test_exception_of_the_program_cancels_the_call():
    """Such as KeyboardInterrupt."""

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with MCPServer(*command()) as server:
        with pytest.raises(KeyboardInterrupt):
            server.call("wait", {"n": 1}, on_progress=interrupt)
        assert len(json.loads(server.call("cancelled").text)) == 1


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
def test_interrupted_start_leaves_no_process(monkeypatch: Any):
    processes = []
    make_process = process.subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        processes.append(make_process(*arguments, **options))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]  # It has one.
        time.sleep(0.1)  # Here Ctrl-C would end the start.
        return processes[0]

    monkeypatch.setattr(process.subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt), MCPServer(*command()):
        pass
    assert processes[0].returncode is not None


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
def test_requests_of_the_server_go_to_the_functions_of_the_program(server_class: Any, revision: str):
    def accept(params: Any) -> Any:
        assert params["message"] == "which?"
        return {"action": "accept"}

    async def accept_in_loop(params: Any) -> Any:
        return accept(params)

    function = accept if server_class is MCPServer else accept_in_loop
    with server_class(*command(revision), on_request={"elicitation/create": function}) as server:
        answer = {"action": "accept", "content": {"color": "red"}}  # With the default of the form.
        expected = [{"one": answer}, "as it was"] if revision == MODERN else answer
        assert json.loads(server.call("request", {"method": "elicitation/create"}).text) == expected
        if revision == MODERN:
            with pytest.raises(MCPError, match="it requests roots/list, for which on_request has no function"):
                server.call("request", {"method": "roots/list"})
        else:
            refused = json.loads(server.call("request", {"method": "roots/list"}).text)
            assert refused == {"code": -32601, "message": "this client has no roots/list"}
            assert json.loads(server.call("request", {"method": "ping"}).text) == {}


def fail(params: Any) -> Any:
    raise RuntimeError("a secret of the program")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (fail, "a secret of the program"),
        (lambda params: {"a": {1}}, "not JSON serializable"),
        (lambda params: 5, "a dict"),
    ],
    ids=["raises", "no JSON", "no object"],
)
def test_function_that_fails_is_an_error_for_the_server(function: Any, words: str, caplog: pytest.LogCaptureFixture):
    with MCPServer(*command(), on_request={"roots/list": function}) as server:
        error = json.loads(server.call("request", {"method": "roots/list"}).text)
    assert error == {"code": -32603, "message": "the client failed to answer roots/list"}
    assert words in caplog.text


def test_server_gets_only_the_environment_that_is_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-servers")
    with MCPServer(*command(), env={"TOKEN": "given"}) as server:
        variables = json.loads(server.call("environment").text)
    # Python itself may add variables of its locale.
    assert {name for name in variables if not name.startswith("LC_")} == {"PATH", "HOME", "TOKEN"}


def test_stderr_and_messages_go_to_the_logger(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "localchat.mcp")
    with MCPServer(*command(), name="test", env={"TOKEN": "the-secret-token"}) as server:
        server.call("log", {"level": "warning"})
        server.call("log", {"level": "emergency"})
        with contextlib.suppress(MCPError):
            server.call("misbehave", {"how": "exit"})
    levels = {message: level for _, level, message in caplog.record_tuples}
    assert levels["test: I cannot go on"] == logging.INFO
    shown = [(level, text) for _, level, text in caplog.record_tuples if "what" in text]
    assert [level for level, _ in shown] == [logging.WARNING, logging.ERROR]
    assert "\x1b" not in caplog.text


def test_secrets_of_the_environment_are_masked():
    code = "import os, sys; sys.exit('bad token ' + os.environ['TOKEN'])"
    with (
        pytest.raises(MCPError, match=r"bad token \*\*\*") as caught,
        MCPServer(sys.executable, "-c", code, env={"TOKEN": "a-very-secret-token"}),
    ):
        pass
    assert "very-secret" not in repr(caught.value)


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    # An ended child of an ended process may wait for the first process of the system.
    with contextlib.suppress(OSError):
        return b") Z" not in Path(f"/proc/{process_id}/stat").read_bytes()
    return True


def test_process_and_its_children_are_ended_by_force(server_class: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("localchat.mcp.process._CLOSE_S", 0.1)
    monkeypatch.setattr("localchat.mcp.process._TERMINATE_S", 0.1)
    with server_class(*command("stubborn")) as server:
        ids = json.loads(server.call("misbehave", {"how": "stubborn"}).text)
        assert all(map(is_running, ids))
    wait_for(lambda: not any(map(is_running, ids)))


def test_server_is_ended_with_the_program():
    """Without a `with` block, and with a call in flight."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import threading\n"
        "from localchat.mcp import MCPServer\n"
        "from tests.support.mcp_server import command\n"
        "server = MCPServer(*command())\n"
        "server.__enter__()\n"
        "threading.Thread(target=server.call, args=('wait',), daemon=True).start()\n"
        "print(server._transport._process.pid)\n"
    )
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    wait_for(lambda: not is_running(int(done.stdout)))


FLOOD = """
import json, sys
for method in ("initialize", "notifications/initialized"):
    message = json.loads(sys.stdin.readline())
    if "id" in message:
        info = {"protocolVersion": "2025-11-25", "capabilities": {}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": info}), flush=True)
while True:
    print('{"jsonrpc": "2.0", "id": 1, "method": "ping"}')
"""


def test_server_that_reads_no_responses_is_an_error():
    reason = "MCP server flood: it has not read 10000 messages"
    with MCPServer(sys.executable, "-c", FLOOD, name="flood") as server, pytest.raises(MCPError, match=reason):
        server.call("echo")


def test_function_for_requests_does_not_delay_responses():
    """The server requests something, and responds to another call before it gets that."""
    release = threading.Event()

    def wait(params: Any) -> Any:
        assert release.wait(DEADLINE_S)
        return {"roots": []}

    with MCPServer(*command(), on_request={"roots/list": wait}) as server:
        results: list[str] = []
        thread = threading.Thread(target=lambda: results.append(server.call("request", {"method": "roots/list"}).text))
        thread.start()
        assert server.call("echo", {"text": "first"}).text == "first"
        release.set()
        thread.join(DEADLINE_S)
    assert json.loads(results[0]) == {"roots": []}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_process_does_not_end_the_server():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import os\n"
        "from localchat.mcp import MCPServer\n"
        "from tests.support.mcp_server import command\n"
        "with MCPServer(*command()) as server:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        server.close()\n"
        "        sys.exit()\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    print(server.call('echo', {'text': 'still here'}).text)\n"
    )
    assert run([sys.executable, "-c", code]).stdout == "still here\n"


def test_many_threads_use_one_server():
    with MCPServer(*command()) as server:
        results: dict[int, str] = {}

        def call(number: int) -> None:
            results[number] = server.call("echo", {"text": str(number)}).text

        threads = [threading.Thread(target=call, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert results == {number: str(number) for number in range(50)}


def test_second_block_is_an_error_and_does_not_end_the_server():
    with MCPServer(*command()) as server:
        with pytest.raises(RuntimeError, match="was started before"), server:
            pass
        server.ping()

    async def use() -> None:
        async with AsyncMCPServer(*command()) as server:
            with pytest.raises(RuntimeError, match="was started before"):
                await server.__aenter__()
            await server.ping()

    asyncio.run(use())


def test_use_outside_of_the_block_is_an_error():
    server = MCPServer(*command(), name="test")
    with pytest.raises(RuntimeError, match=r"MCPServer\(name='test'\) is not started"):
        server.tools()
    with server:
        pass
    with pytest.raises(MCPError, match="it was closed"):
        server.ping()
    with pytest.raises(RuntimeError, match="was started before"):
        server.__enter__()


@pytest.mark.parametrize(
    ("words", "options", "reason"),
    [
        (("https://host/mcp",), {"env": {}}, "env is for a server that is a process"),
        (("program",), {"headers": {}}, "headers is for a server at a URL"),
        (("program",), {"media": ["video"]}, "media has image and audio, not video"),
        (("program",), {"revision": "2020-01-01"}, "revision is one of 2024-11-05"),
        (("program",), {"on_request": {"ping": print}}, "not for 'ping'"),
        (("http://user:password@host/mcp",), {}, "must not hold a user or a password"),
        (("https://host/mcp",), {"headers": {"A": "b\n"}}, "the value of the header A"),
        (("program",), {"timeout": 0}, "a timeout is a number of seconds above 0"),
        (("program",), {"env": {"A": 1}}, "the values of env are texts"),
    ],
)
def test_wrong_arguments_are_refused(words: Any, options: Any, reason: str):
    with pytest.raises((ValueError, TypeError), match=reason):
        MCPServer(*words, **options)


@pytest.mark.parametrize(
    ("words", "name"),
    {
        ("npx", "-y", "@modelcontextprotocol/server-filesystem", "."): "npx server-filesystem",
        ("/usr/bin/python3", "-m", "server"): "python3 server",
        ("uv", "run", "server.py"): "uv server.py",
        ("uv", "--directory", "/path", "run", "server.py"): "uv server.py",
        ("uvx", "--from", "git+https://host/x", "tool-name"): "uvx tool-name",
        ("docker", "run", "-i", "--rm", "-e", "KEY", "mcp/fetch"): "docker fetch",
        ("docker", "run", "--label", "x", "mcp/fetch"): "docker fetch",
        ("npx", "--registry=https://host", "some-server"): "npx some-server",
        # It is not known which options have a value.
        ("npx", "--key", "secret123"): "npx",
        ("python", "-u", "server.py", "secret123"): "python",
        ("my-server", "sk-key"): "my-server",
        ("https://host:81/mcp?key=a",): "host:81",
    }.items(),
)
def test_name_of_a_server_shows_no_keys(words: tuple[str, ...], name: str):
    assert MCPServer(*words).name == name


def test_lines_are_split_at_any_cut():
    data = b"one\n\ntwo\r\nthree"
    for at in range(len(data) + 1):
        decoder = LineDecoder(10)
        assert decoder.feed(data[:at]) + decoder.feed(data[at:]) == [b"one", b"", b"two\r"]
    with pytest.raises(NotAMessage, match="more than 3 bytes"):
        LineDecoder(3).feed(b"four")
