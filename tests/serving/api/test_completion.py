"""Text completions over HTTP with a fake model, in the formats of OpenAI and of llama.cpp."""

from pathlib import Path
from typing import Any

import pytest

from localchat.serving.api.completions import CompletionEncoder, parse_completion
from localchat.serving.core.events import OutputToken, ResponseHead, Usage
from localchat.serving.core.server_options import Options
from tests.support.chat_requests import read
from tests.support.exchanges import ask
from tests.support.fakes import FakeBackend, endless
from tests.support.serving import BIG, Serving, serving
from tests.support.wire_schemas import validate


def complete(running: Serving, **fields: Any) -> Any:
    """The body, or the chunks of the stream."""
    status, found = ask(running.port, "/v1/completions", fields)
    assert status == 200, found
    return found[:-1] if fields.get("stream") else found


def choices(running: Serving, **fields: Any) -> list[Any]:
    """The choices of the body, or of all chunks of the stream."""
    found = complete(running, **fields)
    return [choice for body in (found if fields.get("stream") else [found]) for choice in body["choices"]]


def texts(running: Serving, **fields: Any) -> list[str]:
    return [choice["text"] for choice in choices(running, **fields)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "abc"}, ["abc"]),
        ({"prompt": [104, 105]}, ["hi"]),
        ({"prompt": ["ab", [99]], "n": 2}, ["ab", "ab", "c", "c"]),
        ({"prompt": [104, 105], "echo": True}, ["hihi"]),
        ({"prompt": ["abc", [100, 101, 102]], "echo": True, "truncate_prompt_tokens": 2}, ["bcbc", "efef"]),
        ({"prompt": "aé", "echo": True, "truncate_prompt_tokens": 2}, ["éé"]),
        ({"prompt": "abc", "echo": True, "truncate_prompt_tokens": 3}, ["abcabc"]),
        ({"prompt": "abcdef", "stop": "d"}, ["abc"]),
        ({"prompt": "abcdef", "max_tokens": 2}, ["ab"]),
        ({"prompt": ["a", "b", "c", "d", "e", "f"]}, list("abcdef")),
    ],
)
def test_choices_are_in_order(running: Serving, fields: dict[str, Any], expected: list[str]):
    assert texts(running, **fields) == expected
    if fields.get("echo"):
        n_prompt = complete(running, **fields)["usage"]["prompt_tokens"]
        assert n_prompt == sum(len(text.encode()) for text in expected) / 2


@pytest.mark.parametrize("stream", [False, True])
def test_limit_of_zero_only_computes_the_prompt(running: Serving, stream: bool):
    fields = {"prompt": ["ab", "cde"], "max_tokens": 0, "echo": True}
    found = choices(running, stream=stream, **fields)
    assert sorted(choice["text"] for choice in found if choice["text"]) == ["ab", "cde"]
    assert [choice["finish_reason"] for choice in found if choice["finish_reason"]] == ["length"] * 2
    usage = complete(running, **fields)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 0)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["a", "b", "c", ""]),
        ({"stop_token_ids": [98]}, ["a", ""]),
        ({"max_tokens": 2}, ["a", "b"]),
        ({"stop": "b"}, ["a", "b"]),
    ],
)
def test_every_counted_token_has_a_log_probability(running: Serving, fields: dict[str, Any], names: list[str]):
    """The token that ended the output has one, too: clients that score with `max_tokens: 1` drop the last one."""
    fields = {"prompt": "abc", "logprobs": 0, **fields}
    whole, chunks = complete(running, **fields), choices(running, stream=True, **fields)
    for found in (whole["choices"], chunks):
        assert [name for choice in found if choice["logprobs"] for name in choice["logprobs"]["tokens"]] == names
    assert len(names) == whole["usage"]["completion_tokens"]
    assert (chunks[-1]["text"], chunks[-1]["finish_reason"] is None) == ("", False)  # The end is a separate chunk.


def test_tokens_are_spelled_as_ids(running: Serving):
    (choice,) = choices(running, prompt="ab", logprobs=2, max_tokens=2, return_tokens_as_token_ids=True)
    assert choice["logprobs"]["tokens"] == ["token_id:97", "token_id:98"]
    assert choice["logprobs"]["top_logprobs"][1] == {"token_id:98": -0.5, "token_id:0": -1.5}
    assert choice["text"] == "ab"


