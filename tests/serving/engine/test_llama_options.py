"""What each option sets in llama.cpp: the parameters of models, of contexts, of embeddings, and of samplers."""

import contextlib
import ctypes
import threading
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localchat.serving.core.errors import OutOfResources
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.llama import context_size, embed, load_backend
from localchat.serving.engine.llama import load as loading
from localchat.serving.engine.llama.context_factory import ContextFactory
from localchat.serving.engine.llama.devices import Device
from localchat.serving.engine.llama.embed import LlamaEmbedding, steps
from localchat.serving.engine.llama.library import L
from localchat.serving.engine.llama.placement import set_placement, with_gpu_layers
from localchat.serving.engine.llama.sampler import chain_steps
from localchat.serving.engine.llama.threads import ThreadCount
from localchat.serving.engine.values import EngineError, LoadOptions
from localchat.serving.models.memory import NotEnoughMemory
from localchat.serving.models.model_file import DEMO_PATH
from tests.support.demo_model import DEMO
from tests.support.tiny_models import write_mamba

GB = 1 << 30


def fields_of(params: Any) -> dict[str, Any]:
    """The fields of a struct of llama.cpp that are numbers, by their names."""
    values = {name: getattr(params, name) for name, *_ in params._fields_}
    return {name: value for name, value in values.items() if isinstance(value, (int, float, bool))}


def changes(params: Any, defaults: Any) -> dict[str, Any]:
    """The fields that differ from those of another struct."""
    before = fields_of(defaults)
    return {name: value for name, value in fields_of(params).items() if value != before[name]}


# Samplers.

