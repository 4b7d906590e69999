"""A program that talks to the server: its installation, and its runs with a home folder of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.documents import ROOT, with_address
from tests.support.interpreters import interpreter

CONFIGURATION = ROOT / "examples" / "configuration"
# The folder of the installed programs, with a folder for each package. They are not in the environment of the project.
INSTALLED = ROOT / ".programs"
# uv installs the packages from PyPI in seconds, and their dependencies in the versions of a date.
UV, UV_VERSION, DATE = INSTALLED / "uv" / "bin" / "uv", "0.13.8", "2026-11-28"
# The time limits of an installation, of a run, and of the end of the processes that a run leaves.
INSTALL_S, RUN_S, END_S = 600, 300, 10
# The variables that a run takes from this process. All others, such as keys and proxies, stay away.
VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR")


class InstallError(Exception):
    """The program cannot be installed here. The message says why."""


@dataclass(frozen=True)
class Program:
    """One version of a program of npm or PyPI, and the commands with which the tests use it."""

    name: str  # With the interface that it uses, if that is not its usual one.
    package: str
    version: str
    # The command that asks a question, and the one that asks it in the conversation of the last run; None: the program
    # has no such command. In both, QUESTION is the question, and FOLDER the working folder.
    ask: Sequence[str]
    ask_again: Sequence[str] | None = None
    # The files of examples/configuration that configure the program, with their paths below the home folder.
    files: Mapping[str, str] = field(default_factory=dict)
    # What other texts these files have instead, such as for another interface of the server.
    replaced: Mapping[str, str] = field(default_factory=dict)
    # The file of examples/configuration that sets its variables, which a shell reads before it starts the program.
    script: str | None = None
    # More variables, such as those that turn off the search for updates.
    variables: Mapping[str, str] = field(default_factory=dict)
    # The call with which the model reads the file NAME of the working folder: a tool of the program, and its arguments,
    # in which FOLDER is the working folder. None: the program has no tools.
    call: tuple[str, Mapping[str, Any]] | None = None
    # What the program prints if the prompt is too long, if the server has no such model, and if the model crashes: most
    # of them the message of the server.
    too_long: str = "maximum context length is 100 tokens"
    no_model: str = "there is no model 'local' here"
    crash: str = "was killed by SIGKILL"

    @property
    def folder(self) -> Path:
        return INSTALLED / self.package

    @property
    def _stamp(self) -> Path:
        return self.folder / "version.txt"

    @property
    def is_installed(self) -> bool:
        return self._stamp.exists() and self._stamp.read_text(encoding="utf-8") == self.version

    def install(self) -> None:
        """Install this version. Raises InstallError."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for command in self.install_commands():
            done = run_in_group(command, self.folder, dict(os.environ), INSTALL_S)
            if done.status != 0:
                raise InstallError(f"{command[0]}: {done.output[-500:]}")
        self._stamp.write_text(self.version, encoding="utf-8")

    def install_commands(self) -> Iterator[list[str]]:
        """The commands that install it in its folder. Raises InstallError."""
        raise NotImplementedError

    @property
    def commands(self) -> Path:
        """The folder of its commands."""
        raise NotImplementedError


class NpmProgram(Program):
    """A program for Node."""

    def install_commands(self) -> Iterator[list[str]]:
        options = ["--no-audit", "--no-fund", "--prefix", str(self.folder)]
        yield ["npm", "install", *options, f"{self.package}@{self.version}"]

    @property
    def commands(self) -> Path:
        return self.folder / "node_modules" / ".bin"


