"""Proves the engine in a child process before this one depends on it.

Some virtual machines announce the CPU's matrix extension (AMX) and then fault on its instructions: a
llama.cpp built for such a CPU dies with SIGSEGV at its first decode of quantised weights, and takes
the server with it. So a child decodes a few tokens with the settings that are about to be used. If a
signal kills it, a second child tries without `use_extra_bufts`, the option that brings those
instructions in. The verdict is remembered per build of the library, so later starts cost nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .values import EngineError, LoadOptions

log = logging.getLogger("localchat.engine")

# What messages say to install. Struct layouts change between releases: none may lead to one that was not tried.
LIBRARY = "llama-cpp-python==0.3.36"
# A tiny model is decoded in about a second; a GPU's first start may compile kernels for minutes.
_TIMEOUT_S = 300
# Where verdicts are remembered.
_FILE = "engine-proof.json"
# One verdict is some 300 bytes; builds come and go.
_MAX_VERDICTS = 16
# CPU features that llama.cpp has a switch for, by their names in /proc/cpuinfo.
_CPU_SWITCHES = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx512f": "AVX512",
    "avx512vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
}


def proven(options: LoadOptions, model_path: str) -> LoadOptions:
    """The options with which this machine's llama.cpp survives a decode of the (small, quantised) model.

    Raises:
        EngineError: it dies whatever the options, or cannot even load the model.
    """
    key = library_key(options)
    verdicts = read_verdicts(_FILE)
    if key not in verdicts:
        verdicts[key] = _use_extra_bufts(options, model_path)
        write_verdicts(_FILE, verdicts, _MAX_VERDICTS)
    return replace(options, use_extra_bufts=options.use_extra_bufts and verdicts[key])


def cache_folder() -> Path:
    """The user's cache folder for localchat, by the platform's custom.

    Raises:
        OSError: the user has no home, as in some containers.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    # Not by Path, which in Python 3.9 raises KeyError for a user without an entry.
    base = os.path.expanduser(base)
    if base.startswith("~"):
        raise FileNotFoundError("the user has no home folder")
    return Path(base, "localchat")


def _use_extra_bufts(options: LoadOptions, model_path: str) -> bool:
    killed_by = _run_child(options, model_path)
    if killed_by is None:
        return True
    plain = replace(options, use_extra_bufts=False)
    if not options.use_extra_bufts or _run_child(plain, model_path) is not None:
        raise EngineError(
            f"llama.cpp dies with {killed_by} at its first tokens on this machine; rebuild it: {rebuild_command()}"
        )
    log.warning(
        "this build of llama.cpp dies with %s on this machine's matrix instructions (AMX), so they stay off; "
        "for full speed rebuild it: %s",
        killed_by,
        rebuild_command(),
    )
    return False


def _run_child(options: LoadOptions, model_path: str) -> str | None:
    """Decodes in a child; the name of the signal that killed it, or None if it lived."""
    child = run_child(options, model_path, _TIMEOUT_S)
    if child.failure is not None:
        raise EngineError(f"llama.cpp cannot run the built-in model: {child.failure}")
    return child.killed_by


@dataclass(frozen=True)
class Child:
    """How a child process ended that decoded a few tokens; it lived if both are None."""

    killed_by: str | None
    """The name of the signal that killed it."""
    failure: str | None
    """Its error, if it ended with one."""
    output: str
    """What it wrote."""


def run_child(options: LoadOptions, model_path: str, timeout_s: float) -> Child:
    """Load a model and decode a few tokens of it in a child process, which ends with this one.

    Raises:
        EngineError: it takes too long.
    """
    # The child must find this very package, wherever it was imported from.
    package_parent = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package_parent, os.environ.get("PYTHONPATH", "")])}
    alive, ours = os.pipe()
    try:
        done = subprocess.run(
            child_command(model_path, options),
            env=environment,
            stdin=alive,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"llama.cpp decoded nothing within {timeout_s:.0f} s on this machine") from None
    finally:
        os.close(alive)
        os.close(ours)
    output = done.stderr.decode("utf-8", "replace").strip()
    killed_by = signal_name(done.returncode)
    has_failed = done.returncode != 0 and killed_by is None
    return Child(killed_by, (output.rpartition("\n")[2] or "it gave no reason") if has_failed else None, output)


