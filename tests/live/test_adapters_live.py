"""LoRA adapters on llama.cpp: random ones for the built-in model, side by side."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.core.model_options import Adapter
from localchat.serving.core.params import SamplingParams
from localchat.serving.engine import load
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.llama import context_size
from localchat.serving.engine.values import Adapters, LoadOptions
from tests.support.command import run_command
from tests.support.demo_model import DEMO, chat
from tests.support.engines import read, request_for, submit
from tests.support.exchanges import ask
from tests.support.live import running_process
from tests.support.tiny_models import write_adapter

NONE: Adapters = ()
SETS: list[Adapters] = [NONE, ((0, 1.0),), ((1, 1.0),), ((0, 1.0), (1, 1.0))]
STORY = "Tell me a story."
QUESTIONS = ["What is your name?", STORY, "Count to ten."]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: Any) -> tuple[Adapter, ...]:
    """Two adapters, and one whose matrices do not fit."""
    folder: Path = tmp_path_factory.mktemp("adapters")
    found = [Adapter(f"a{seed}", write_adapter(folder / f"a{seed}.gguf", DEMO, seed)) for seed in (1, 2)]
    return (*found, Adapter("wide", write_adapter(folder / "wide.gguf", DEMO, 3, more=1)))


@pytest.fixture(scope="module", params=[context_size.IDLE_STREAMS, 0], ids=["own cells", "shared cells"])
def engine(adapters: tuple[Adapter, ...], request: Any) -> Iterator[Engine]:
    # llama.cpp rounds the sums of these adapters in another way in a step with drafts.
    options = LoadOptions(n_parallel=12, n_ctx=1024, adapters=adapters, n_threads=1, speculates=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_size, "IDLE_STREAMS", request.param)  # Without them, the sequences share the cells.
        with load(DEMO, options) as engine:
            assert engine.backend.limits.is_unified == (request.param == 0)
            yield engine


# The texts of requests with a seed do not depend on cached prefixes.
SEEDED = SamplingParams(temperature=0, seed=1)


def generation(engine: Engine, question: str, adapters: Adapters, n_tokens: int = 24) -> Any:
    options = {"sampling": SEEDED, "max_tokens": n_tokens, "ignore_eos": True, "adapters": adapters}
    return submit(engine, request_for(chat(engine, question), **options))


def text(engine: Engine, question: str, adapters: Adapters) -> str:
    return read(generation(engine, question, adapters))[0]


def test_texts_of_adapters_side_by_side_are_those_of_each_alone(engine: Engine):
    """A prefix that another set has computed, or a step of another set, would give another text."""
    for question in QUESTIONS:
        alone = []
        for adapters in SETS:
            engine.forget()
            alone.append(text(engine, question, adapters))
        assert len(set(alone)) == len(SETS)
        engine.forget()
        running = [generation(engine, question, adapters) for adapters in SETS]
        assert [read(one)[0] for one in running] == alone
        # Their prefixes are cached now. Shared cells are reused whole, and the last token is rounded otherwise.
        assert engine.backend.limits.is_unified or [text(engine, question, adapters) for adapters in SETS] == alone


def test_sets_take_turns(engine: Engine):
    """Each set goes on while the others run: no output ends before the others have begun."""
    running = [generation(engine, question, adapters, 64) for question in QUESTIONS for adapters in SETS]
    ends = [read(one)[1].usage for one in running]
    assert [usage.n_completion for usage in ends] == [64] * len(running)
    assert max(usage.queue_s + usage.prompt_s for usage in ends) < min(usage.completion_s for usage in ends)


def test_a_prefix_belongs_to_its_set(engine: Engine):
    engine.forget()
    is_cached = []
    for adapters in (NONE, SETS[1], NONE, SETS[1], ((0, 0.5),)):
        options = {"sampling": SamplingParams(top_k=1), "max_tokens": 1, "adapters": adapters}
        _, finish = read(submit(engine, request_for(chat(engine, QUESTIONS[0]), **options)))
        is_cached.append(finish.usage.n_cached > 0)
    assert is_cached == [False, False, True, True, False]


def test_an_adapter_that_does_not_fit_fails_alone(engine: Engine, adapters: tuple[Adapter, ...]):
    assert [one.problem for one in engine.facts.adapters[:2]] == ["", ""]
    assert engine.facts.adapters[2].problem.startswith(f"{adapters[2].path}: llama.cpp cannot load it: ")


@pytest.fixture(scope="module")
def port(adapters: tuple[Adapter, ...]) -> Iterator[int]:
    options = [f"--lora={one.name}={one.path}" for one in adapters]
    with running_process("--ctx", "1024", *options, f"--lora=half={adapters[0].path}@0.5") as server:
        yield server.port


def test_adapters_are_models_with_a_parent(port: int):
    _, found = ask(port, "/v1/models")
    assert [(one["id"], one.get("parent")) for one in found["data"]] == [
        ("demo", None), ("a1", "demo"), ("a2", "demo"), ("wide", "demo"), ("half", "demo"),
    ]  # fmt: skip
    assert [one["name"] for one in found["models"]] == ["demo", "a1", "a2", "wide", "half"]
    assert ask(port, "/v1/models/A1")[1]["parent"] == "demo"
    assert ask(port, "/api/show", {"model": "a1"})[1]["modelfile"] == "FROM demo\nADAPTER a1\n"
    _, listed = ask(port, "/lora-adapters")
    assert listed[3] == {"id": 3, "name": "half", "path": "a1.gguf", "scale": 0.5}
    assert ask(port, "/lora-adapters", [{"id": 0, "scale": 1}])[0] == 405


BODY = {"temperature": 0, "max_tokens": 24}
MESSAGES = [{"role": "user", "content": STORY}]
CALLS: dict[str, Any] = {
    "/v1/chat/completions": {"messages": MESSAGES, **BODY},
    "/v1/completions": {"prompt": STORY, **BODY},
    "/completion": {"prompt": STORY, **BODY},
    "/v1/responses": {"input": STORY, "temperature": 0, "max_output_tokens": 24},
    "/v1/messages": {"messages": MESSAGES, **BODY},
    "/api/chat": {"messages": MESSAGES, "stream": False, "options": {"temperature": 0, "num_predict": 24}},
}


def output(value: Any) -> list[str]:
    """The texts of a response without what differs between two requests."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = [one for name, one in value.items() if name in ("text", "content") or not isinstance(one, str)]
    return [text for one in value for text in output(one)] if isinstance(value, list) else []


