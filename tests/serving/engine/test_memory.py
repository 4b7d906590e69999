"""The free memory, by the files of each operating system, and the size of the context that it allows."""

import functools
import logging
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from gguf import PoolingType

from localchat.serving.core.errors import OutOfResources
from localchat.serving.engine.llama import context_factory, embed, library, load, load_backend
from localchat.serving.engine.llama.context_size import (
    LARGEST_SHARE,
    STEP,
    ContextSize,
    MemoryPool,
    context_size,
    warn_of_context,
)
from localchat.serving.engine.llama.devices import Device, built_for, free_memory, memory_for_models, parse_vm_stat
from localchat.serving.engine.values import LoadOptions
from localchat.serving.models.memory import NotEnoughMemory, OtherModels
from localchat.serving.models.model_file import DEMO_PATH
from tests.support.tiny_models import write_bert, write_mamba, write_sliding

DEMO = str(DEMO_PATH)
GB = 10**9
MEMINFO = "MemTotal: 8000000 kB\nMemFree: 100000 kB\nMemAvailable: 4000000 kB\n"
N_AVAILABLE = 4_096_000_000
GROUPS = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["libggml-cpu.so"], "the CPU alone"),
        (["libggml-cpu.so", "libggml-vulkan.so"], "vulkan, and finds no GPU: check its driver"),
        (["ggml-cuda.dll", "ggml-vulkan.dll"], "cuda, vulkan, and finds no GPU: check its driver"),
    ],
)
def test_build_for_a_gpu_is_known_by_its_files(files: list[str], words: str, tmp_path: Path, monkeypatch):
    """llama.cpp itself reports no support for GPUs if their driver does not work."""
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(library.L, "_base_path", tmp_path)
    assert built_for() == words


def test_free_memory_for_models_has_its_place():
    n_bytes, place = memory_for_models().split(" ", 1)
    assert int(n_bytes) > 0
    assert place.startswith("on ")


def group(folder: str, limit: object, used: int, cached: int = 0) -> dict[str, str]:
    """The files of a control group."""
    texts = {"max": limit, "current": used, "stat": f"cache 5\ninactive_file {cached}"}
    return {f"{folder}/memory.{name}": f"{text}\n" for name, text in texts.items()}


V1 = "sys/fs/cgroup/memory"


def group_v1(folder: str, limit: int, used: int) -> dict[str, str]:
    """The files of a control group of the first version."""
    texts = {"limit_in_bytes": limit, "usage_in_bytes": used, "stat": "inactive_file 7\ntotal_inactive_file 5"}
    return {f"{folder}/memory.{name}": f"{text}\n" for name, text in texts.items()}