@dataclass(frozen=True)
class PyPIProgram(Program):
    """A program or a library for Python, in an environment of its own. A library is used by a program of the tests."""

    python: Sequence[str] = ("3.12", "3.11")  # The versions of Python for which it is made, the best first.
    excluded: Sequence[str] = ()  # Dependencies that the tests do not need and that are not installed.

    def install_commands(self) -> Iterator[list[str]]:
        python = next(filter(None, map(interpreter, self.python)), None)
        if python is None:
            raise InstallError(f"there is no Python {' or '.join(self.python)}")
        if not UV.exists():
            environment = UV.parents[1]
            yield [python, "-m", "venv", str(environment)]
            yield [str(environment / "bin" / "pip"), "install", "--quiet", f"uv=={UV_VERSION}"]
        excluded = self.folder / "excluded.txt"
        excluded.write_text("\n".join(self.excluded), encoding="utf-8")
        yield [str(UV), "venv", "--quiet", "--allow-existing", "--python", python, str(self.folder)]
        options = ["--quiet", "--python", str(self.folder), "--exclude-newer", DATE, "--excludes", str(excluded)]
        yield [str(UV), "pip", "install", *options, f"{self.package}=={self.version}"]

    @property
    def commands(self) -> Path:
        return self.folder / "bin"


@dataclass(frozen=True)
class Run:
    """A run of a program that has ended."""

    status: int | None  # None: the time limit ended it.
    output: str  # What it wrote to stdout and to stderr.


class Workspace:
    """A home folder with the configuration of a program, and a working folder, for runs that may belong together."""

    def __init__(self, program: Program, folder: Path, base_url: str) -> None:
        self.program = program
        self.home, self.work = folder / "home", folder / "work"
        for path in (self.home, self.work):
            path.mkdir()
        self._script = self.home / "variables.sh"
        self._write(program.script, self._script, base_url)
        for name, place in program.files.items():
            self._write(name, self.home / place, base_url)

    def _write(self, name: str | None, path: Path, base_url: str) -> None:
        """Write a file of examples/configuration with the address of the server."""
        text = (CONFIGURATION / name).read_text(encoding="utf-8") if name else ""
        for old, new in self.program.replaced.items():
            text = text.replace(old, new)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(with_address(text, base_url), encoding="utf-8")

    def ask(self, question: str) -> Run:
        return self._run(self.program.ask, question)

    def ask_again(self, question: str) -> Run:
        assert self.program.ask_again is not None
        return self._run(self.program.ask_again, question)

    def filled(self, text: str) -> str:
        return text.replace("FOLDER", str(self.work))

    def _run(self, parts: Sequence[str], question: str) -> Run:
        command = [question if part == "QUESTION" else self.filled(part) for part in parts]
        variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        # Programs break the lines of their output by COLUMNS.
        variables |= {"HOME": str(self.home), "TERM": "dumb", "COLUMNS": "1000", **self.program.variables}
        variables["PATH"] = os.pathsep.join([str(self.program.commands), variables["PATH"]])
        shell = ["sh", "-euc", '. "$0" && exec "$@"', str(self._script)]
        try:
            return run_in_group([*shell, *command], self.work, variables, RUN_S)
        finally:
            end_all_of(self.home)


def run_in_group(command: Sequence[str], folder: Path, variables: Mapping[str, str], limit_s: float) -> Run:
    """Run a command in a process group of its own, which is killed at the end."""
    output = folder / f"output-{time.monotonic_ns()}.txt"
    options: Any = {"cwd": folder, "env": variables, "start_new_session": True, "stdin": subprocess.DEVNULL}
    try:
        # A file rather than a pipe: processes that the program leaves may keep a pipe open.
        with output.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **options)
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_S)
        return Run(status, output.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return Run(None, f"there is no command {command[0]}")
    finally:
        output.unlink()


def end_all_of(home: Path) -> None:
    """Kill the processes with this home folder. A program may start daemons, which leave its process group. Linux."""
    variable, deadline = f"HOME={home}".encode(), time.monotonic() + END_S
    while time.monotonic() < deadline:
        pids = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # It has ended, or belongs to another user.
                if variable in file.read_bytes().split(b"\0"):
                    pids.append(int(file.parent.name))
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
