"""Each program asks, calls a tool, goes on with a conversation, and meets errors of a server with a scripted model.

`make program-tests` installs the programs, runs these tests, and prints the name of a folder with a folder for each
test: requests.jsonl is what the program sent, output.txt what it wrote, server.log what the server wrote.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.programs.catalog import PROGRAMS
from tests.programs.program import Program, Run, Workspace
from tests.support.scripted_engine import CRASH, Rule
from tests.support.scripted_server import RecordedRequest, ScriptedServer, scripted_server

if "LOCALCHAT_PROGRAMS" not in os.environ:
    pytest.skip("`make program-tests` runs real programs", allow_module_level=True)

# The files of the working folder.
FILES = {"notes.txt": "The lamp is vermilion.", "more.txt": "The door is turquoise."}
NAME, ANSWER = "My name is Scripty.", "The notes are about colours."
ANY = Rule("", NAME)
ASKS_NAME, ASKS_NOTES, ASKS_AGAIN = "What is your name?", "What do the notes say?", "Please say that again."
CHOSEN = [program for program in PROGRAMS if program.name in os.environ["LOCALCHAT_PROGRAMS"].split()]


@pytest.fixture(params=CHOSEN, ids=[program.name for program in CHOSEN])
def program(request: pytest.FixtureRequest) -> Program:
    if not request.param.is_installed:
        pytest.skip(f"{request.param.name} is not installed")
    return request.param


class Session:
    """A server, a program, and the runs of the program."""

    def __init__(self, workspace: Workspace, server: ScriptedServer, folder: Path) -> None:
        self.workspace, self.server = workspace, server
        self._output = folder / "output.txt"

    def ask(self, question: str) -> Run:
        return self._kept(self.workspace.ask(question))

    def ask_again(self, question: str) -> Run:
        return self._kept(self.workspace.ask_again(question))

    def _kept(self, run: Run) -> Run:
        with self._output.open("a", encoding="utf-8") as file:
            file.write(f"{run.output}\n[status {run.status}]\n")
        assert run.status is not None, f"the time limit ended it\n{run.output}"
        return run

    def check_output(self, text: str, *, is_there: bool = True) -> None:
        """The program has written this text, or has not."""
        output = self._output.read_text(encoding="utf-8")
        assert (text in output) is is_there, f"{text!r} in\n{output}"

    def sent(self) -> list[RecordedRequest]:
        """The requests with a body."""
        return [request for request in self.server.requests() if request.method == "POST"]

    def check_sent(self, *texts: str) -> None:
        """A request had all these texts. Others may have some, such as those for a title, in any order."""
        assert any(all(text in request.body for text in texts) for request in self.sent())

    def check_requests(self) -> None:
        """No request was refused."""
        requests = self.server.requests()
        refused = [
            (request.status, request.method, request.target, request.summary)
            for request in requests
            if request.status >= 400
        ]
        assert refused == []


@contextmanager
def session(
    program: Program, folder: Path, rules: Sequence[Rule], *arguments: str, **options: Any
) -> Iterator[Session]:
    with scripted_server(folder, rules, *arguments, **options) as server:
        workspace = Workspace(program, folder, server.url)
        for name, text in FILES.items():
            (workspace.work / name).write_text(f"{text}\n", encoding="utf-8")
        yield Session(workspace, server, folder)


def test_question(program: Program, tmp_path: Path):
    with session(program, tmp_path, [ANY], "--any-name") as runs:
        run = runs.ask(ASKS_NAME)
        assert run.status == 0, run.output
        runs.check_output(NAME)
    runs.check_requests()


@pytest.mark.parametrize("names", [["notes.txt"], ["notes.txt", "more.txt"]], ids=["call", "calls"])
def test_tool_calls_and_their_results(program: Program, tmp_path: Path, names: list[str]):
    """The model answers when the messages have the text of the last file, which it reads by a call."""
    if program.call is None:
        pytest.skip(f"{program.name} has no tools")
    tool, arguments = program.call
    in_folder = json.dumps(arguments).replace("FOLDER", str(tmp_path / "work"))
    calls = [(tool, json.loads(in_folder.replace("NAME", name))) for name in names]
    rules = [Rule(FILES[names[-1]], ANSWER), Rule(ASKS_NOTES, calls), ANY]
    with session(program, tmp_path, rules, "--any-name") as runs:
        run = runs.ask(ASKS_NOTES)
        assert run.status == 0, run.output
        runs.check_output(ANSWER)
    runs.check_sent(*(FILES[name] for name in names))
    runs.check_requests()


def test_second_turn(program: Program, tmp_path: Path):
    if program.ask_again is None:
        pytest.skip(f"{program.name} continues no conversation")
    rules = [Rule(ASKS_AGAIN, f"As I said: {NAME}"), ANY]
    with session(program, tmp_path, rules, "--any-name") as runs:
        assert runs.ask(ASKS_NAME).status == 0
        run = runs.ask_again(ASKS_AGAIN)
        assert run.status == 0, run.output
        runs.check_output(f"As I said: {NAME}")
    runs.check_sent(ASKS_NAME, NAME, ASKS_AGAIN)
    runs.check_requests()


def test_prompt_that_is_too_long(program: Program, tmp_path: Path):
    with session(program, tmp_path, [ANY], "--any-name", n_ctx=100) as runs:
        runs.ask(ASKS_NAME)
        runs.check_output(NAME, is_there=False)
        runs.check_output(program.too_long)
    assert {request.status for request in runs.sent()} == {400}


def test_model_that_the_server_does_not_have(program: Program, tmp_path: Path):
    with session(program, tmp_path, [ANY], "--alias", "other") as runs:
        runs.ask(ASKS_NAME)
        runs.check_output(NAME, is_there=False)
        runs.check_output(program.no_model)
    assert {request.status for request in runs.sent()} == {404}


def test_model_that_crashes(program: Program, tmp_path: Path):
    """The program reports the error, perhaps after it has asked again."""
    with session(program, tmp_path, [Rule("", CRASH)], "--any-name") as runs:
        runs.ask(ASKS_NAME)
        runs.check_output(program.crash)