def test_bos_may_be_left_out_and_no_echo_has_it(monkeypatch: pytest.MonkeyPatch):
    """The vocabulary adds BOS and a space before a text."""

    def tokenize(backend: FakeBackend, text: str, *, add_bos: bool = False, **options: Any) -> list[int]:
        return [*([1] if add_bos else []), *(b" " + text.encode() if text else b"")]

    monkeypatch.setattr(FakeBackend, "tokenize", tokenize)
    with serving(endless) as running:
        for fields, ids in (({}, [1, 32, 97]), ({"add_special_tokens": False}, [32, 97])):
            (choice,) = choices(running, prompt="a", echo=True, max_tokens=1, return_token_ids=True, **fields)
            assert (choice["text"], choice["prompt_token_ids"]) == ("aa", ids)


def test_control_tokens_are_those_of_a_prompt_and_not_those_of_fim_texts(monkeypatch: pytest.MonkeyPatch):
    """In this vocabulary, the text "ab" is a control token of its own, whose id is 7."""

    def tokenize(backend: FakeBackend, text: str, *, parse_special: bool = False, **options: Any) -> list[int]:
        return [*(text.encode().replace(b"ab", b"\x07") if parse_special else text.encode())]

    monkeypatch.setattr(FakeBackend, "tokenize", tokenize)
    with serving(fim={"fim_tokens": (1, 2, 3)}) as running:
        assert texts(running, prompt="abc") == ["\x07c"]
        assert texts(running, prompt="ab", suffix="ab") == ["\x01ab\x02ab\x03"]


def test_suffix_makes_a_fim_prompt():
    with serving(fim={"fim_tokens": (1, 2, 3)}) as running:
        assert texts(running, prompt="ab", suffix="cd") == ["\x01ab\x02cd\x03"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),  # the model has no FIM tokens
        ({"prompt": ["a", "a" * 300]}, "prompt[1]"),
        ({"prompt": "a", "n": 100}, "n"),
        ({"input_prefix": "x", "input_suffix": "y"}, "input_suffix"),
    ],
)
def test_field_that_the_model_cannot_serve_is_named(running: Serving, fields: dict[str, Any], param: str):
    status, body = ask(running.port, "/v1/completions" if "prompt" in fields else "/infill", fields)
    assert (status, body["error"]["param"]) == (400, param)
    running.wait_until_idle()


def test_usage_counts_each_prompt_once(running: Serving):
    body = complete(running, prompt=["abc", "de"], n=2)
    ends = {"logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert body["choices"][3] == {"index": 3, "text": "de", **ends}
    assert (body["usage"]["prompt_tokens"], body["timings"]["predicted_n"]) == (5, (4 + 3) * 2)  # with their ends
    assert (body["object"], body["model"]) == ("text_completion", "Fake")


def test_stream_reports_the_prefill_progress_of_each_prompt():
    """As in chat: in order, and before the first text of the prompt's choices, with or without `echo`."""
    fields = {"prompt": ["a" * 200, "b" * 150], "n": 2, "return_progress": True, "echo": True, "max_tokens": 2}
    with serving(n_ctx=2000, n_cells=8000, n_batch=64) as running:
        chunks = complete(running, stream=True, **fields)
    for index, n_prompt in ((0, 200), (2, 150)):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        n_done = [chunk["prompt_progress"]["processed"] for chunk in own if "prompt_progress" in chunk]
        assert n_done[-1] == n_prompt  # Of several reports at once, only the newest is sent.
        assert n_done == sorted(n_done)
        assert all("prompt_progress" in chunk for chunk in own[: len(n_done)])
        assert "".join(chunk["choices"][0]["text"] for chunk in own[: len(n_done)]) == ""
    assert all(chunk["choices"][0]["index"] in (0, 2) for chunk in chunks if "prompt_progress" in chunk)


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99]])
def test_ids_of_tokens_whole_and_streamed(running: Serving, prompt: Any):
    chunks = choices(running, stream=True, prompt=prompt, return_token_ids=True)
    assert [choice.get("prompt_token_ids") for choice in chunks] == [[97, 98, 99], *[None] * (len(chunks) - 1)]
    assert [id for choice in chunks for id in choice.get("token_ids", ())] == [97, 98, 99]
    for choice in choices(running, prompt=prompt, return_token_ids=True, n=2):
        assert choice["token_ids"] == choice["prompt_token_ids"] == [97, 98, 99]
    for stream in (True, False):
        without_ids = choices(running, stream=stream, prompt=prompt, logprobs=1)
        assert not any({"token_ids", "prompt_token_ids"} & choice.keys() for choice in without_ids)


