"""The models of the benchmarks have the requested size, and the engine runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="part of the extra `bench`")

from bench import threads
from bench.model import main, number, shape_for
from localchat.serving.engine import LoadOptions, load

from .generations import request_for, submit


@pytest.mark.parametrize(("n_params", "n_vocab"), [(10e6, 152_000), (10e6, 2_000), (0.5e9, 152_000), (7e9, 32_000)])
def test_shape_is_near_the_requested_size_and_accepted_by_llama_cpp(n_params: float, n_vocab: int):
    shape = shape_for(n_params, n_vocab, 4096)
    assert shape.n_params == pytest.approx(n_params, rel=0.35)
    assert shape.n_heads % shape.n_kv_heads == 0


@pytest.mark.parametrize(("text", "value"), [("10M", 10e6), ("0.5B", 0.5e9), ("3k", 3e3), ("42", 42)])
def test_numbers_have_units(text: str, value: float):
    assert number(text) == value


def test_threads_and_spins_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "random.gguf"
    main([str(path), "--params", "1M", "--vocab", "2000", "--ctx", "512"])
    sizes = ["--seconds", "0.05", "--rounds", "1", "--streams", "2", "--threads", "1", "2", "--spins", "0"]
    threads.main([str(path), *sizes])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert [row[:-1] for row in rows] == [["2", "x", "0"], ["1", "thread"]]
    assert all(float(rate) > 0 for row in rows for rate in row[-1:])


def test_written_model_runs(tmp_path: Path):
    path = tmp_path / "random.gguf"
    main([str(path), "--params", "1M", "--vocab", "2000", "--ctx", "512"])
    with load(str(path), LoadOptions(n_parallel=2)) as engine:
        assert engine.facts.n_vocab == 2000
        prompt = tuple(engine.tokenize("<|im_start|>user\nHello, wörld!<|im_end|>\n"))
        assert prompt[0] == 1998
        finish = list(submit(engine, request_for(prompt, max_tokens=5, ignore_eos=True)))[-1]
        assert finish.usage.n_completion == 5  # type: ignore[union-attr]
