"""Short runs of the reliability programs. `make soak` runs them at full length."""

import sys

import pytest

pytest.importorskip("llama_cpp", reason="the real server needs llama-cpp-python")

from tests.soak import clients, fuzz
from tests.soak.__main__ import ARGUMENTS
from tests.soak.target import running_target

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def target():
    with running_target(*ARGUMENTS, "32") as running:
        yield running


@pytest.mark.parametrize(("program", "n"), [(fuzz.http, 50), (fuzz.json_bodies, 50), (fuzz.constraints, 5)])
def test_fuzz(target, program, n):
    assert f"{n} " in program(target, n, 1)


@linux
def test_load_and_kills_of_the_engine(target):
    line = clients.load(target, 1, 1, clients.QUESTIONS[:6], n_clients=16)
    assert "read" in line
    assert "MB an hour" in line
    assert "2 kills under 4 streams" in clients.kills(target, 2, 1, n_streams=4)


def test_damaged_files():
    assert "no crash" in fuzz.models(1, 1)
    assert "20 damaged images and sounds: " in fuzz.media(20, 1)
