"""The installed llama-cpp-python, described without loading it, and the command that rebuilds it for this CPU."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from .values import EngineError, LoadOptions

# The release that messages recommend. Struct layouts change between releases; this one is tested.
LIBRARY = "llama-cpp-python==0.3.36"
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


def rebuild_command() -> str:
    """A command that builds llama-cpp-python for this CPU without AMX."""
    switches = ["-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=ON" for name in _cpu_switches())]
    return (
        f'CMAKE_ARGS="{" ".join(switches)}" {sys.executable} -m pip install '
        f"--force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python {LIBRARY}"
    )


def missing_switches(features: Iterable[str]) -> list[str]:
    """llama.cpp's names of the instructions that this CPU has and a build with these features does not use."""
    return [name for name in _cpu_switches() if name not in features]


def _cpu_switches() -> list[str]:
    flags = _cpu_flags()
    return [name for flag, name in _CPU_SWITCHES.items() if flag in flags]


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
