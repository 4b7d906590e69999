"""`python -m tests.install [CASE...]`: write a wheelhouse, install it in several ways, and print the times.

A case that is impossible on this machine is skipped and reported. The exit status is 1 if a case failed.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.interpreters import interpreter
from tools import wheelhouse

ROOT = Path(__file__).resolve().parents[2]
# Starts the installed server, and asks it through the installed client, which waits for it. The answer is printed as a
# whole, since the server writes to the same output.
CHAT = """
"$0/localchat-server" &
trap "kill $!" EXIT
answer=$("$0/localchat" --retries 20 "What is your name?")
echo "$answer"
"""
PYTHONS = ("3.9", "3.11", "3.13")
LIMIT_S = 600

# Runs a command in a new network namespace that has only a loopback interface.
ISOLATED = ("unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def run(command: Sequence[str | Path], cwd: Path = ROOT, fails: bool = False, **environment: str) -> str:
    """Run a command for at most `LIMIT_S`, which must succeed unless it `fails`; returns its output."""
    # Variables and files that configure pip on this machine must not affect the case.
    hidden = ("PIP_", "PYTHON", "MAKE", "OPENAI_", "LOCALCHAT_")
    own = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    environment = {**own, "PIP_CONFIG_FILE": os.devnull, **environment}
    parts = [str(part) for part in command]
    done = subprocess.run(parts, cwd=cwd, env=environment, text=True, timeout=LIMIT_S, check=False, **streams)
    assert bool(done.returncode) == fails, f"{' '.join(parts)}\n{done.stdout[-3000:]}"
    return done.stdout


def chat(commands: Path, cwd: Path, **environment: str) -> None:
    """Chat with the server of an installation, without a network."""
    text = run([*ISOLATED, "sh", "-c", CHAT, commands], cwd, **environment)
    assert "I am localchat" in text, text


def install_and_chat(folder: Path, scratch: Path, *, target: str = "localchat", **environment: str) -> Path:
    """Install the folder and chat with its server, without a network; returns the interpreter of the installation."""
    run([*ISOLATED, "sh", folder / "install.sh", scratch / target], scratch, **environment)
    chat(scratch / target / "bin", scratch, **environment)
    return scratch / target / "bin" / "python"


def no_network(folder: Path, scratch: Path) -> None:
    """In a network namespace without a network, with spaces in all paths."""
    copy = scratch / "my folder"
    copy.symlink_to(folder)
    python = install_and_chat(copy, scratch, target="my programs")
    for client in ("localchat.pyz", "chat_client.py"):
        assert "usage" in run([python, "-I", folder / client, "--help"], scratch)


def no_compiler(folder: Path, scratch: Path) -> None:
    """Without compiler, CMake and network: `make` uses the folder beside the project; without it, `make` fails."""
    commands = scratch / "commands"
    commands.mkdir()
    for name in ("sh", "make", "touch", "env", "dirname"):  # What `make` needs.
        (commands / name).symlink_to(shutil.which(name) or name)
    (commands / "python3").symlink_to(sys.executable)
    project = scratch / "project"
    for name in run(["git", "ls-files"]).splitlines():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    (scratch / "wheelhouse").symlink_to(folder)
    run([*ISOLATED, "env", f"PATH={commands}", "make", ".venv/test.stamp"], project)
    chat(project / ".venv" / "bin", project)
    run(["make", "clean"], project)
    empty = {"WHEELHOUSE": "", "LLAMA_CPP_INDEX": "", "PATH": str(commands)}
    text = run(["make", ".venv/server.stamp"], project, fails=True, **empty)
    assert "no C++ compiler was found" in text, text


def with_model(folder: Path, scratch: Path) -> None:
    """The folder with a model: the installed server has it under its name, also when the folder is gone."""
    kit, file = scratch / "kit", scratch / "tiny-Q4_0.gguf"
    shutil.copytree(folder, kit)
    shutil.copy(ROOT / "localchat" / "serving" / "models" / "demo.gguf", file)
    (scratch / "tiny-mmproj.gguf").write_bytes(b"a projector")
    options = ["--extras", "server,media,test", "--pythons", sys.executable, "--model", str(file)]
    assert wheelhouse.main([str(kit), *options]) == 0
    for name in (file.name, "tiny-mmproj.gguf"):
        assert f"  models/{name}\n" in (kit / "SHA256SUMS").read_text()
    assert "models/         tiny-Q4_0 tiny-" in (kit / "README.txt").read_text()
    home = {"HOME": str(scratch)}
    text = run([*ISOLATED, "sh", kit / "install.sh", scratch / "localchat"], scratch, **home)
    assert text.endswith("localchat-server tiny-Q4_0\n"), text
    shutil.rmtree(kit)
    commands = scratch / "localchat" / "bin"
    assert "tiny-Q4_0" in run([commands / "localchat-server", "--list"], scratch, **home)
    chat(commands, scratch, LOCALCHAT_MODEL="tiny-Q4_0", **home)


def under(version: str, folder: Path, scratch: Path) -> str | None:
    """With a version of Python; returns why it is skipped, if it is."""
    python = interpreter(version)
    if python is None:
        return f"SKIPPED: there is no python{version}"
    install_and_chat(folder, scratch, PYTHON=python)
    return None


CASES: dict[str, Callable[[Path, Path], str | None]] = {
    "no_network": no_network,
    "no_compiler": no_compiler,
    "with_model": with_model,
    **{f"python{version}": functools.partial(under, version) for version in PYTHONS},
}


def main() -> int:
    """Run the named cases, by default all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", help=f"of {', '.join(CASES)} (default: all)")
    options = parser.parse_args()
    if unknown := set(options.case) - set(CASES):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(CASES)}")
    try:
        run([*ISOLATED, "true"])
    except (AssertionError, OSError) as error:
        print(f"SKIPPED: `unshare --net` is not permitted here: {error}")
        return 0
    folder = ROOT / "wheelhouse"
    pythons = {sys.executable, *filter(None, map(interpreter, PYTHONS))}
    start = time.monotonic()
    if wheelhouse.main([str(folder), "--extras", "server,media,test", "--pythons", " ".join(sorted(pythons))]):
        return 1
    print(f"{'wheelhouse':20} {time.monotonic() - start:6.1f} s  ok", flush=True)
    failures = 0
    for name in options.case or CASES:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            try:
                result = CASES[name](folder, Path(scratch).resolve()) or "ok"
            except (AssertionError, subprocess.TimeoutExpired) as error:
                result = f"FAILED: {error}"
                failures += 1
        print(f"{name:20} {time.monotonic() - start:6.1f} s  {result}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
