"""`--check`: reports whether the model runs on this machine, with how much memory and context, and how fast.

Loads the model as the server does, and generates some tokens. Opens no port.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ... import __version__
from ..core.errors import NotSupported
from ..core.params import GenerationParams, SamplingParams
from ..core.usage import Usage
from ..engine import EngineError, Front, GenerationRequest
from ..engine.library_build import MATRIX_INSTRUCTIONS_OFF, missing_switches, rebuild_command
from ..models.catalog import ModelFile, gigabytes
from .loading import load_options, reason_of
from .start_block import LoadProgress, model_fields

# Exit statuses: the model works; it cannot be served; it works, and the report has advice.
WORKS, FAILS, COULD_BE_BETTER = 0, 1, 3
_RESULTS = {WORKS: "it works", FAILS: "it does not work", COULD_BE_BETTER: "it works, and could be better"}

# The speed is measured with a prompt of this many tokens, and with this many output tokens.
_N_PROMPT, _N_OUTPUT = 256, 32
# The device file of each vendor's GPU driver on Linux, and the build option of llama.cpp for these GPUs.
_GPU_FILES = {"/dev/nvidiactl": "-DGGML_CUDA=on", "/dev/kfd": "-DGGML_HIP=on"}


@dataclass
class Report:
    """The findings, with the field names of the JSON report. A section that is not known is empty."""

    versions: dict[str, Any] = field(default_factory=dict)
    """The versions of localchat, Python, llama-cpp-python and llama.cpp, and the system."""
    build: dict[str, Any] = field(default_factory=dict)
    """The CPU features and devices that llama.cpp is built for."""
    model: dict[str, Any] = field(default_factory=dict)
    """The model file, the context, the KV cache, the threads and the device that the server would use."""
    speed: dict[str, Any] = field(default_factory=dict)
    """Tokens per second of a prompt and of output."""
    problems: list[str] = field(default_factory=list)
    """Reasons why the model cannot be served."""
    advice: list[str] = field(default_factory=list)
    """Improvements to the installation or the options."""

    @property
    def status(self) -> int:
        if self.problems:
            return FAILS
        return COULD_BE_BETTER if self.advice else WORKS


def check(options: argparse.Namespace, file: ModelFile) -> int:
    """Write the report to stdout, and return the exit status."""
    report = Report()
    try:
        _check_build(report)
        _check_model(report, options, file)
    except (EngineError, OSError, MemoryError, ImportError) as error:
        report.problems.append(f"cannot load {reason_of(file.path, error)}")
    if options.log_format == "json":
        print(json.dumps({"status": report.status, **asdict(report)}, indent=1))
    else:
        with contextlib.suppress(BrokenPipeError):  # a reader such as `head` closed stdout
            print("\n".join(_lines(report)), flush=True)
    return report.status


def _check_build(report: Report) -> None:
    report.versions = {
        "localchat": __version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    # Fails if the library cannot be loaded. The report then has only the versions above.
    from ..engine.llama.devices import read_build

    report.build = read_build()
    report.versions.update(report.build.pop("versions"))
    if report.build["gpu"]:
        return
    missing = missing_switches(report.build["features"])
    if missing:  # The command of the advice builds for a CPU.
        advice = f"this CPU has {', '.join(missing)}, which llama.cpp is not built for; rebuild it: {rebuild_command()}"
        report.advice.append(advice)
    switches = [switch for path, switch in _GPU_FILES.items() if os.path.exists(path)]
    report.advice += [f"there is a GPU, and llama.cpp is built for the CPU alone: use {s}" for s in switches]


def _check_model(report: Report, options: argparse.Namespace, file: ModelFile) -> None:
    progress = LoadProgress(file.name, "text")
    with Front(str(file.path), load_options(options), progress.show) as engine:
        facts = engine.start().facts
        progress.clear()
        reason = "set by --ctx" if options.ctx else "that of the model"
        if not options.ctx and facts.n_ctx < facts.n_ctx_train:
            reason = "limited by memory"
        report.model = {
            **model_fields(file, facts),
            "n_ctx_reason": reason,
            "has_chat_template": facts.chat_template is not None,
            "load_seconds": round(progress.seconds, 2),
        }
        report.speed = _speed(engine)
    if not facts.use_extra_bufts:
        report.advice.append(f"{MATRIX_INSTRUCTIONS_OFF}: {rebuild_command()}")
    if facts.chat_template is None:
        report.advice.append("the file has no chat template, so chats use a general one: prefer an instruct model")
    if report.build["gpu"] and options.gpu_layers != 0 and not facts.n_gpu_layers:
        report.advice.append("llama.cpp is built for a GPU, but no layer is on a GPU: check the driver")


def _speed(engine: Front) -> dict[str, Any]:
    """Tokens per second of one request; empty for a model that writes no text."""
    try:
        _generate(engine, 0)  # not measured: the first request reads the weights from disk
        usage = _generate(engine, 1)
    except NotSupported:
        return {}
    return {
        "prompt_per_second": round(usage.prompt_rate or 0, 1),
        "tokens_per_second": round(usage.completion_rate or 0, 1),
    }


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


def _lines(report: Report) -> Iterator[str]:
    """One line for each section, and one for each device, piece of advice and problem."""
    for name, section in asdict(report).items():
        if isinstance(section, list):
            yield from (f"{name.rstrip('s'):<9}{text}" for text in section)
            continue
        values = [f"{key.replace('_', ' ')} {_shown(key, value)}" for key, value in section.items() if key != "devices"]
        if values:
            yield f"{name:<9}{', '.join(values)}"
        for device in section.get("devices", ()):
            free = f": {gigabytes(device['n_free'])} of {gigabytes(device['n_total'])} are free"
            yield f"device   {device['name']} ({device['description']}){free if device['n_total'] else ''}"
    yield _RESULTS[report.status]


def _shown(key: str, value: Any) -> str:
    if key.endswith("bytes"):
        return gigabytes(value)
    if isinstance(value, list):
        return " ".join(value)
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "none"}[value]
    return str(value)