# Each value differs from all others of its step, so that two in the wrong order are noticed.
SAMPLERS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "penalties": (
        {"penalty_last_n": 11, "repeat_penalty": 1.25, "frequency_penalty": 0.5, "presence_penalty": 0.75},
        ("penalties", 11, 1.25, 0.5, 0.75),
    ),
    "dry": (
        {"dry_multiplier": 0.5, "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 70},
        ("dry", 0.5, 1.5, 3, 70),
    ),
    "top_n_sigma": ({"top_n_sigma": 2.5}, ("top_n_sigma", 2.5)),
    "top_k": ({"top_k": 17}, ("top_k", 17)),
    "typical_p": ({"typical_p": 0.625, "min_keep": 3}, ("typical", 0.625, 3)),
    "top_p": ({"top_p": 0.375, "min_keep": 3}, ("top_p", 0.375, 3)),
    "min_p": ({"min_p": 0.125, "min_keep": 3}, ("min_p", 0.125, 3)),
    "xtc": (
        {"xtc_probability": 0.5, "xtc_threshold": 0.25, "min_keep": 3, "seed": 9},
        ("xtc", 0.5, 0.25, 3, 9),
    ),
    "temperature": ({"temperature": 0.875}, ("temp", 0.875)),
    "dynamic temperature": (
        {"temperature": 2, "dynatemp_range": 0.5, "dynatemp_exponent": 3},
        ("temp_ext", 2, 0.5, 3),
    ),
    "mirostat 1": (
        {"mirostat": 1, "mirostat_tau": 4, "mirostat_eta": 0.25, "seed": 9},
        ("mirostat", 9, 4, 0.25, 100),
    ),
    "mirostat 2": ({"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.25, "seed": 9}, ("mirostat_v2", 9, 4, 0.25)),
    "adaptive": (
        {"adaptive_target": 0.5, "adaptive_decay": 0.75, "seed": 9},
        ("adaptive_p", 0.5, 0.75, 9),
    ),
    "seed": ({"seed": 9}, ("dist", 9)),
}


@pytest.mark.parametrize(("values", "expected"), SAMPLERS.values(), ids=SAMPLERS)
def test_each_value_of_sampling_is_the_argument_of_its_sampler(values: dict[str, Any], expected: tuple[Any, ...]):
    assert expected in chain_steps(SamplingParams(**values))


def test_every_sampling_value_is_in_the_table_above():
    named = {name for values, _ in SAMPLERS.values() for name in values}
    others = {"samplers", "logit_bias", "dry_sequence_breakers"}
    assert {field.name for field in fields(SamplingParams)} == named | others


# Contexts.


@pytest.fixture(scope="module")
def model() -> ContextFactory:
    options = LoadOptions(n_parallel=3)
    owner = loading._load_model(DEMO, replace(options, n_gpu_layers=0), None)
    loaded: Any = ContextFactory(owner.pointer, options, [])
    loaded.owner = owner  # The weights are freed with it.
    return loaded  # type: ignore[no-any-return]


CONTEXTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "f16": ({}, {}),
    "q8_0": ({"kv_type": "q8_0"}, {"type_k": 8, "type_v": 8, "flash_attn_type": 1}),
    "q4_0": ({"kv_type": "q4_0"}, {"type_k": 2, "type_v": 2, "flash_attn_type": 1}),
    "threads": ({"n_threads": 7}, {"n_threads": 7, "n_threads_batch": 7}),
}


@pytest.mark.parametrize(("options", "expected"), CONTEXTS.values(), ids=CONTEXTS)
def test_options_of_the_context(model: ContextFactory, options: dict[str, Any], expected: dict[str, Any], monkeypatch):
    usual = model._context_params(1024, 5)
    monkeypatch.setattr(model, "options", replace(model.options, **options))
    assert changes(model._context_params(1024, 5), usual) == expected


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_vectors_take_the_same_memory_whatever_the_type_of_the_cache_is(model: ContextFactory, kv_type: str):
    """The context for vectors has the default type."""
    params, per_token = model._context_params(1024, 5), []
    for value in ("f16", kv_type):
        factory = ContextFactory(model.pointer, replace(model.options, kv_type=value), model.gpus)
        per_token.append(factory.vector_pools(params)[0].per_token)
    assert per_token[1] == pytest.approx(per_token[0], rel=0.02)


@pytest.mark.parametrize(("n_streams", "n_sequences"), [(0, 27), (5, 5)])
def test_context_of_each_layout(model: ContextFactory, n_streams: int, n_sequences: int):
    params = model._context_params(4096, n_streams)
    assert (params.n_ctx, params.n_seq_max, params.kv_unified) == (4096, n_sequences, not n_streams)
    assert (params.n_batch, params.n_ubatch, params.n_outputs_max) == (2048, 512, 27)


# Models, and what is on GPUs.

MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mapped": ({}, {}),
    "not mapped": ({"use_mmap": False}, {"load_mode": L.LLAMA_LOAD_MODE_NONE}),
    "locked": ({"use_mlock": True}, {"load_mode": L.LLAMA_LOAD_MODE_MMAP_MLOCK}),
    "locked, not mapped": ({"use_mmap": False, "use_mlock": True}, {"load_mode": L.LLAMA_LOAD_MODE_MLOCK}),
    "layers": ({"n_gpu_layers": 3}, {"n_gpu_layers": 3}),
    "no repacking": ({"use_extra_bufts": False}, {"use_extra_bufts": False}),
    "main GPU": ({"main_gpu": 2}, {"main_gpu": 2}),
    "one GPU": ({"split_mode": "none"}, {"split_mode": 0}),
    "rows": ({"split_mode": "row"}, {"split_mode": 2}),
}


@pytest.mark.parametrize(("options", "expected"), MODELS.values(), ids=MODELS)
def test_options_of_the_model(options: dict[str, Any], expected: dict[str, Any]):
    params, usual = L.llama_model_default_params(), L.llama_model_default_params()
    set_placement(usual, LoadOptions(n_gpu_layers=-1))
    set_placement(params, LoadOptions(**{"n_gpu_layers": -1, **options}))
    assert changes(params, usual) == expected


def test_shares_of_gpus_are_in_their_order_and_no_more_than_devices():
    params = L.llama_model_default_params()
    kept = set_placement(params, LoadOptions(n_gpu_layers=-1, tensor_split=(3.0, 1.0)))
    assert list(params.tensor_split[:3]) == [3.0, 1.0, 0.0]
    assert kept
    n_devices = L.llama_max_devices()
    with pytest.raises(EngineError, match=f"has {n_devices + 1} shares, and llama.cpp can use {n_devices}"):
        set_placement(params, LoadOptions(n_gpu_layers=-1, tensor_split=(1.0,) * (n_devices + 1)))


