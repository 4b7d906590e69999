"""llama.cpp on the built-in model: facts, loading, placement, long prompts, preemption and drafts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import load
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.llama import context_size, sampling_from
from localchat.serving.engine.llama.devices import Device
from localchat.serving.engine.llama.embed import LlamaEmbedding
from localchat.serving.engine.llama.placement import with_gpu_layers
from localchat.serving.engine.tuning import set_environment
from localchat.serving.engine.values import EngineError, EngineStopped, LoadOptions
from localchat.serving.models.gguf import read_header
from localchat.serving.models.memory import NotEnoughMemory, OtherModels
from localchat.serving.models.model_file import DEMO_PATH
from tests.support.constraints import gbnf
from tests.support.demo_model import DEMO, GREEDY, assert_as_alone, assert_same_or_near_tie, chat, conversation, read
from tests.support.engines import request_for, submit


def test_facts_describe_the_model(engine: Engine):
    facts = engine.facts
    assert round(facts.n_params / 1e6) == 5
    assert facts.n_bytes == pytest.approx(Path(DEMO).stat().st_size, rel=0.1)
    assert facts.n_ctx == facts.n_ctx_train
    assert facts.n_cells >= facts.n_ctx
    assert facts.n_parallel == 32
    assert facts.chat_template is not None
    assert {"<|im_start|>", "<|im_end|>"} <= facts.special_tokens
    assert facts.metadata["general.architecture"] == "llama"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {}),
        ({"temp": "0.6", "top_k": "20"}, {"temperature": 0.6, "top_k": 20}),
        ({"top_p": "much", "penalty_repeat": "1.5", "unknown": "1"}, {"repeat_penalty": 1.5}),
        ({"xtc_probability": "0.5", "mirostat": "2"}, {"xtc_probability": 0.5, "mirostat": 2}),
        ({"sequence": "top-k;typ_p;temp"}, {"samplers": ("top_k", "typical_p", "temperature")}),
        ({"sequence": "top_k;magic"}, {}),
    ],
)
def test_defaults_come_from_the_metadata(metadata: dict[str, str], expected: dict[str, Any]):
    found = sampling_from({"top_k": "3", **{f"general.sampling.{name}": text for name, text in metadata.items()}})
    assert found == SamplingParams(**expected)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 100], ids=["empty", "cut", "other"])
def test_file_that_is_not_a_model_is_an_error_with_its_name(tmp_path: Path, content: bytes):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"bad\.gguf"):
        load(str(path), LoadOptions())


def test_progress_goes_from_0_to_1_and_the_loaded_engine_has_run_a_request_and_counts_none():
    seen: list[float] = []
    with load(DEMO, LoadOptions(), progress=seen.append) as engine:
        assert (seen[0], seen[-1]) == (0, 1)
        assert seen == sorted(seen)
        stats = engine.stats()
        assert (stats.n_computed, stats.n_cells_idle, stats.first_token_s.total) == (0, 0, 0)
        finish = read(engine, request_for(chat(engine, "Hello!"), max_tokens=2))[2]
        assert finish.usage.n_cached == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_spin_count_of_threads_has_a_default_that_the_user_may_override(given: dict[str, str], expected: str | None):
    environment = dict(given)
    set_environment(environment)
    assert environment.get("GOMP_SPINCOUNT") == expected


@pytest.mark.cpu_only
def test_long_prompt_beside_a_stream_gives_the_tokens_of_the_prompt_alone(engine: Engine):
    """The prompt is computed in several batches."""
    request = request_for(conversation(engine, 25), sampling=GREEDY, max_tokens=20, top_logprobs=5)
    alone = read(engine, request)[1]
    engine.forget()
    with submit(engine, request_for(chat(engine, "Count to ten."), sampling=GREEDY)) as other:
        next(other)
        assert_same_or_near_tie(alone, read(engine, request)[1])


@pytest.mark.cpu_only
def test_more_tokens_than_cells_all_finish_by_preemption(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    """Six conversations without a common prefix need more than 768 cells, so some are preempted."""
    prompts = [(*engine.backend.tokenize(f"{i} "), *conversation(engine, 5)) for i in range(6)]
    requests = [request_for(p, sampling=GREEDY, max_tokens=40, top_logprobs=5) for p in prompts]
    assert sum(map(len, prompts)) > 768
    monkeypatch.setattr(context_size, "SMALL_CACHE_BYTES", 0)  # The cache then takes as much memory as the weights.
    with load(DEMO, LoadOptions(n_ctx=256, n_parallel=8)) as small:
        assert small.facts.n_cells == 768
        assert_as_alone(engine, small, requests)


def test_tokens_can_be_read_after_the_engine_was_closed():
    engine = load(DEMO, LoadOptions())
    generation = submit(engine, request_for(chat(engine, "Hello!"), sampling=GREEDY))
    next(generation)
    engine.close()
    with contextlib.suppress(EngineStopped):
        assert list(generation)
    assert engine.texts.piece(300)
    assert engine.backend.tokenize("still there")


@pytest.mark.parametrize("has_context", [True, False])
def test_no_vector_is_computed_after_the_engine_was_closed(has_context: bool):
    """A thread may have waited for its turn. The contexts are freed."""
    engine = load(DEMO, LoadOptions(n_ctx=256))
    if has_context:
        assert len(engine.backend.embed([[1, 2]])) == 1
    engine.close()
    with pytest.raises(EngineStopped):
        engine.backend.embed([[1, 2]])


class Dropped(Exception):
    """A request was dropped."""


@pytest.mark.parametrize("n_steps", [0, 1, 2])
def test_dropped_request_for_vectors_computes_no_further_step(engine: Engine, n_steps: int, monkeypatch: Any):
    """Nor does it begin when its turn comes, after others."""
    compute, lock, computed = LlamaEmbedding._compute, engine.backend._embedding_lock, []

    def count(*arguments: Any) -> None:
        computed.append(arguments)
        compute(*arguments)

    def check() -> None:
        assert lock.locked()
        if len(computed) == n_steps:
            raise Dropped

    monkeypatch.setattr(LlamaEmbedding, "_compute", count)
    with pytest.raises(Dropped):
        engine.vectors.embed([[300] * 200] * 3, field="input", check=check)
    assert len(computed) == n_steps
    assert engine.vectors.embed([[300] * 200], field="input")[1] == 200


# --- drafts by prompt lookup ---


PENALTIES = SamplingParams(temperature=0, repeat_penalty=1.3, dry_multiplier=0.8)
PROMPTS = [
    "Repeat after me: the green boat goes to the small green island and the green boat goes home.",
    'Copy this: {"name": "Ada", "born": 1815, "tags": ["math", "math", "math"], "name2": "Ada"}',
    "What is your name?",
    "Count to thirty.",
]


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with load(DEMO, LoadOptions(n_parallel=4, speculates=False)) as engine:
        yield engine


@pytest.mark.usefixtures("drafts_cost_nothing")
@pytest.mark.cpu_only
@pytest.mark.parametrize("sampling", [GREEDY, PENALTIES], ids=["greedy", "penalties"])
def test_texts_with_drafts_are_those_without(plain: Engine, engine: Engine, sampling: SamplingParams):
    options = {"sampling": sampling, "max_tokens": 60, "ignore_eos": True, "top_logprobs": 5}
    requests = [request_for(chat(plain, text), **options) for text in PROMPTS]
    assert_as_alone(plain, engine, requests)
    assert plain.stats().n_drafted == 0


@pytest.mark.usefixtures("drafts_cost_nothing")
@pytest.mark.cpu_only
def test_drafts_under_a_grammar_change_no_text(plain: Engine, engine: Engine):
    options = {"constraint": gbnf("root ::= ([ab] ){40}"), "max_tokens": 200}
    request = request_for(chat(plain, "Hello!"), sampling=GREEDY, **options)
    text, _, finish = read(engine, request)
    assert text == read(plain, request)[0]
    assert finish.usage.n_drafted >= finish.usage.n_draft_accepted > 0


@pytest.mark.usefixtures("drafts_cost_nothing")
@pytest.mark.cpu_only
def test_conversation_continues_after_rejected_drafts(plain: Engine, engine: Engine):
    """The next turn of a conversation finds the cells of the last one, and none of a rejected draft."""
    prompt = conversation(plain, 5)
    # Three equally likely tokens: a draft from an earlier occurrence is sometimes accepted.
    likely = tuple((id, 10_000.0) for id in (42, 43, 44))
    dice = SamplingParams(temperature=100, top_k=0, top_p=1, logit_bias=likely, seed=1)
    _, tokens, finish = read(engine, request_for(prompt, sampling=dice, max_tokens=80))
    assert {token.id for token in tokens} == {42, 43, 44}
    assert finish.usage.n_drafted > finish.usage.n_draft_accepted > 0
    turn = (*prompt, *(token.id for token in tokens))
    options = {"sampling": GREEDY, "max_tokens": 40, "ignore_eos": True, "top_logprobs": 5}
    following = request_for((*turn, *chat(plain, "Go on!")), **options)
    plain.forget()
    _, alone, _ = read(plain, following)
    _, cached, end = read(engine, following)
    assert end.usage.n_cached >= len(turn) - 1
    assert_same_or_near_tie(alone, cached)


# --- where weights go ---


N_BYTES = DEMO_PATH.stat().st_size
PLENTY = 1 << 40


def gpu(n_free: int) -> Device:
    return Device("CUDA0", "a GPU", "GPU", n_free)


def layers(n_gpu_layers: int | None, *gpus: Device, free: int = PLENTY, **options: object) -> int | None:
    given = LoadOptions(n_ctx=256, n_parallel=1, n_gpu_layers=n_gpu_layers, **options)  # type: ignore[arg-type]
    return with_gpu_layers(str(DEMO_PATH), given, free, gpus).n_gpu_layers


def test_as_many_layers_as_fit_are_on_the_gpus():
    assert layers(None) == -1  # no GPU: the number has no effect
    assert layers(None, gpu(PLENTY)) == -1
    some = layers(None, gpu(N_BYTES // 2))
    more = layers(None, gpu(N_BYTES // 4), gpu(N_BYTES // 2))
    assert 0 < (some or 0) < (more or 0)
    assert layers(None, gpu(0)) == -1  # the driver does not report its memory
    assert layers(3, gpu(PLENTY)) == 3
    # Fewer than without the idle models are refused.
    with pytest.raises(NotEnoughMemory):
        layers(None, gpu(N_BYTES // 2), others=OtherModels(n_idle_on_gpus=N_BYTES))
    assert layers(None, gpu(PLENTY), others=OtherModels(n_idle_on_gpus=N_BYTES)) == -1
    assert layers(None, gpu(N_BYTES // 2), others=OtherModels(n_idle=N_BYTES)) == some  # They are on the machine.


def test_output_layer_is_the_last_that_gets_onto_the_gpus():
    n_blocks = read_header(DEMO_PATH)["llama.block_count"]
    numbers = [layers(None, gpu(N_BYTES * percent // 100)) for percent in range(1, 200)]
    assert numbers == sorted(numbers[: numbers.index(-1)]) + [-1] * numbers.count(-1)
    assert set(numbers) == {-1, *range(n_blocks + 1)}


@pytest.mark.parametrize(
    ("n_gpu_layers", "gpus", "free", "message"),
    [
        (-1, [gpu(1_000_000)], PLENTY, r"the weights take 4 MB, and 1 MB are free on CUDA0: use --gpu-layers auto"),
        (0, [], 1_000_000, r"the weights take 4 MB, and 1 MB are free: use a smaller model or quantisation"),
        (None, [gpu(1_000_000)], 1_000_000, r"and 1 MB are free: use a smaller model"),
    ],
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
        {"use_mmap": False, "use_mlock": True},
        {"cpu_moe": True},
        {"split_mode": "row", "tensor_split": (1.0,), "main_gpu": 0},
    ],
    ids=str,
)
def test_options_of_memory_load_a_model_that_generates(options):
    with load(str(DEMO_PATH), LoadOptions(n_ctx=512, n_parallel=1, **options)) as engine:
        assert engine.facts.n_ctx == 512
        _, _, end = read(engine, request_for(tuple(engine.backend.tokenize("Hello")), max_tokens=5, ignore_eos=True))
        assert end.usage.n_completion == 5
