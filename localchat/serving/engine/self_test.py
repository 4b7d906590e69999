"""The self-test of llama.cpp: a child process decodes a few tokens before the server does.

Some virtual machines announce the CPU's matrix extension (AMX) and then fault on its instructions: a llama.cpp built
for such a CPU crashes with SIGSEGV at its first decode of quantised weights. So a child process decodes with the
options of the server. If a signal kills it, a second child process decodes without `use_extra_bufts`, the option that
enables those instructions. The result is saved for each build of the library, so later starts need no test.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, replace

from ..core.child_processes import child_environment, signal_name
from .library_build import library_key, rebuild_command
from .saved_results import read_results, write_results
from .values import EngineError, LoadOptions

log = logging.getLogger("localchat.engine")

# A tiny model is decoded in about a second; the first start on a GPU may compile kernels for minutes.
_TIMEOUT_S = 300
# The file of results in the cache folder.
_FILE = "self-test.json"
# One result takes about 300 bytes.
_MAX_RESULTS = 16
MATRIX_INSTRUCTIONS_OFF = (
    "this build of llama.cpp crashes at this CPU's matrix instructions (AMX), so they are off; "
    "for full speed rebuild it"
)


def passing_options(options: LoadOptions, model_path: str) -> LoadOptions:
    """The options with which llama.cpp decodes a small quantised model on this machine without a crash.

    Raises:
        EngineError: llama.cpp crashes with all options, or cannot load the model.
    """
    key = library_key(options)
    results = read_results(_FILE)
    if key not in results:
        results[key] = _use_extra_bufts(options, model_path)
        write_results(_FILE, results, _MAX_RESULTS)
    return replace(options, use_extra_bufts=options.use_extra_bufts and results[key])


def _use_extra_bufts(options: LoadOptions, model_path: str) -> bool:
    """Whether llama.cpp passes the self-test with these options; False if only without `use_extra_bufts`."""
    killed_by = _signal_of_child(options, model_path)
    if killed_by is None:
        return True
    plain = replace(options, use_extra_bufts=False)
    if not options.use_extra_bufts or _signal_of_child(plain, model_path) is not None:
        raise EngineError(
            f"llama.cpp crashes with {killed_by} at its first tokens on this machine; rebuild it: {rebuild_command()}"
        )
    log.warning("%s (%s): %s", MATRIX_INSTRUCTIONS_OFF, killed_by, rebuild_command())
    return False


def _signal_of_child(options: LoadOptions, model_path: str) -> str | None:
    """Decodes in a child process. Returns the name of the signal that killed it; None if it ended by itself."""
    child = run_child(options, model_path, _TIMEOUT_S)
    if child.failure is not None:
        raise EngineError(f"llama.cpp cannot run the model of the self-test: {child.failure}")
    return child.killed_by


@dataclass(frozen=True)
class Child:
    """The end of a child process that decodes a few tokens."""

    killed_by: str | None
    """The name of the signal that killed it; None if it ended by itself."""
    failure: str | None
    """Its error, if it ended with one."""
    output: str
    """Its output on stderr."""


def run_child(options: LoadOptions, model_path: str, timeout_s: float) -> Child:
    """Load a model and decode a few tokens of it in a child process, which ends with this one.

    Raises:
        EngineError: It takes too long.
    """
    # The child process ends when the writing end is closed, which is when this process ends (`end_with_parent`).
    reading_end, writing_end = os.pipe()
    try:
        done = subprocess.run(
            child_command(model_path, options),
            env=child_environment(),
            stdin=reading_end,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"llama.cpp decoded nothing within {timeout_s:.0f} s on this machine") from None
    finally:
        os.close(reading_end)
        os.close(writing_end)
    output = done.stderr.decode("utf-8", "replace").strip()
    killed_by = signal_name(done.returncode)
    has_failed = done.returncode != 0 and killed_by is None
    return Child(killed_by, (output.rpartition("\n")[2] or "it gave no reason") if has_failed else None, output)


def child_command(model_path: str, options: LoadOptions) -> list[str]:
    """The command line of the child: this module, run as a program."""
    return [sys.executable, "-m", __name__, model_path, to_json(options)]


def to_json(options: LoadOptions) -> str:
    return json.dumps(asdict(options))


def _decode_a_little(model_path: str, options: LoadOptions) -> None:
    """The work of the child process: a prompt of many rows, which uses the matrix instructions, then single tokens."""
    from ..core.params import GenerationParams
    from .engine import Engine
    from .llama import load_backend
    from .values import GenerationRequest, WritesNoText

    with contextlib.suppress(WritesNoText), Engine(load_backend(model_path, options)).start() as engine:
        prompt = tuple(engine.tokenize("Hello! " * 32))
        with engine.submit([GenerationRequest(prompt, GenerationParams(max_tokens=4))]) as run:
            while run.is_running:
                run.take()


def end_with_parent() -> None:
    """End this process when its parent does."""

    def wait() -> None:
        os.read(0, 1)  # Nothing is ever written: this returns when the other end is closed.
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    # A crash is an expected result, so it needs no core file.
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _decode_a_little(sys.argv[1], LoadOptions(**json.loads(sys.argv[2])))
    except EngineError as error:
        sys.exit(str(error))