@pytest.mark.parametrize("path", CALLS)
def test_an_adapter_is_a_model_on_every_interface(port: int, path: str):
    """Its name and llama.cpp's field mean the same; the name of the base has no adapter."""
    found = {}
    for name, model, fields in (
        ("base", "demo", {}), ("name", "a1", {}), ("field", "demo", {"lora": [{"id": 0, "scale": 1}]}),
        ("half", "half", {}), ("none", "a1", {"lora": []}),
    ):  # fmt: skip
        request = {**copy.deepcopy(CALLS[path]), "model": model}
        request.get("options", request).update(fields)
        status, body = ask(port, path, request)
        assert status == 200, body
        assert body["model"] == model
        found[name] = output(body)
    assert found["base"] == found["none"] != found["name"] == found["field"] != found["half"]


@pytest.mark.parametrize(
    ("fields", "status", "param", "message"),
    [
        ({"model": "a3"}, 404, "model", "there is no model 'a3' here"),
        ({"model": "wide"}, 501, "model", "the adapter 'wide' cannot be used: "),
        ({"lora": [{"id": 4, "scale": 1}]}, 400, "lora", "'lora' has the id 4, and the model has 4 adapters"),
        ({"lora": [{"id": 0, "scale": "x"}]}, 400, "lora[0].scale", "'lora[0].scale' must be a number from -1000"),
        ({"lora": [{"scale": 1}]}, 400, "lora[0].id", "'lora[0].id' must be a number, got nothing"),
        ({"lora": [{"id": 0}]}, 400, "lora[0].scale", "'lora[0].scale' must be a number, got nothing"),
    ],
)
def test_an_unknown_adapter_is_refused_by_name(port: int, fields: Any, status: int, param: str, message: str):
    found, body = ask(port, "/v1/chat/completions", {"messages": MESSAGES, **fields})
    assert (found, body["error"]["param"]) == (status, param)
    assert body["error"]["message"].startswith(message)


def test_vectors_have_no_adapters(port: int):
    status, body = ask(port, "/v1/embeddings", {"model": "a1", "input": "hello"})
    assert (status, "the adapter 'a1' makes no vectors" in body["error"]["message"]) == (501, True)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("a=missing.gguf", "cannot load the adapter a: missing.gguf: No such file or directory"),
        ("a={demo}", "cannot load the adapter a: {demo}: it is no LoRA adapter"),
        ("a={other}", "cannot load the adapter a: {other}: it is for the architecture 'gemma3', the model has "),
        ("demo={own}", "cannot load the adapter demo: the name is that of the model or of another adapter"),
        ("a={own}@x", "the scale of the adapter 'a' must be a number, got 'x'"),
        ("a={own}@inf", "the scale of the adapter 'a' must be a number, got 'inf'"),
        ("{own}", "expected NAME=FILE or NAME=FILE@SCALE, got '{own}'"),
    ],
)
def test_a_wrong_adapter_ends_the_start(tmp_path: Path, adapters: tuple[Adapter, ...], option: str, message: str):
    other = write_adapter(tmp_path / "other.gguf", DEMO, 1, architecture="gemma3")
    names = {"demo": DEMO, "own": adapters[0].path, "other": other}
    done = run_command("demo", "--port", "0", "--lora", option.format(**names))
    assert done.returncode in (1, 2)
    assert message.format(**names) in done.stderr
