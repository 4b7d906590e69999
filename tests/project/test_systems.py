"""The client and the server where functions of Linux are missing, as on Windows and macOS."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT, run
from tests.support.exchanges import ask
from tests.support.live import started
from tests.support.raw_responses import HELLO
from tests.support.raw_server import always

# A module that Python imports at its start. It removes what Windows lacks, except what the standard library itself
# uses on Linux. `None` makes an import fail.
WITHOUT = """
import os, select, selectors, signal, socket, sys
for module in ("readline", "resource", "termios", "tty", "pty", "pwd", "grp"):
    sys.modules[module] = None
for place, names in (
    (os, "fork forkpty register_at_fork getuid geteuid getpgid killpg nice setpriority sched_getaffinity sysconf"),
    (os, "fchmod fchown mkfifo pread pwrite sendfile statvfs getloadavg O_NONBLOCK O_NOFOLLOW"),
    (select, "poll epoll POLLRDHUP EPOLLRDHUP"),
    (selectors, "PollSelector EpollSelector"),
    (signal, "SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGPIPE SIGALRM SIGSTOP SIGWINCH alarm setitimer"),
    (socket, "SO_REUSEPORT TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_USER_TIMEOUT MSG_DONTWAIT MSG_NOSIGNAL"),
):
    for name in names.split():
        vars(place).pop(name, None)
selectors.DefaultSelector = selectors.SelectSelector
"""

BLOCKING = """
import localchat, sys
with localchat.Client() as client:
    assert "".join(client.stream("hi").text) == client.chat("hi").text == "Hello"
    assert [reply.text for reply in client.map(["a", "b"])] == ["Hello"] * 2
    talk = client.conversation()
    talk.say("hi")
    talk.save("talk.json")
assert len(localchat.Conversation.load("talk.json", client).messages) == 2
print("done")
"""
ASYNCHRONOUS = """
import asyncio, localchat
async def main():
    async with localchat.AsyncClient() as client:
        print((await client.chat("hi")).text, [text async for text in client.stream("hi").text])
asyncio.run(main())
"""
TOOLS_OF_OTHERS = """
from localchat.mcp import MCPServer
from tests.support.mcp_server import command
for how in ("2025-11-25", "stubborn"):
    with MCPServer(*command(how)) as server:
        print(server.call("add", {"a": 1, "b": 2}).structured)
    print(server._transport._process.returncode is not None)
"""
# Without Unix sockets. asyncio needs them on Linux.
NO_UNIX = "import socket\ndel socket.AF_UNIX\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["-c", NO_UNIX + BLOCKING], "done\n"),
        (["-c", ASYNCHRONOUS], "Hello ['Hel', 'lo']\n"),
        (["-c", NO_UNIX + TOOLS_OF_OTHERS], "{'sum': 3}\nTrue\n" * 2),
        (["-m", "localchat", "--usage", "hi"], "Hello\n"),
        (["-m", "localchat", "--models"], "first\n"),
    ],
    ids=["blocking", "asyncio", "mcp", "terminal", "models"],
)
def test_client_needs_no_function_of_linux_alone(arguments: list[str], output: str, folder: Path):
    with always(HELLO) as server:
        path = os.pathsep.join([str(folder), str(ROOT)])
        done = run([sys.executable, *arguments], cwd=folder, PYTHONPATH=path, OPENAI_BASE_URL=server.url)
    assert (done.returncode, done.stdout) == (0, output), done.stderr


def test_unix_socket_is_an_error_where_there_are_none(folder: Path):
    program = f"{NO_UNIX}import localchat\ntry: localchat.Client('unix:/s')\nexcept ValueError as error: print(error)"
    done = run([sys.executable, "-c", program], cwd=folder, PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]))
    assert "names a unix socket, which Python does not have" in done.stdout, done.stderr


def test_server_needs_no_function_of_linux_alone(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither its own process nor that of its engine."""
    pytest.importorskip("llama_cpp", reason="the real server needs llama-cpp-python")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
    with started([sys.executable, "-m", "localchat.server", "--port", "0", "--ctx", "512"]) as server:
        for fields in ({}, {"response_format": {"type": "json_object"}}):
            body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **fields}
            assert ask(server.port, "/v1/chat/completions", body)[0] == 200
