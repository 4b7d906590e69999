"""The client as one file, or as a folder: it runs without packages, under every Python on this machine."""

from __future__ import annotations

import ast
import modulefinder
import re
import sys
from pathlib import Path

import pytest

from tests.install.__main__ import interpreter
from tests.support.documents import ROOT, run
from tests.support.raw_responses import DONE, HELLO, MODELS, OPEN, chunked, piece, with_length
from tests.support.raw_server import Server, always, serving
from tools import vendor

VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"]


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> str:
    path = interpreter(request.param)
    if path is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    return path


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vendor") / "chat_client.py"
    assert vendor.main([str(path)]) == 0
    return path


def output(command: list[str | Path], server: Server, **environment: str) -> str:
    done = run(command, OPENAI_BASE_URL=server.url, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


USE = """
import copy, dataclasses, pickle, sys
sys.path.insert(0, sys.argv[1])
import chat_client as c
with c.Client(model="m", timeout=30) as client:
    assert client.models() == ["first"]
    with client.stream("hi") as stream:
        events = list(stream)
    assert client.chat("hi", images=[]).text == "Hello"
    assert [event.type for event in events] == sys.argv[2].split()
    assert pickle.loads(pickle.dumps(events)) == copy.deepcopy(events) == events
    assert dataclasses.replace(events[1], delta="x") == c.ContentDelta("x", raw=1)
    for call in (
        lambda: client.chat("a", response_format=dict),
        lambda: client.chat("a", images=["a"]),
        lambda: client.map(["a"]),
        lambda: client.run("a"),
        lambda: client.conversation(),
        lambda: client.embed("a"),
    ):
        try:
            call()
        except ImportError as error:
            print(str(error).split()[3], end=" ")
"""
# The modules that are not in the one file, in the order of the calls above.
MISSING = (
    "schema/response_format",
    "request/media",
    "many_prompts",
    "agent/tool_run",
    "agent/conversation",
    "embeddings",
)


def test_one_file_can_be_imported(python, one_file):
    types = "message_start content_delta content_delta usage message_stop"
    with always(HELLO) as server:
        command = [python, "-I", "-S", "-W", "error", "-c", USE, one_file.parent, types]
        assert output(command, server).split() == [f"{name}.py," for name in MISSING]


ASYNC = """
import asyncio, sys
import localchat
async def main():
    async with localchat.AsyncClient(timeout=30) as client:
        for _ in range(2):
            async with client.stream("hi") as stream:
                print("".join([text async for text in stream.text]), end=" ")
        task = asyncio.ensure_future(client.chat("hi", extra_headers={"X-Wait": "1"}))
        await asyncio.wait([task], timeout=0.1)
        task.cancel()
        await asyncio.wait([task])
        print(task.cancelled())
asyncio.run(main())
"""


def test_asynchronous_client_under_every_python(python):
    def respond(request, number):
        return MODELS if request.method == "GET" else OPEN if "x-wait" in request.headers else HELLO

    with serving(respond) as server:
        assert output([python, "-W", "error", "-c", ASYNC], server, PYTHONPATH=str(ROOT)) == "Hello Hello True\n"


PROGRAM = {
    "piped": (["and?"], "text", HELLO, (0, "Hello\n", "")),
    "cut": (["hi"], "", chunked(piece("Hel", "length"), DONE), (3, "Hel\n", "localchat: the server cut the answer")),
    "no prompt": ([], " ", HELLO, (2, "", "usage: chat_client.py [options] [text ...]\nlocalchat: there is no prompt")),
    "refused": (["hi"], "", with_length(b"no luck", "400 Bad"), (1, "", "localchat: 400 from ")),
}


@pytest.mark.parametrize(("words", "piped", "raw", "expected"), PROGRAM.values(), ids=PROGRAM)
def test_one_file_as_a_program(words, piped, raw, expected, one_file):
    with always(raw) as server:
        command = [sys.executable, "-I", "-S", one_file, *words]
        done = run(command, piped=piped, OPENAI_BASE_URL=server.url, LOCALCHAT_MODEL="m")
    code, out, errors = expected
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr.startswith(errors)
    assert done.stderr.count("\n") == (code > 0) + (code == 2)
    if piped.strip():
        assert server.requests[-1].json["messages"][0]["content"] == "text\n\nand?"


def test_files_of_others_are_kept_and_failures_to_write_reported(one_file, tmp_path, capsys, monkeypatch):
    path = tmp_path / "chat_client.py"
    text_of_file = one_file.read_text(encoding="utf-8")
    monkeypatch.setattr(vendor, "one_file", lambda: text_of_file)  # It takes half a second.
    path.write_text(f"{vendor.MARK}\nolder\n", encoding="utf-8")
    assert vendor.main([str(path)]) == 0
    assert path.read_bytes() == one_file.read_bytes()
    assert (ROOT / "LICENSE").read_text(encoding="utf-8") in path.read_text(encoding="utf-8")
    for text in ("", f"{vendor.MARK} No.\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit):
            vendor.main([str(path)])
        assert path.read_text(encoding="utf-8") == text
        assert "was not written by this program" in capsys.readouterr().err
    (tmp_path / "sse.py").write_text("mine", encoding="utf-8")
    (tmp_path / "folder.py").mkdir()
    for target, words in (
        (tmp_path, f"cannot write {tmp_path / 'sse.py'}: it exists"),
        (tmp_path / "folder.py", f"cannot write {tmp_path / 'folder.py'}: "),
        (tmp_path / "missing" / "chat.py", f"cannot write {tmp_path / 'missing' / 'chat.py'}: "),
    ):
        with pytest.raises(SystemExit) as exited:
            vendor.main([str(target)])
        assert exited.value.code == 2
        assert words in capsys.readouterr().err
    assert (tmp_path / "sse.py").read_text(encoding="utf-8") == "mine"


def test_no_two_files_define_a_name_differently():
    """In one file, the second definition would replace the first."""
    seen: dict[str, str] = {}
    for name in vendor.files("__main__.py"):
        for node in ast.parse((ROOT / "localchat" / name).read_text(encoding="utf-8")).body:
            code = ast.unparse(node)
            defined = re.match(r"(?:class |def |async def )?(\w+)(?=[(:]| = )", code)
            if defined and "@overload" not in code:
                assert seen.setdefault(defined[1], code) == code, name


FOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from chat import AsyncClient, Client, FakeServer, Tool, __version__
with Client() as client:
    print(client.conversation().say("hi"), client.map(["hi"])[0], client.chat("hi", images=[b"GIF89a"]))
with FakeServer() as server, Client(server.url) as client:
    server.reply("Hello")
    assert client.chat("hi").text == "Hello"
"""


def test_folder_works_alone(tmp_path):
    folder = tmp_path / "chat"
    assert vendor.main([str(folder)]) == 0
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8").split()
    for path in folder.rglob("*.py"):
        assert " ".join(licence) in " ".join(path.read_text(encoding="utf-8").replace("\n#", "\n").split())
    with always(HELLO) as server:
        assert output([sys.executable, "-I", "-S", "-c", FOLDER, tmp_path], server) == "Hello Hello Hello\n"


def test_linters_find_no_undefined_name_in_the_one_file(one_file):
    pytest.importorskip("ruff")
    done = run([sys.executable, "-m", "ruff", "check", "--isolated", "--select=F", "--output-format=concise", one_file])
    assert done.returncode == 0, done.stdout


def test_freezer_finds_every_module_by_the_imports_of_a_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("from localchat import Client\nClient()\n", encoding="utf-8")
    finder = modulefinder.ModuleFinder([str(ROOT)], excludes=["asyncio", "ssl"])
    finder.run_script(str(program))
    names = {name.replace(".", "/") + ".py" for name in finder.modules}
    assert {f"localchat/{name}" for name in (*(f"{name}.py" for name in MISSING), "aio.py")} <= names
