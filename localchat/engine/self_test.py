"""The self-test of llama.cpp: a child process decodes a few tokens before the server does.

Some virtual machines announce the CPU's matrix extension (AMX) and then fault on its instructions: a llama.cpp built
for such a CPU crashes with SIGSEGV at its first decode of quantised weights. So a child process decodes with the
options of the server. If a signal kills it, a second child process decodes without `use_extra_bufts`, the option that
enables those instructions. The result is saved for each build of the library, so later starts need no test.
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

# The release that messages recommend. Struct layouts change between releases; this one is tested.
LIBRARY = "llama-cpp-python==0.3.36"
# A tiny model is decoded in about a second; the first start on a GPU may compile kernels for minutes.
_TIMEOUT_S = 300
# The file of results in the cache folder.
_FILE = "self-test.json"
# One result takes about 300 bytes.
_MAX_RESULTS = 16
# llama.cpp's CMake switches for CPU features, by the name of the feature in /proc/cpuinfo.
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


def cache_folder() -> Path:
    """The cache folder of localchat for this user, by the conventions of the platform.

    Raises:
        OSError: The user has no home folder, as in some containers.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    # Path.expanduser of Python 3.9 raises KeyError for a user without an entry in the password database.
    base = os.path.expanduser(base)
    if base.startswith("~"):
        raise FileNotFoundError("the user has no home folder")
    return Path(base, "localchat")


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
    # The child process must import this package, wherever it is.
    package_parent = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package_parent, os.environ.get("PYTHONPATH", "")])}
    # The child process ends when the writing end is closed, which is when this process ends (`end_with_parent`).
    reading_end, writing_end = os.pipe()
    try:
        done = subprocess.run(
            child_command(model_path, options),
            env=environment,
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


def signal_name(returncode: int) -> str | None:
    """The name of the signal that killed a process, by its return code; None if it ended by itself."""
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
    """llama.cpp's names of the instructions that this CPU has and a build with these features does not use."""
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
    """The key of a result: the files of the library, the CPU (machines may share a home folder), and GPU or CPU."""
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


def read_results(name: str) -> dict[str, bool]:
    """The results in a file of the cache folder; none if it is missing or broken."""
    try:
        results: Any = json.loads((cache_folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(results, dict):
        return {}
    return {key: value for key, value in results.items() if isinstance(value, bool)}


def write_results(name: str, results: dict[str, bool], n_max: int) -> None:
    """Write the newest `n_max` results. An error is only logged: the next start repeats the test."""
    newest = dict(list(results.items())[-n_max:])
    try:
        path = cache_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another server may read the file: it is replaced as a whole.
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            json.dump(newest, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        log.info("%s cannot be written, the next start repeats the test: %s", name, error)


def _decode_a_little(model_path: str, options: LoadOptions) -> None:
    """The work of the child process: a prompt of many rows, which uses the matrix instructions, then single tokens."""
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
    """End this process when its parent does."""

    def wait() -> None:
        os.read(0, 1)  # Nothing is ever written: this returns when the other end is closed.
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    # A crash is a normal result here, and leaves no core file.
    with contextlib.suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        _decode_a_little(sys.argv[1], LoadOptions(**json.loads(sys.argv[2])))
    except EngineError as error:
        sys.exit(str(error))