def token(piece: bytes, logprob: float | None = -0.5, top: tuple[tuple[bytes, float], ...] = ()) -> OutputToken:
    return OutputToken(7, piece, logprob, tuple(OutputToken(8, other, value) for other, value in top))


def written(*tokens: OutputToken) -> dict[str, Any]:
    request = read(parse_completion, {"prompt": "a", "logprobs": 5})
    encoder = CompletionEncoder(ResponseHead("", 0, ""), request, Usage)
    return encoder.logprobs(encoder.choices[0], tokens) or {}


def test_logprobs_are_four_lists_with_offsets_in_characters():
    body = written(
        token("é".encode(), -0.5, ((b"e", -1.0), ("é".encode(), -0.5))),
        token(b"\xe2\x82", float("-inf")),
        token(b"\xac!", -0.25),
    )
    assert body["tokens"] == ["é", "bytes:\\xe2\\x82", "bytes:\\xac\\x21"]
    assert body["token_logprobs"] == [-0.5, -9999.0, -0.25]
    assert body["top_logprobs"][0] == {"e": -1.0, "é": -0.5}
    assert body["text_offset"] == [0, 1, 1]


def test_likeliest_of_tokens_with_equal_text_is_kept():
    body = written(token(b"d", -4.0, ((b"a", -0.5), (b"b", -1.0), (b"a", -2.0), (b"c", -3.0))))
    assert list(body["top_logprobs"][0].items()) == [("a", -0.5), ("b", -1.0), ("c", -3.0), ("d", -4.0)]


# --- /completion and /infill, in the format of llama.cpp ---


@pytest.mark.parametrize(
    ("fields", "content", "stop_type", "word"),
    [
        ({"n_predict": 3}, "abc", "limit", ""),
        ({"stop": ["de"]}, "abc", "word", "de"),
        ({"stop_token_ids": [99]}, "ab", "eos", ""),
    ],
)
def test_native_output_is_the_same_whole_and_streamed(fields: Any, content: str, stop_type: str, word: str):
    fields = {"prompt": "xy", "temperature": 0.5, "seed": 1, **fields}
    with serving(endless) as running:
        status, body = ask(running.port, "/completion", fields)
        _, (*chunks, last) = ask(running.port, "/completion", {"stream": True, **fields})
    assert (status, body["content"], body["stop"]) == (200, content, True)
    assert (body["stop_type"], body["stopping_word"], body["tokens_evaluated"]) == (stop_type, word, 2)
    assert "".join(chunk["content"] for chunk in chunks) == content
    assert not any(chunk["stop"] for chunk in chunks)
    assert "completion_probabilities" not in body
    settings = body["generation_settings"]
    assert (settings["temperature"], settings["samplers"][0]) == (0.5, "penalties")
    assert {**last, "timings": None} == {**body, "content": "", "timings": None}


def test_several_outputs_are_a_list_with_tokens_and_probabilities(running: Serving):
    fields = {"prompt": ["ab", [99]], "n_probs": 1, "return_tokens": True}
    first, second = ask(running.port, "/completion", fields)[1]
    assert (first["index"], first["content"], first["tokens"]) == (0, "ab", [97, 98])
    assert (second["index"], second["content"], second["tokens"]) == (1, "c", [99])
    assert [entry["token"] for entry in first["completion_probabilities"]] == ["a", "b"]


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
def test_native_prompt_may_have_several_outputs(running: Serving, name: str):
    outputs = ask(running.port, "/completion", {"prompt": "ab", name: 2})[1]
    assert [(output["index"], output["content"]) for output in outputs] == [(0, "ab"), (1, "ab")]


FILES = [{"filename": "a.py", "text": "A"}, {"text": "B"}]
GAP = {"input_prefix": "x", "input_suffix": "y"}
ONE_FILE = {**GAP, "input_extra": FILES[:1]}


