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
from ..core.params import GenerationParams, SamplingParams
from ..core.usage import Usage
from ..engine import Engine, EngineError, Finish, GenerationRequest, ModelFacts, WritesNoText
from ..engine.library_build import missing_switches, rebuild_command
from ..engine.memory import free_memory
from ..engine.self_test import MATRIX_INSTRUCTIONS_OFF
from ..models.catalog import ModelFile
from ..models.sizes import gigabytes
from .loading import load_engine, reason_of
from .start_block import LoadProgress, context_fields, model_fields

# Exit statuses: the model works; it cannot be served; it works, and the report has advice.
WORKS, FAILS, COULD_BE_BETTER = 0, 1, 3

# The speed is measured with a prompt of this many tokens, and with this many output tokens.
_N_PROMPT, _N_OUTPUT = 256, 32
# The device file of each vendor's GPU driver on Linux, and the build option of llama.cpp for these GPUs.
_GPU_FILES = {"/dev/nvidiactl": "-DGGML_CUDA=on", "/dev/kfd": "-DGGML_HIP=on"}


@dataclass
class Report:
    """The findings, with the field names of the JSON report."""

    versions: dict[str, str] = field(default_factory=dict)
    """The versions of localchat, Python, llama-cpp-python and llama.cpp, and the system."""
    build: dict[str, Any] = field(default_factory=dict)
    """The CPU features and devices that llama.cpp is built for; empty if it cannot be loaded."""
    memory: dict[str, Any] = field(default_factory=dict)
    """The free bytes and what limits them; empty if they are not known."""
    model: dict[str, Any] = field(default_factory=dict)
    """The path, size and training context of the model; empty if it cannot be loaded."""
    choice: dict[str, Any] = field(default_factory=dict)
    """The context with its reason, the KV cache, the threads and the device that the server would use."""
    speed: dict[str, Any] = field(default_factory=dict)
    """Tokens per second of a prompt and of output; empty if nothing could be generated."""
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
    _check_memory(report)
    try:
        _check_build(report)
        _check_model(report, options, file)
    except (EngineError, OSError, MemoryError, ImportError) as error:
        report.problems.append(f"cannot load {reason_of(file.path, error)}")
    if options.json:
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
    from ..engine.llama.build import read_build

    build = read_build()
    report.versions.update({"llama-cpp-python": build.package, "llama.cpp": build.version})
    report.build = {
        "features": list(build.features),
        "gpu": build.supports_gpu,
        "devices": [asdict(device) for device in build.devices],
    }
    missing = missing_switches(build.features)
    if missing and not build.supports_gpu:  # The command of the advice builds for a CPU.
        advice = f"this CPU has {', '.join(missing)}, which llama.cpp is not built for; rebuild it: {rebuild_command()}"
        report.advice.append(advice)
    if not build.supports_gpu:
        switches = [switch for path, switch in _GPU_FILES.items() if os.path.exists(path)]
        report.advice += [f"there is a GPU, and llama.cpp is built for the CPU alone: use {s}" for s in switches]


def _check_memory(report: Report) -> None:
    free = free_memory()
    if free is not None:
        report.memory = {"free_bytes": free.n_bytes, "limit": free.limit}


def _check_model(report: Report, options: argparse.Namespace, file: ModelFile) -> None:
    progress = LoadProgress(file.name, "text")
    engine = load_engine(options, file, progress.show)
    try:
        progress.clear()
        facts = engine.facts
        report.model = {**model_fields(file, facts), "has_chat_template": facts.chat_template is not None}
        report.choice = {
            **context_fields(facts),
            "n_ctx_reason": _context_reason(options, facts),
            "load_seconds": round(progress.seconds, 2),
        }
        report.speed = _speed(engine)
    finally:
        engine.close()
    if facts.resources is not None and not facts.resources.use_extra_bufts:
        report.advice.append(f"{MATRIX_INSTRUCTIONS_OFF}: {rebuild_command()}")
    if facts.chat_template is None:
        report.advice.append("the file has no chat template, so chats use a general one: prefer an instruct model")
    if facts.resources is not None and report.build["gpu"] and options.gpu_layers and not facts.resources.n_gpu_layers:
        report.advice.append("llama.cpp is built for a GPU, but no layer is on a GPU: check the driver")


