"""Where weights go: as many layers as fit on GPUs, refusal of what does not fit, and llama.cpp's options of memory."""

from __future__ import annotations

import pytest

from localchat.serving.engine import load
from localchat.serving.engine.values import LoadOptions, NotEnoughMemory
from localchat.serving.models.catalog import DEMO_PATH

pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")

from localchat.serving.engine.llama.devices import Device
from localchat.serving.engine.llama.placement import placed

from .engines import read, request_for, submit

N_BYTES = DEMO_PATH.stat().st_size
FREE = 1 << 40


def gpu(n_free: int) -> Device:
    return Device("CUDA0", "a GPU", "GPU", n_free, n_free)


def layers(n_gpu_layers: int | None, *gpus: Device, free: int = FREE, **options: object) -> int | None:
    given = LoadOptions(n_ctx=256, n_parallel=1, n_gpu_layers=n_gpu_layers, **options)  # type: ignore[arg-type]
    return placed(str(DEMO_PATH), given, free, gpus).n_gpu_layers


def test_as_many_layers_as_fit_are_on_the_gpus():
    assert layers(None) == -1  # no GPU: the number has no effect
    assert layers(None, gpu(FREE)) == -1
    some = layers(None, gpu(N_BYTES // 2))
    more = layers(None, gpu(N_BYTES // 4), gpu(N_BYTES // 2))
    assert some is not None
    assert more is not None
    assert 0 < some < more
    assert layers(None, gpu(0)) == -1  # the driver does not report its memory
    assert layers(3, gpu(FREE)) == 3


@pytest.mark.parametrize(
    ("n_gpu_layers", "gpus", "free", "message"),
    [
        (-1, [gpu(1_000_000)], FREE, r"the weights take 4 MB, and 1 MB are free on CUDA0: use --gpu-layers auto"),
        (0, [], 1_000_000, r"the weights take 4 MB, and 1 MB are free: use a smaller model or quantisation"),
        (None, [gpu(1_000_000)], 1_000_000, r"and 1 MB are free: use a smaller model"),
    ],
    ids=["all on a GPU", "machine", "both"],
)
def test_weights_that_do_not_fit_are_refused_with_both_sizes(n_gpu_layers, gpus, free, message):
    with pytest.raises(NotEnoughMemory, match=message):
        layers(n_gpu_layers, *gpus, free=free)


def test_experts_in_the_memory_of_the_machine_need_none_of_the_gpu():
    assert layers(None, gpu(1_000_000), cpu_moe=True) == -1


@pytest.mark.parametrize(
    "options",
    [
        {"kv_type": "q8_0"},
        {"kv_type": "q4_0"},
        {"use_mmap": False},
        {"cpu_moe": True},
        {"split_mode": "row", "tensor_split": (1.0,), "main_gpu": 0},
    ],
    ids=str,
)
def test_options_of_memory_load_a_model_that_generates(options):
    with load(str(DEMO_PATH), LoadOptions(n_ctx=512, n_parallel=1, **options)) as engine:
        assert engine.facts.n_ctx == 512
        _, end = read(submit(engine, request_for(tuple(engine.tokenize("Hello")), max_tokens=5, ignore_eos=True)))
        assert end.usage.n_completion == 5