@pytest.mark.parametrize(
    ("facts", "fields", "prompt"),
    [
        ({}, GAP, "\x01x\x02y\x03"),
        ({}, {"input_prefix": "x", "prompt": "z"}, "\x01x\x02\x03z"),
        ({}, {**GAP, "input_extra": FILES}, "a.py\nA\n\nfile\nB\n\n\x01x\x02y\x03"),
        ({"fim_file": 4}, {**GAP, "input_extra": FILES}, "\x04a.py\nA\n\x04file\nB\n\x04file\n\x01x\x02y\x03"),
        ({"fim_file": 4, "fim_repository": 5}, ONE_FILE, "\x05project\n\x04a.py\nA\n\x04file\n\x01x\x02y\x03"),
    ],
    ids=["gap", "text in the gap", "files", "file tokens", "repository"],
)
def test_infill_makes_a_fim_prompt(facts: dict[str, Any], fields: dict[str, Any], prompt: str):
    with serving(fim={"fim_tokens": (1, 2, 3), **facts}) as running:
        status, body = ask(running.port, "/infill", fields)
        _, events = ask(running.port, "/infill", {**fields, "stream": True})
    assert status == 200
    validate(body, "infill")
    for event in events:
        validate(event, "infill-event")
    assert (body["content"], body["tokens_evaluated"]) == (prompt, len(prompt))


@pytest.mark.parametrize(
    ("fields", "n_output"), [({}, 32), ({"n_predict": 0}, 1), ({"n_predict": -1}, 32), ({"n_predict": 50}, 50)]
)
def test_context_of_other_files_is_cut_and_leaves_room_for_the_output(fields: dict[str, Any], n_output: int):
    files = [{"filename": "a.py", "text": "x = 1\n" * 100}]
    with serving(n_ctx=128, fim={"fim_tokens": (1, 2, 3)}) as running:
        status, body = ask(running.port, "/infill", {**GAP, "input_extra": files, **fields})
        assert status == 200, body
        assert running.last_prompt.endswith("\x01x\x02y\x03")
        assert len(running.last_prompt) == 128 - n_output


# As llama.vim (autoload/llama.vim) and llama.vscode (src/llama-server.ts) send them: a completion, and a request that
# only fills the cache.
EDITORS: dict[str, dict[str, Any]] = {
    "llama.vim": {
        "id_slot": 0, "input_prefix": "def f():\n", "input_suffix": "\nf()\n", "prompt": "    return ",
        "input_extra": [{"text": "import os\n", "time": [1, 2], "filename": "b.py"}],
        "n_predict": 128, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True,
        "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
        "response_fields": [
            "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
            "timings/predicted_n", "timings/predicted_ms", "truncated", "tokens_cached",
        ],
    },
    "llama.vim, for the cache": {
        "id_slot": 0, "input_prefix": "", "input_suffix": "", "prompt": "", "input_extra": [],
        "n_predict": 0, "temperature": 0.0, "stream": False, "samplers": [], "cache_prompt": True,
        "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""],
    },
    "llama.vscode": {
        "id_slot": 0, "input_prefix": "def f():\n", "input_suffix": "\nf()\n", "prompt": "    return ",
        "input_extra": [{"filename": "b.py", "text": "import os\n"}],
        "n_predict": 128, "top_k": 40, "top_p": 0.99, "stop": [], "n_indent": 4, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True,
        "t_max_prompt_ms": 500, "t_max_predict_ms": 2500,
    },
}  # fmt: skip


@pytest.mark.parametrize("program", EDITORS)
@pytest.mark.parametrize("strict", [False, True])
def test_requests_of_editors_are_answered(program: str, strict: bool):
    with serving(fim={"fim_tokens": (1, 2, 3)}, settings=Options(port=0, strict=strict), **BIG) as running:
        status, body = ask(running.port, "/infill", EDITORS[program])
    assert status == 200, body
    assert running.requests[-1].sampling.samplers == tuple(EDITORS[program]["samplers"])


def test_model_file_has_the_fim_tokens(tmp_path: Path):
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    from localchat.serving.engine.llama import load_backend
    from localchat.serving.engine.values import LoadOptions
    from tests.support.tiny_models import write_fim

    tokens = write_fim(tmp_path / "fim.gguf")
    backend = load_backend(str(tmp_path / "fim.gguf"), LoadOptions(n_parallel=1, n_ctx=64))
    facts = backend.facts
    backend.close()
    assert facts.fim_tokens == (tokens["pre"], tokens["suf"], tokens["mid"])
    assert (facts.fim_file, facts.fim_repository) == (tokens["sep"], tokens["rep"])