def _context_reason(options: argparse.Namespace, facts: ModelFacts) -> str:
    if options.ctx:
        return "set by --ctx"
    if facts.n_ctx >= facts.n_ctx_train:
        return "the context size of the model"
    limit = "at most half of the free memory, and at most the size of the weights (or 1 GiB)"
    return f"limited by memory: the KV cache takes {limit}"


def _speed(engine: Engine) -> dict[str, Any]:
    """Tokens per second of one request; empty for a model that writes no text."""
    try:
        _generate(engine, 0)  # not measured: the first request reads the weights from disk
        usage = _generate(engine, 1)
    except WritesNoText:
        return {}
    return {
        "prompt_per_second": _rounded(usage.prompt_rate),
        "tokens_per_second": _rounded(usage.completion_rate),
    }


def _generate(engine: Engine, i: int) -> Usage:
    n_prompt = min(_N_PROMPT, engine.facts.n_ctx // 2)
    # The prompts differ in their first token: a cached prefix would not be computed again.
    tokens = engine.tokenize(f"{i} is a number, and the quick brown fox jumps over the lazy dog. " * n_prompt)
    params = GenerationParams(max_tokens=_N_OUTPUT, ignore_eos=True)
    usages: list[Usage] = []
    request = GenerationRequest(tuple(tokens[:n_prompt]), params, SamplingParams(temperature=0))
    with engine.submit([request]) as run:
        while run.is_running:
            usages += [item.usage for _, item in run.take() if isinstance(item, Finish)]
    return usages[0]


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 1)


def _lines(report: Report) -> Iterator[str]:
    yield "versions " + ", ".join(f"{name} {version}" for name, version in report.versions.items() if version)
    if report.build:
        yield from _build_lines(report.build)
    if report.memory:
        limit = f" ({report.memory['limit']})" if report.memory["limit"] else ""
        yield f"memory   {gigabytes(report.memory['free_bytes'])} are free{limit}"
    if report.model:
        yield from _model_lines(report.model, report.choice, report.speed)
    yield from (f"advice   {text}" for text in report.advice)
    yield from (f"problem  {text}" for text in report.problems)
    results = {WORKS: "it works", FAILS: "it does not work", COULD_BE_BETTER: "it works, and could be better"}
    yield results[report.status]


def _build_lines(build: dict[str, Any]) -> Iterator[str]:
    yield "build    " + " ".join(build["features"]) + ("; GPU" if build["gpu"] else "; CPU alone")
    for device in build["devices"]:
        memory = (
            f": {gigabytes(device['n_free'])} of {gigabytes(device['n_total'])} are free" if device["n_total"] else ""
        )
        yield f"device   {device['name']} ({device['description']}){memory}"


def _model_lines(model: dict[str, Any], choice: dict[str, Any], speed: dict[str, Any]) -> Iterator[str]:
    yield f"model    {model['description']}, {gigabytes(model['weight_bytes'])}: {model['path']}"
    yield f"context  {choice['n_ctx']} tokens for each request: {choice['n_ctx_reason']}"
    if "device" in choice:
        yield (
            f"KV cache {choice['kv_cache_tokens']} tokens for {choice['parallel']} requests at once: "
            f"{gigabytes(choice['context_bytes'])}"
        )
        yield f"runs on  {choice['device']}; CPU threads: {choice['threads']}"
    yield f"loaded   in {choice['load_seconds']} s"
    if speed:
        yield (
            f"speed    {speed['prompt_per_second']} tokens/s of a prompt, {speed['tokens_per_second']} of output, "
            "for one request"
        )
