"""Short runs of the reliability programs. `make soak` runs them at full length."""

from __future__ import annotations

import functools
import importlib
import sys

import pytest

pytest.importorskip("llama_cpp", reason="the real server needs llama-cpp-python")

from .soak import engine_kills, faults, fuzz_bodies, fuzz_constraints, fuzz_http, fuzz_json, fuzz_models, load
from .soak.__main__ import target_at


@pytest.fixture(scope="module")
def target():
    with target_at(None) as running:
        yield running


@pytest.mark.parametrize(
    ("program", "n"),
    [(fuzz_http.run, 100), (fuzz_json.run, 100), (fuzz_constraints.run, 5), (fuzz_bodies.run, 2)],
    ids=["http", "json", "constraints", "bodies"],
)
def test_fuzz(target, program, n):
    assert f"{n} " in program(target, n, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_load(target):
    line = load.run(target, 1, 1, n_connections=16, settle_s=0.0)
    assert "read" in line
    assert "MB an hour" in line


@pytest.mark.parametrize("name", faults.RAISED)
def test_method_in_which_a_fault_is_raised_exists(name):
    module, *attributes = name.split(".")
    assert callable(
        functools.reduce(getattr, attributes, importlib.import_module(f"localchat.serving.engine.{module}"))
    )


def test_damaged_model_files():
    assert "no crash" in fuzz_models.run(1, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the engine process in /proc")
def test_kills_of_the_engine():
    assert "2 kills under 16 streams" in engine_kills.run(2, 1)