NESTED_V1 = {**group_v1(V1, (1 << 63) - 4096, 3 * GB), **group_v1(f"{V1}/docker/a1", 2 * GB, GB)}
NESTED = {**group(f"{GROUPS}/user.slice", 2 * GB, GB), **group(f"{GROUPS}/user.slice/app.service", 3 * GB, GB)}


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="these systems have no such files")
@pytest.mark.parametrize(
    ("meminfo", "own_groups", "files", "expected"),
    [
        pytest.param(None, None, {}, None, id="no files"),
        pytest.param("MemTotal: 8 kB\n", None, {}, None, id="old kernel"),
        pytest.param(MEMINFO, None, {}, N_AVAILABLE, id="no groups"),
        pytest.param(MEMINFO, "?\n", {}, N_AVAILABLE, id="not a group"),
        pytest.param(MEMINFO, "0::/\n", group(GROUPS, GB, GB // 2, GB // 10), GB // 2 + GB // 10, id="container"),
        pytest.param(MEMINFO, "0::/\n", group(GROUPS, "max", GB), N_AVAILABLE, id="group without a limit"),
        pytest.param(MEMINFO, "0::/\n", group(GROUPS, GB, GB + 5), 0, id="usage above the limit"),
        pytest.param(MEMINFO, "0::/user.slice/app.service\n", NESTED, GB, id="an outer group has a lower limit"),
        pytest.param(MEMINFO, "5:cpu:/\n4:memory:/docker/a1\n", NESTED_V1, GB + 5, id="version 1"),
        pytest.param(MEMINFO, "4:a,memory:/x\n0::/\n", group_v1(V1, GB, GB), 5, id="version 1 in a container"),
    ],
)
def test_free_memory_is_the_least_of_all_sources(tmp_path, meminfo, own_groups, files, expected):
    for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": own_groups, **files}.items():
        if text is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    assert free_memory(tmp_path) == expected


def test_vm_stat_of_macos():
    pages = {"free": 10_000, "active": 300_000, "inactive": 20_000, "speculative": 3000, "purgeable": 400}
    text = "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
    text += "".join(f"Pages {name + ':':<30}{n:>12}.\n" for name, n in pages.items())
    assert parse_vm_stat(text) == 33_400 * 16384
    assert parse_vm_stat("something else") is None


# --- the size of the context ---

# 100 kB for each token: 10,000 tokens in a GB.
KV = 100_000


def on_machine(n_free: int | None, gpus: str = "") -> list[MemoryPool]:
    return [MemoryPool(n_free, KV, gpus=gpus)]


on_gpu = functools.partial(on_machine, gpus="CUDA0")
ON_BOTH = [MemoryPool(80 * GB, KV / 2, gpus="CUDA0"), MemoryPool(80 * GB, KV / 2)]


@pytest.mark.parametrize(
    ("options", "n_ctx_train", "n_weight_bytes", "pools", "expected"),
    [
        # The KV cache takes at most the size of the weights, or 1 GiB.
        ({}, 4096, GB, on_machine(100 * GB), ContextSize(4096, 10_496)),
        ({}, 131_072, GB, on_machine(100 * GB), ContextSize(10_496, 10_496)),
        ({}, 131_072, 5 * GB, on_machine(100 * GB), ContextSize(49_920, 49_920)),
        ({}, 131_072, 50 * GB, on_machine(100 * GB), ContextSize(131_072, 131_072)),
        # 4096 tokens for each request.
        ({}, 4096, 50 * GB, on_machine(100 * GB), ContextSize(4096, 32_768)),
        ({"n_parallel": 2}, 4096, 50 * GB, on_machine(100 * GB), ContextSize(4096, 8192)),
        ({"n_parallel": 64}, 2048, 50 * GB, on_machine(100 * GB), ContextSize(2048, 131_072)),
        # At most half of the free memory.
        ({}, 4096, GB, on_machine(2 * GB), ContextSize(4096, 9984)),
        ({}, 4096, GB, on_machine(GB // 10), ContextSize(512, 512)),
        ({}, 4096, GB, on_machine(0), ContextSize(512, 512)),
        ({}, 4096, 50 * GB, on_machine(None), ContextSize(4096, 32_768)),
        # The requested size, or more cells if the default has more.
        ({"n_ctx": 50_000}, 4096, GB, on_machine(100 * GB), ContextSize(50_000, 50_000)),
        ({"n_ctx": 300}, 4096, GB, on_machine(100 * GB), ContextSize(300, 2400)),
        ({"n_ctx": 300, "n_parallel": 1}, 4096, GB, on_machine(100 * GB), ContextSize(300, 512)),
        ({"n_ctx": 9_000}, 4096, GB, on_machine(GB), ContextSize(9_000, 9_000)),
        # On a GPU, whole contexts, or most of the memory; less if half of the layers are on the machine.
        ({"n_parallel": 64}, 2048, GB, on_gpu(80 * GB), ContextSize(2048, 131_072)),
        ({"n_parallel": 64}, 32_768, GB, on_gpu(80 * GB), ContextSize(32_768, 719_872)),
        ({}, 131_072, GB, on_gpu(8 * GB), ContextSize(69_120, 69_120)),
        ({"n_ctx": 75_000}, 131_072, GB, on_gpu(8 * GB), ContextSize(75_000, 75_000)),
        ({"n_parallel": 64}, 32_768, GB, ON_BOTH, ContextSize(10_496, 10_496)),
    ],
)
def test_size_of_the_context_is_requested_or_chosen(options, n_ctx_train, n_weight_bytes, pools, expected):
    assert context_size(LoadOptions(**options), pools, n_ctx_train, n_weight_bytes) == expected


@pytest.mark.parametrize(
    ("n_ctx", "n_ctx_train", "size", "words"),
    [
        (0, 4096, 4096, ""),
        (0, 4096, 2048, "the context has 2048 tokens, to save memory; the model can use 4096: --ctx 4096 takes"),
        (2048, 4096, 2048, ""),
        (4096, 4096, 4096, ""),
        (512, 0, 512, ""),  # Of a damaged header.
        (0, 0, 4096, ""),
        (4097, 4096, 4097, "--ctx 4097 is more than the 4096 tokens that the model was trained for"),
    ],
)
def test_context_unlike_that_of_training_warns(
    n_ctx: int, n_ctx_train: int, size: int, words: str, caplog: pytest.LogCaptureFixture
):
    warn_of_context(size, LoadOptions(n_ctx=n_ctx), n_ctx_train, [MemoryPool(None, KV)])
    assert [record.getMessage()[: len(words)] for record in caplog.records] == ([words] if words else [])


def test_context_that_does_not_fit_is_refused_with_both_numbers_and_the_largest():
    pools = [MemoryPool(4 * GB, KV, 10**6), MemoryPool(GB, KV / 2, 0, "CUDA0")]
    sizes = {"n_ctx_train": 4096, "n_weight_bytes": GB}
    with pytest.raises(NotEnoughMemory) as refused:
        context_size(LoadOptions(n_ctx=1_000_000), pools=pools, **sizes)
    assert refused.value.n_missing > 48 * GB
    n_largest = int(re.findall(r"--ctx (\d+)", str(refused.value))[0])
    assert str(refused.value) == (
        "a context of 1000000 tokens takes 50.0 GB, and 1.0 GB are free on CUDA0 beside the weights: "
        f"the largest that fits is --ctx {n_largest}"
    )
    assert context_size(LoadOptions(n_ctx=n_largest), pools=pools, **sizes).n_ctx == n_largest
    with pytest.raises(NotEnoughMemory):
        context_size(LoadOptions(n_ctx=n_largest + STEP), pools=pools, **sizes)
    with pytest.raises(NotEnoughMemory, match="not even the smallest one fits"):
        context_size(LoadOptions(n_ctx=512), pools=[MemoryPool(10, KV)], **sizes)
    with pytest.raises(NotEnoughMemory) as refused:  # by less than the step of the sizes
        context_size(LoadOptions(n_ctx=300), pools=[MemoryPool(400 * KV, KV)], **sizes)
    assert refused.value.n_missing > 0


@pytest.mark.parametrize(
    ("pools", "field", "elsewhere"),
    [(on_machine, "n_idle", "n_idle_on_gpus"), (on_gpu, "n_idle_on_gpus", "n_idle")],
)
def test_default_context_that_would_be_larger_without_idle_models_is_refused(pools, field, elsewhere):
    sizes = {"n_ctx_train": 8192, "n_weight_bytes": GB}
    small = context_size(LoadOptions(), pools=pools(GB), **sizes)
    assert small.n_ctx < 8192
    idle = LoadOptions(others=OtherModels(**{field: GB}))
    with pytest.raises(NotEnoughMemory) as refused:
        context_size(idle, pools=pools(GB), **sizes)
    assert refused.value.n_missing == 0
    # It has its whole context, the user has chosen it, or the free memory is not known.
    assert context_size(idle, pools=pools(8 * GB), **sizes).n_ctx == 8192
    assert context_size(replace(idle, n_ctx=1024), pools=pools(GB), **sizes).n_ctx == 1024
    assert context_size(idle, pools=pools(None), **sizes).n_ctx == 8192
    # The idle models are in another memory.
    assert context_size(LoadOptions(others=OtherModels(**{elsewhere: GB})), pools=pools(GB), **sizes) == small


# --- a real model ---


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models of several architectures: full attention, a sliding window, and a recurrent state."""
    folder = tmp_path_factory.mktemp("models")
    write_sliding(folder / "sliding.gguf", 64)
    write_mamba(folder / "recurrent.gguf")
    write_bert(folder / "encoder.gguf", PoolingType.MEAN)
    return {"full": DEMO, **{name: str(folder / f"{name}.gguf") for name in ("sliding", "recurrent", "encoder")}}


@pytest.mark.cpu_only
@pytest.mark.parametrize("n_ctx", [2048, 100_096])
@pytest.mark.parametrize("name", ["full", "sliding", "recurrent"])
def test_estimated_memory_of_the_context_is_near_that_of_llama_cpp(paths, caplog, name, n_ctx):
    """The error is below 3 tenths, or a MiB, so a context that the estimate refuses would not fit."""
    # Other tests turn off the log of llama.cpp.
    library.L.llama_log_set(library._on_log, None)
    caplog.set_level(logging.DEBUG, "localchat.engine.llama")
    backend = load_backend(paths[name], LoadOptions(n_ctx=n_ctx, n_parallel=1))
    backend.close()
    # A small context was created and measured before.
    log = caplog.text[caplog.text.rindex("constructing llama_context") :]
    buffers = re.findall(r"(?:output|KV|RS|compute) buffer size = +([\d.]+) MiB", log)
    allocated = sum(float(size) * (1 << 20) for size in buffers)
    assert 0.85 * allocated - (1 << 20) < backend.facts.n_context_bytes < 1.3 * allocated
    if n_ctx > 4096:
        assert "tokens that the model was trained for" in caplog.text


@pytest.mark.cpu_only
@pytest.mark.parametrize("n_ctx", [512, 8192])
@pytest.mark.parametrize(
    ("name", "kv_type"),
    [("full", "f16"), ("full", "q8_0"), ("sliding", "f16"), ("recurrent", "f16"), ("encoder", "f16")],
)
def test_estimated_memory_of_vectors_is_near_that_of_llama_cpp(paths, caplog, name, kv_type, n_ctx):
    library.L.llama_log_set(library._on_log, None)
    caplog.set_level(logging.DEBUG, "localchat.engine.llama")
    backend = load_backend(paths[name], LoadOptions(n_ctx=n_ctx, n_parallel=1, kv_type=kv_type))
    caplog.clear()
    try:
        backend.embed([[1, 2, 3]])
        params = embed._params(backend._model, backend.facts, backend._embedding._n_ctx, name == "encoder", 1)
        [memory] = backend._vector_pools(params)
    finally:
        backend.close()
    buffers = re.findall(r"(?:output|KV|RS|compute) buffer size = +([\d.]+) MiB", caplog.text)
    allocated = sum(float(size) * (1 << 20) for size in buffers)
    assert len(buffers) >= 2
    assert 0.85 * allocated - (1 << 20) < memory.n_bytes(params.n_ctx) < 1.3 * allocated + (5 << 20)


@pytest.mark.cpu_only
def test_vectors_take_only_memory_that_is_free(paths, monkeypatch):
    """The system would otherwise end the process, and with it the requests of all others."""
    backend = load_backend(paths["full"], LoadOptions(n_ctx=8192, n_parallel=1))
    try:
        monkeypatch.setattr(context_factory, "mapped_memory", lambda: 1 << 20)
        monkeypatch.setattr(context_factory, "free_memory", lambda: (1 << 20) + 10**6)
        reason = r"no memory for a context for embeddings: one of 512 tokens takes \d+ MB, and 1 MB are free"
        with pytest.raises(OutOfResources, match=reason):
            backend.embed([[1, 2, 3]])
        monkeypatch.setattr(context_factory, "free_memory", lambda: 40 * 10**6)
        [vector] = backend.embed([[1, 2, 3]])  # The failure is not kept.
        assert backend._embedding._n_ctx == 2048
        monkeypatch.setattr(context_factory, "free_memory", lambda: 0)
        assert backend.embed([[1, 2, 3]])[0] == vector  # It is there.
    finally:
        backend.close()


@pytest.mark.cpu_only
@pytest.mark.parametrize("gpu_name", ["CUDA0", "RPC0"])
def test_projector_takes_memory_where_it_is(gpu_name, tmp_path, monkeypatch):
    """On the first GPU, but on the machine if all GPUs are those of workers."""
    (tmp_path / "projector.gguf").write_bytes(b"")
    os.truncate(tmp_path / "projector.gguf", 5 << 20)
    gpus = [Device(gpu_name, "a GPU", "GPU", 1 << 40)]
    monkeypatch.setattr(load, "used_gpus", lambda options: gpus)
    monkeypatch.setattr(context_factory, "used_gpus", lambda options: gpus)
    monkeypatch.setattr(load, "free_memory", lambda: 1 << 30)
    monkeypatch.setattr(load, "_load_projector", lambda model, factory: mock.Mock(modalities=()))
    free_for_model = []
    measured = context_factory.ContextFactory.cache_pools
    monkeypatch.setattr(
        context_factory.ContextFactory,
        "cache_pools",
        lambda factory, n_free: free_for_model.append(n_free) or measured(factory, n_free),
    )
    options = LoadOptions(n_ctx=512, n_parallel=1, n_gpu_layers=2)
    facts = []
    for mmproj in (None, str(tmp_path / "projector.gguf")):
        backend = load_backend(DEMO, replace(options, mmproj=mmproj))
        backend.close()
        facts.append(backend.facts)
    n_on_machine = free_for_model[0] - free_for_model[1]
    n_on_gpu = facts[1].n_gpu_bytes - facts[0].n_gpu_bytes
    assert (n_on_machine, n_on_gpu) == ((0, 6 << 20) if gpu_name == "CUDA0" else (6 << 20, 0))
    assert 0 < facts[0].n_gpu_bytes < facts[0].n_bytes + facts[0].n_context_bytes


def test_huge_context_is_refused_before_it_is_created():
    before = free_memory()
    reason = r"100000000 tokens takes \d+\.\d GB.*the largest that fits is --ctx \d+"
    with pytest.raises(NotEnoughMemory, match=reason) as refused:
        load_backend(DEMO, LoadOptions(n_ctx=100_000_000))
    n_largest = int(str(refused.value).rpartition(" ")[2])
    assert 0.5 < n_largest * 4600 / (before * LARGEST_SHARE) < 2
