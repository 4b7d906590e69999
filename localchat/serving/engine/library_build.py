"""The installed llama-cpp-python, described without loading it, and the command that rebuilds it for this CPU."""

from __future__ import annotations

import contextlib
import sys

# The release that messages recommend. Struct layouts change between releases; this one is tested.
LIBRARY = "llama-cpp-python==0.3.36"
MATRIX_INSTRUCTIONS_OFF = (
    "this build of llama.cpp crashes at this CPU's matrix instructions (AMX), so they are off; "
    "for full speed rebuild it"
)
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
    flags = _cpu_flags()
    switches = ["-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=ON" for flag, name in _CPU_SWITCHES.items() if flag in flags)]
    return (
        f'CMAKE_ARGS="{" ".join(switches)}" {sys.executable} -m pip install '
        f"--force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python {LIBRARY}"
    )


def _cpu_flags() -> list[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return sorted(value.split())
    return []


def has_matrix_instructions() -> bool:
    """Whether this CPU announces AMX."""
    return "amx_tile" in _cpu_flags()
