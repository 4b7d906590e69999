"""Constants of the engine for each kind of device, and the environment of a process that loads llama.cpp.

Each value was measured once (docs/design.md, "The engine"); nothing is measured while requests run. This module
imports nothing of the package, so that a process can set its environment before it loads any library.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass

# The number of times that a thread of the graph checks a barrier before it sleeps. GNU OpenMP reads it when it is
# loaded. On 2 cores, 1000 to 5000 give a model of 0.5B parameters 2.5 times the tokens/s of the default beside a busy
# process, and 98 % of it on a quiet machine; 0 costs a third there.
SPIN_COUNT = 2000


@dataclass(frozen=True)
class Tuning:
    """The sizes of a step on one kind of device."""

    n_prompt_beside: int
    """Prompt tokens of a step that running sequences wait for. It bounds the gap between two of their tokens."""
    n_prompt_alone: int
    """Prompt tokens of a step that no running sequence waits for. Cancels and new requests wait for its end."""
    max_drafted: int
    """Draft tokens of a step, for all sequences together."""
    draft_model_tokens: int
    """The tokens that a draft model drafts for a sequence in a step."""


# Prompt tokens: on 2 cores a step of 128 takes as long as about 8 steps that decode, for every size of model, so that
# the other sequences cost the prompt an eighth. Drafts: each row costs a sixth of a step.
CPU = Tuning(n_prompt_beside=128, n_prompt_alone=512, max_drafted=8, draft_model_tokens=4)
# 512 rows, a pass of llama.cpp, take an H100 as long as about 4 steps that decode. Rows of drafts cost almost nothing.
GPU = Tuning(n_prompt_beside=512, n_prompt_alone=2048, max_drafted=24, draft_model_tokens=8)


def set_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variables that llama.cpp and OpenMP read when they are loaded, unless the user has set them."""
    # Without this, an abort inside llama.cpp starts a debugger if one is installed, which takes seconds.
    environment.setdefault("GGML_NO_BACKTRACE", "1")
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
