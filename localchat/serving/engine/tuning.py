"""What was measured once: the release of llama.cpp, the sizes of a step on each kind of device, the environment.

What is measured while requests run is in pace.py. This module imports nothing of the package, so that a process can set
its environment before it loads any library.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping
from dataclasses import dataclass

# The release that messages recommend. Struct layouts change between releases; this one is tested.
LIBRARY = "llama-cpp-python==0.3.36"
# The number of times that a thread of the graph checks a barrier before it sleeps. GNU OpenMP reads it when it is
# loaded. On 2 quiet cores, a step of 135M parameters takes 17 ms with 50, 10 with 200, 8.5 with 1000, and 8 with 5000.
# With 20000, threads that wait keep the cores from the processes of the server and the client: one request in ten waits
# 1.4 times as long for its first token, and beside another process that computes, 0.5B parameters make a tenth fewer
# tokens. In return 10M parameters, whose threads then also wait for the next step, make 5 % more tokens with 1 and with
# 16 streams, but 8 % fewer with 4.
SPIN_COUNT = 5_000


@dataclass(frozen=True)
class Tuning:
    """The sizes of a step on one kind of device."""

    # Prompt tokens of a step that running sequences wait for. It bounds the gap between two of their tokens.
    n_prompt_beside: int
    # Prompt tokens of a step that no running sequence waits for. Cancels and new requests wait for its end.
    n_prompt_alone: int
    # The limit of draft tokens of a step, for all sequences together. pace.py chooses how many pay.
    max_drafted: int


# Measured on 2 cores with models of 0.2B and 0.5B parameters: 64 prompt rows take as long as 9 steps that decode one
# token, 128 rows as 16, 256 as 36, 512 as 73. So 64 rows delay running sequences by 9 steps, which cost the prompt a
# tenth, and larger steps are no faster for each row.
CPU = Tuning(n_prompt_beside=64, n_prompt_alone=256, max_drafted=8)
# On an H200, a step with 512 prompt rows of a 1.6B model takes as long as 4 steps that decode one token for each of 16
# sequences (44 and 11 ms).
GPU = Tuning(n_prompt_beside=512, n_prompt_alone=2048, max_drafted=24)


def set_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that llama.cpp and OpenMP read when they are loaded, unless the user has set them."""
    # Without this, an abort inside llama.cpp starts a debugger if one is installed, which takes seconds.
    environment.setdefault("GGML_NO_BACKTRACE", "1")
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))


def has_matrix_instructions() -> bool:
    """Whether this CPU announces AMX."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        return any(line.startswith("flags") and "amx_tile" in line.split() for line in lines)
    return False
