"""`--check`: reports whether the model runs on this machine, with how much memory and context, and how fast.

Loads the model as the server does, and generates some tokens. Opens no port.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator

from ... import __version__
from ..core.errors import NotSupported
from ..core.params import GenerationParams, SamplingParams
from ..core.usage import Usage
from ..engine import EngineError, Front, GenerationRequest
from ..engine.library_build import MATRIX_INSTRUCTIONS_OFF, missing_switches, rebuild_command
from ..models.catalog import ModelFile, gigabytes
from .loading import LoadProgress, described, load_options, reason_of
from .options import Options

# Exit statuses: the model works; it cannot be served; it works, and the report has advice.
WORKS, FAILS, COULD_BE_BETTER = 0, 1, 3
_RESULTS = {WORKS: "it works", FAILS: "it does not work", COULD_BE_BETTER: "it works, and could be better"}

# The speed is measured with a prompt of this many tokens, and with this many output tokens.
_N_PROMPT, _N_OUTPUT = 256, 32
# The device file of each vendor's GPU driver on Linux, and the build option of llama.cpp for these GPUs.
_GPU_FILES = {"/dev/nvidiactl": "-DGGML_CUDA=on", "/dev/kfd": "-DGGML_HIP=on"}


def check(options: Options, file: ModelFile) -> int:
    """Write the report to stdout, and return the exit status."""
    lines, advice = [f"versions localchat {__version__}, Python {platform.python_version()}"], list[str]()
    try:
        lines += _build(advice)
        lines += _model(options, file, advice)
        status = COULD_BE_BETTER if advice else WORKS
    except (EngineError, OSError, MemoryError, ImportError) as error:
        lines.append(f"problem  cannot load {reason_of(file.path, error)}")
        status = FAILS
    with contextlib.suppress(BrokenPipeError):  # a reader such as `head` closed stdout
        print("\n".join([*lines, *(f"advice   {text}" for text in advice), _RESULTS[status]]), flush=True)
    return status


def _build(advice: list[str]) -> Iterator[str]:
    """How llama.cpp is built, and its devices."""
    from ..engine.llama.devices import read_build

    build = read_build()
    versions = ", ".join(f"{name} {version}" for name, version in build["versions"].items())
    yield f"build    {versions}: {' '.join(build['features'])}"
    for device in build["devices"]:
        n_free, n_total = device["n_free"], device["n_total"]
        free = f": {gigabytes(n_free)} of {gigabytes(n_total)} are free" if n_total else ""
        yield f"device   {device['name']} ({device['description']}){free}"
    if build["gpu"]:
        return
    missing = missing_switches(build["features"])
    if missing:  # The command of the advice builds for a CPU.
        switches = ", ".join(missing)
        advice.append(f"this CPU has {switches}, which llama.cpp is not built for; rebuild it: {rebuild_command()}")
    for path, switch in _GPU_FILES.items():
        if os.path.exists(path):
            advice.append(f"there is a GPU, and llama.cpp is built for the CPU alone: use {switch}")


def _model(options: Options, file: ModelFile, advice: list[str]) -> Iterator[str]:
    """What the server would use for the model, and the speed."""
    progress = LoadProgress(file.name)
    with Front(str(file.path), load_options(file, options), progress.show) as engine:
        facts = engine.start().facts
        progress.clear()
        yield from described(file, facts, progress.seconds)
        with contextlib.suppress(NotSupported):
            _generate(engine, 0)  # not measured: the first request reads the weights from disk
            usage = _generate(engine, 1)
            rates = usage.prompt_rate or 0, usage.completion_rate or 0
            yield f"speed    {rates[0]:.1f} tokens/s of a prompt, {rates[1]:.1f} tokens/s of output"
    if facts.chat_template is None:
        advice.append("the file has no chat template, so chats use a general one: prefer an instruct model")
    if not facts.use_extra_bufts:
        advice.append(f"{MATRIX_INSTRUCTIONS_OFF}: {rebuild_command()}")
    if options.n_gpu_layers != 0 and not facts.n_gpu_layers:
        from ..engine.llama.devices import read_build

        if read_build()["gpu"]:
            advice.append("llama.cpp is built for a GPU, but no layer is on a GPU: check the driver")


def _generate(engine: Front, i: int) -> Usage:
    n_prompt = min(_N_PROMPT, engine.facts.n_ctx // 2)
    # The prompts differ in their first token: a cached prefix would not be computed again.
    tokens = engine.tokenize(f"{i} is a number, and the quick brown fox jumps over the lazy dog. " * n_prompt)
    params = GenerationParams(max_tokens=_N_OUTPUT, ignore_eos=True)
    request = GenerationRequest(tuple(tokens[:n_prompt]), params, SamplingParams(temperature=0))
    with engine.submit([request]) as run:
        while run.is_running:
            run.take()
        return run.usage(0)