def test_experts_have_an_override_that_names_their_tensors():
    params = L.llama_model_default_params()
    kept = set_placement(params, LoadOptions(n_gpu_layers=-1, cpu_moe=True))
    pattern, buffer, *end = (ctypes.c_void_p * 4).from_address(params.tensor_buft_overrides)
    assert pattern is not None
    assert rb"exps" in ctypes.string_at(pattern)
    assert buffer
    assert end == [None, None]
    assert kept


def gpu(name: str, n_free: int) -> Device:
    return Device(name, "a GPU", "RPC" if name.startswith("RPC") else "GPU", n_free)


def layers(path: Path, *gpus: Device, free: int | None = 1000 * GB, **options: Any) -> int | None:
    return with_gpu_layers(str(path), LoadOptions(**options), free, gpus).n_gpu_layers


@pytest.fixture
def projector(tmp_path: Path) -> str:
    """A projector whose memory is that of the built-in model and a fifth more."""
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(bytes(DEMO_PATH.stat().st_size))
    return str(path)


def test_projector_takes_the_memory_of_the_first_gpu_that_is_here(projector: str):
    """A second GPU, or that of a worker, keeps its memory for layers."""
    n_projector = DEMO_PATH.stat().st_size * 6 // 5
    # Half of the layers fit; with a projector as many fit if its GPU has its size more.
    half = DEMO_PATH.stat().st_size // 2
    plain = {"n_ctx": 256, "n_parallel": 1}
    expected = layers(DEMO_PATH, gpu("CUDA0", half), gpu("CUDA1", half // 2), **plain)
    assert (expected or 0) > 0
    seeing = {**plain, "mmproj": projector}
    with_projector = layers(DEMO_PATH, gpu("CUDA0", half + n_projector), gpu("CUDA1", half // 2), **seeing)
    assert with_projector == expected
    remote = layers(DEMO_PATH, gpu("RPC0", half), gpu("CUDA0", half // 2 + n_projector), **seeing)
    assert remote == expected
    assert (layers(DEMO_PATH, gpu("CUDA0", half), gpu("CUDA1", half // 2), **seeing) or 0) < (expected or 0)


@pytest.mark.parametrize("has_gpu", [True, False])
def test_projector_takes_the_memory_of_the_machine_only_without_a_gpu(projector: str, has_gpu: bool):
    gpus = [gpu("CUDA0", GB)] if has_gpu else []
    free = DEMO_PATH.stat().st_size + 1000
    if has_gpu:
        assert layers(DEMO_PATH, *gpus, free=free, mmproj=projector) == -1
    else:
        assert layers(DEMO_PATH, *gpus, free=free) == -1
        with pytest.raises(NotEnoughMemory, match="free beside its projector"):
            layers(DEMO_PATH, *gpus, free=free, mmproj=projector)


def test_layers_on_gpus_leave_memory_for_the_cells_of_all_requests():
    n_free = DEMO_PATH.stat().st_size
    found = [layers(DEMO_PATH, gpu("CUDA0", n_free), n_ctx=256, n_parallel=n_parallel) or 0 for n_parallel in (1, 4, 8)]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 3


@pytest.mark.parametrize(("max_cells_in_one_pass", "n_pass"), [(0, 512), (512, 512), (513, 513), (1000, 1000)])
def test_pass_holds_an_image_that_cannot_be_divided(max_cells_in_one_pass: int, n_pass: int, monkeypatch):
    made, limits = [], []

    def projector(path: str, owner: Any, **options: Any) -> Any:
        made.append((path, options))
        values = {"max_cells_in_one_pass": max_cells_in_one_pass, "modalities": ("image",), "is_encoding": False}
        return SimpleNamespace(**values, limit_pass=limits.append)

    monkeypatch.setattr("localchat.serving.engine.media.projector.LlamaProjector", projector)
    monkeypatch.setattr(loading, "projector_bytes", lambda path: 1)
    monkeypatch.setattr("localchat.serving.engine.llama.placement.projector_bytes", lambda path: 1)
    with contextlib.closing(load_backend(DEMO, LoadOptions(n_ctx=2048, mmproj="p.gguf", n_threads=1))) as backend:
        assert L.llama_n_ubatch(backend._context) == n_pass
        assert limits == [n_pass]
    assert made == [("p.gguf", {"n_threads": 1, "use_gpu": False})]


# Threads.


@pytest.mark.parametrize(
    ("n_params", "n_rows", "is_encoding", "n_threads"),
    [
        (500_000_000, 32, False, 2),
        (500_000_000, 33, False, 6),
        (5_000_000, 800, False, 2),
        (5_000_000, 801, False, 6),
        (0, 33, False, 6),
        (5_000_000, 1, True, 3),
    ],
)
def test_batch_has_fewer_threads_on_busy_cores_only_if_it_is_short(
    n_params, n_rows, is_encoding, n_threads, monkeypatch
):
    used = [(6, 6)]
    with contextlib.closing(load_backend(DEMO, LoadOptions(n_ctx=256))) as backend:
        backend.facts = replace(backend.facts, n_params=n_params)
        backend.projector = SimpleNamespace(is_encoding=is_encoding)
        backend._n_threads_set, backend._thread_count = 6, ThreadCount(6)
        backend._thread_count.n = 2  # as if other processes used the cores
        with monkeypatch.context() as patched:
            patched.setattr(L, "llama_decode", lambda context, rows: 0)
            patched.setattr(L, "llama_set_n_threads", lambda context, *numbers: used.append(numbers))
            assert backend._compute(SimpleNamespace(n_tokens=n_rows)) == 0
        backend.projector = None
    assert used[-1] == (n_threads, n_threads)


# Embeddings.


def test_short_inputs_share_steps_of_at_most_so_many_inputs_and_tokens():
    for n_inputs in (63, 64, 65, 128, 129):
        found = list(steps([1] * n_inputs, 256, 64))
        assert [len(step) for step in found] == [64] * (n_inputs // 64) + [n_inputs % 64] * (n_inputs % 64 > 0)
        assert [piece for step in found for piece in step] == [(i, 0, 1) for i in range(n_inputs)]
    for lengths in ([255, 1, 1], [256, 1], [257, 1], [1, 256], [600], [100, 100, 100]):
        found = list(steps(lengths, 256, 64))
        assert max(sum(stop - start for _, start, stop in step) for step in found) <= 256
        for i, length in enumerate(lengths):
            pieces = [piece for step in found for piece in step if piece[0] == i]
            assert [start for _, start, _ in pieces] == [0, *(stop for _, _, stop in pieces[:-1])]
            assert pieces[-1][2] == length
            assert len(pieces) == 1 or length > 256


@pytest.mark.cpu_only
@pytest.mark.parametrize("n_inputs", [63, 64, 65, 128, 129])
def test_vectors_of_many_short_inputs_are_those_of_each_alone(engine, n_inputs: int):
    inputs = [[300 + i % 7, 500 + i, 400] for i in range(n_inputs)]
    together = engine.backend.embed(inputs)
    assert len(together) == n_inputs
    for i in (0, 1, 62, n_inputs - 2, n_inputs - 1):
        (alone,) = engine.backend.embed([inputs[i]])
        assert list(together[i]) == pytest.approx(list(alone), abs=1e-4)


class NoContext(Exception):
    """A context was tried more often than there are sizes."""


def test_context_for_embeddings_is_made_smaller_down_to_the_least_and_then_is_an_error(engine, monkeypatch):
    sizes: list[int] = []

    def refuse(model: Any, params: Any) -> None:
        sizes.append(params.n_ctx - embed._N_ROWS)
        if len(sizes) > 20:
            raise NoContext

    monkeypatch.setattr(L, "llama_init_from_model", refuse)
    facts = replace(engine.facts, n_ctx=2048)
    with pytest.raises(OutOfResources, match=r"no memory for a context for embeddings: llama\.cpp could not create it"):
        LlamaEmbedding(engine.backend._model, facts, 1, contextlib.nullcontext)
    assert sizes == [2048, 1024, 512, 256]


@pytest.mark.parametrize("name", ["llama_model_is_recurrent", "llama_model_is_hybrid", None])
def test_recurrent_and_hybrid_models_have_few_states(engine, name: str | None, monkeypatch):
    if name:
        monkeypatch.setattr(L, name, lambda pointer: True)
    params = embed._params(engine.backend._model, engine.facts, 2048, takes_whole_inputs=False, n_threads=3)
    assert params.n_seq_max == (8 if name else 64)
    assert (params.n_ctx, params.n_batch, params.n_ubatch, params.n_outputs_max) == (2304, 256, 256, 256)
    assert (params.embeddings, params.kv_unified, params.n_threads, params.n_threads_batch) == (True, True, 3, 3)
    whole = embed._params(engine.backend._model, engine.facts, 512, takes_whole_inputs=True, n_threads=3)
    assert (whole.n_ctx, whole.n_batch, whole.n_ubatch) == (512, 512, 512)
    assert whole.pooling_type == L.LLAMA_POOLING_TYPE_MEAN


def test_hybrid_model_is_one_that_cannot_be_truncated(model: ContextFactory, monkeypatch):
    assert model.can_truncate
    for name in ("llama_model_is_recurrent", "llama_model_is_hybrid"):
        with monkeypatch.context() as patch:
            patch.setattr(L, name, lambda pointer: True)
            hybrid = ContextFactory(model.pointer, model.options, [])
            assert (hybrid.can_truncate, hybrid.n_ids) == (False, 1)
            pointer, _, limits = hybrid.new_context(hybrid.cache_pools(4 * GB))
            assert (limits.can_truncate, limits.is_unified, limits.max_drafted) == (False, True, 0)
            L.llama_free(pointer)


def test_output_layer_is_the_first_on_the_gpus(model: ContextFactory):
    """Of --gpu-layers N, llama.cpp has the output layer and the last N - 1 others on the GPUs."""
    n = model.n_layers
    for n_gpu_layers, n_on_gpus in ((0, 0), (1, 0), (2, 1), (n, n - 1), (n + 1, n), (-1, n)):
        loaded = ContextFactory(model.pointer, LoadOptions(n_gpu_layers=n_gpu_layers), [gpu("CUDA0", GB)])
        assert (loaded.n_on_gpus, loaded.is_on_gpus) == (n_on_gpus, n_on_gpus == n)
        assert loaded.uses_gpus is (n_gpu_layers != 0)


def test_limits_of_a_context_are_those_of_its_options(model: ContextFactory, monkeypatch):
    usual = model.options
    for options, is_unified, n_drafted in (
        ({}, False, 8),
        ({"speculates": False}, False, 0),
        ({"n_ctx": 300}, False, 8),
    ):
        monkeypatch.setattr(model, "options", replace(usual, **options))
        pointer, n_ctx, limits = model.new_context(model.cache_pools(4 * GB))
        n_each = -(-n_ctx // context_size.STEP) * context_size.STEP
        assert (limits.is_unified, limits.max_drafted, limits.n_parallel) == (is_unified, n_drafted, 3)
        assert (limits.n_slots, limits.n_cells) == (11, 11 * n_each)
        L.llama_free(pointer)


def test_recurrent_model_loads_with_one_buffer(tmp_path: Path):
    write_mamba(tmp_path / "mamba.gguf")
    with contextlib.closing(load_backend(str(tmp_path / "mamba.gguf"), LoadOptions(n_parallel=2))) as backend:
        assert (backend.limits.can_truncate, backend.limits.is_unified) == (False, True)


# Threads that wait.


def test_waiting_for_a_running_engine_ends_at_the_timeout(engine):
    """Else the vocabulary for constraints would first be read at a request."""
    ended: list[bool] = []
    waiting = threading.Thread(target=lambda: ended.append(engine.join(0.01)), daemon=True)
    waiting.start()
    waiting.join(60)
    assert ended == [False]