def child_command(model_path: str, options: LoadOptions) -> list[str]:
    """The command line of the child: this module, run as a program."""
    return [sys.executable, "-m", __name__, model_path, to_json(options)]


def to_json(options: LoadOptions) -> str:
    return json.dumps(asdict(options))


def signal_name(returncode: int) -> str | None:
    """What killed a process, by its return code; None if it ended by itself."""
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-returncode).name
        return f"signal {-returncode}"
    # Windows ends a crashed process with an NTSTATUS, which starts with binary 11.
    return f"exception 0x{returncode:08X}" if returncode >= 0xC0000000 else None


def rebuild_command() -> str:
    """A command that builds llama-cpp-python for this CPU without AMX."""
    switches = [
        "-DGGML_NATIVE=OFF",
        *(f"-DGGML_{name}=ON" for flag, name in _CPU_SWITCHES.items() if flag in _cpu_flags()),
    ]
    return (
        f'CMAKE_ARGS="{" ".join(switches)}" {sys.executable} -m pip install '
        f"--force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python {LIBRARY}"
    )


def missing_switches(features: Iterable[str]) -> list[str]:
    """The instructions that this CPU has and a build with these features does not use, as llama.cpp names them."""
    flags = _cpu_flags()
    return [name for flag, name in _CPU_SWITCHES.items() if flag in flags and name not in features]


def _cpu_flags() -> list[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return sorted(value.split())
    return []


def library_key(options: LoadOptions) -> str:
    """What a verdict holds for: the library's files, the CPU (home folders travel), and the kind of use."""
    files = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in _library_files()]
    cpu = " ".join(flag for flag in _cpu_flags() if flag.startswith(("avx", "amx")))
    return "\n".join([*files, cpu, "gpu" if options.n_gpu_layers else "cpu"])


def _library_files() -> Iterator[Path]:
    folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if folder is None:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None or not spec.submodule_search_locations:
            raise EngineError(f"llama-cpp-python is not installed: pip install {LIBRARY}")
        folder = os.path.join(spec.submodule_search_locations[0], "lib")
    for path in sorted(Path(folder).iterdir()):
        if "ggml" in path.name or "llama" in path.name:
            yield path


def read_verdicts(name: str) -> dict[str, bool]:
    """The verdicts that a file of the cache folder has; none if it is missing or broken."""
    try:
        verdicts: Any = json.loads((cache_folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(verdicts, dict):
        return {}
    return {key: value for key, value in verdicts.items() if isinstance(value, bool)}


def write_verdicts(name: str, verdicts: dict[str, bool], n_max: int) -> None:
    """Write the newest verdicts. That they cannot be written is no error: the next start does the work again."""
    newest = dict(list(verdicts.items())[-n_max:])
    try:
        path = cache_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and moved: another server may read it at this moment.
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            json.dump(newest, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        log.info("%s is not remembered, the next start tries it again: %s", name, error)


def _decode_a_little(model_path: str, options: LoadOptions) -> None:
    """The child's work: a prompt of more than one row, for the matrix path, then single tokens."""
    from ..protocol.params import GenerationParams
    from .engine import Engine
    from .llama import load_backend
    from .values import GenerationRequest, WritesNoText

    with contextlib.suppress(WritesNoText), Engine(load_backend(model_path, options)).start() as engine:
        prompt = tuple(engine.tokenize("Hello! " * 32))
        with engine.submit([GenerationRequest(prompt, GenerationParams(max_tokens=4))]) as run:
            while run.is_running:
                run.take()


def end_with_parent() -> None:
    """End this process, a child, when its parent does."""

    def wait() -> None:
        os.read(0, 1)  # Nothing is ever written: this returns when the other end is closed.
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    # A crash is expected here: no core file, no dialogue.
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _decode_a_little(sys.argv[1], LoadOptions(**json.loads(sys.argv[2])))
    except EngineError as error:
        sys.exit(str(error))
