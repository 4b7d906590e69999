"""`--check`: whether a model works on this machine, as text, as JSON, and as an exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.engine import front, library_build, process
from localchat.serving.http.check import COULD_BE_BETTER, FAILS, WORKS, Report
from localchat.serving.models.catalog import DEMO_PATH

from .command import Done, run_command
from .engine_programs import CRASHES_AT_AMX


def run_check(*arguments: str) -> Done:
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    return run_command("--check", *arguments)


def test_report_as_json_has_the_choice_and_the_speed():
    done = run_check("--log-format", "json", "-c", "1k", "-np", "2")
    report: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (report["status"], [])
    assert report["status"] in (WORKS, COULD_BE_BETTER)
    assert report["versions"]["llama-cpp-python"] == library_build.LIBRARY.partition("==")[2]
    assert "CPU" in [device["kind"] for device in report["build"]["devices"]]
    model = report["model"]
    assert model["free_bytes"] > 1 << 20
    assert (model["path"], model["n_ctx_train"], model["has_chat_template"]) == (str(DEMO_PATH), 4096, True)
    assert (model["n_ctx"], model["parallel"], model["n_ctx_reason"]) == (1024, 2, "set by --ctx")
    # One buffer for all requests, or one for each request and some for idle prefixes.
    assert model["kv_cache_tokens"] in {n * 1024 for n in range(2, 11)}
    assert min(report["speed"]["prompt_per_second"], report["speed"]["tokens_per_second"]) > 1


def test_report_as_text_ends_with_the_result():
    done = run_check()
    *lines, result = done.stdout.splitlines()
    assert result == {WORKS: "it works", COULD_BE_BETTER: "it works, and could be better"}[done.returncode]
    names = ("versions ", "build ", "device ", "model ", "speed ")
    assert all(any(line.startswith(name) for line in lines) for name in names)
    assert any("n ctx 4096" in line and "n ctx reason that of the model" in line for line in lines)


def test_model_that_cannot_be_served_is_a_problem(tmp_path: Path):
    """The problem names both sizes of a truncated file. The last line of llama.cpp's log would not."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(DEMO_PATH.read_bytes()[:100_000])
    done = run_check(str(cut))
    assert done.returncode == FAILS
    *_, problem, result = done.stdout.splitlines()
    size = DEMO_PATH.stat().st_size
    assert problem.startswith(
        f"problem  cannot load {cut}: the file has 100000 bytes, its tensors need {size}: it was cut, so"
    )
    assert result == "it does not work"


@pytest.mark.parametrize(
    ("problems", "advice", "status"), [([], [], WORKS), ([], ["a"], COULD_BE_BETTER), (["p"], ["a"], FAILS)]
)
def test_status_is_that_of_the_worst_finding(problems: list[str], advice: list[str], status: int):
    assert Report(problems=problems, advice=advice).status == status


def test_instructions_that_a_build_does_not_use_are_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library_build, "_cpu_flags", lambda: ["avx", "avx2", "avx512f", "sse3"])
    assert library_build.missing_switches(["SSE3", "AVX", "FMA"]) == ["AVX2", "AVX512"]
    assert library_build.missing_switches(["AVX", "AVX2", "AVX512"]) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a signal")
def test_matrix_instructions_that_crash_are_advice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(front, "has_matrix_instructions", lambda: True)
    monkeypatch.setattr(process, "engine_command", lambda number: [sys.executable, "-c", CRASHES_AT_AMX, str(number)])
    done = run_check()
    assert done.returncode == COULD_BE_BETTER
    [advice] = [line for line in done.stdout.splitlines() if "AMX" in line and line.startswith("advice ")]
    assert library_build.rebuild_command() in advice


def test_gpu_build_without_layers_on_a_gpu_is_advice(monkeypatch: pytest.MonkeyPatch):
    from localchat.serving.engine.llama import devices

    found = devices.read_build()
    if found["gpu"]:
        pytest.skip("llama.cpp is built for a GPU here")
    monkeypatch.setattr(devices, "read_build", lambda: {**found, "gpu": True})
    advice = "llama.cpp is built for a GPU, but no layer is on a GPU: check the driver"
    assert advice in run_check().stdout
    assert advice not in run_check("--gpu-layers", "0").stdout


def test_library_that_cannot_be_loaded_is_a_problem(tmp_path: Path):
    """A new process is needed, since this one has loaded llama.cpp."""
    environment = {**os.environ, "LLAMA_CPP_LIB_PATH": str(tmp_path)}
    command = [sys.executable, "-m", "localchat.server", "--check"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (FAILS, "")
    *_, problem, result = done.stdout.splitlines()
    assert problem.startswith(f"problem  cannot load {DEMO_PATH}: ")
    assert result == "it does not work"
