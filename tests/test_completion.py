"""Text completions on a fake model: fields, choices, log probabilities, fill-in-the-middle, and the end of a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest

from localchat.serving.api.completions import (
    CompletionEncoder,
    CompletionRequest,
    LogprobWriter,
    parse_completion,
)
from localchat.serving.chat.model import Model
from localchat.serving.chat.prompts import start_text
from localchat.serving.chat.run import GenerationRun
from localchat.serving.core.errors import BadRequest, ContextLengthExceeded
from localchat.serving.core.events import (
    ContentDelta,
    OutputEnd,
    OutputEvent,
    OutputToken,
    ResponseHead,
    SampledTokens,
    Usage,
)
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.values import EngineError

from .chat_requests import ignored, read
from .fakes import FakeBackend, echo, endless
from .serving import Serving, dechunked, payloads, raw_request, read_until, serving


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(FakeBackend(echo), max_queue=4).start() as engine:
        yield engine


def requested(*, strict: bool = False, **fields: Any) -> CompletionRequest:
    return read(parse_completion, fields, strict=strict)


def complete(engine: Engine, **fields: Any) -> GenerationRun:
    return start_text(Model("fake", engine), requested(**fields), "cmpl-")


def body(engine: Engine, **fields: Any) -> Any:
    """The body of the response."""
    with complete(engine, **fields) as run:
        whole = CompletionEncoder(run.head, requested(**fields), run.usage)
        for index, event in events(run):
            whole.add(index, event)
        return whole.body()


def events(run: GenerationRun) -> Iterator[tuple[int, OutputEvent]]:
    while run.is_running:
        yield from run.take()


def texts(engine: Engine, **fields: Any) -> list[str]:
    return [choice["text"] for choice in body(engine, **fields)["choices"]]


def streamed(engine: Engine, **fields: Any) -> list[Any]:
    """The choices of the chunks of a stream."""
    with complete(engine, stream=True, **fields) as run:
        stream = CompletionEncoder(run.head, requested(stream=True, **fields), run.usage)
        chunks = []
        while run.is_running:
            for index, event in run.take():
                stream.add(index, event)
            chunks += stream.take()
        stream.finish()
        chunks += stream.take()
    return [json.loads(str(chunk))["choices"][0] for chunk in chunks]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "abc"}, ["abc"]),
        ({"prompt": [104, 105]}, ["hi"]),
        ({"prompt": ["ab", [99]], "n": 2}, ["ab", "ab", "c", "c"]),
        ({"prompt": [104, 105], "echo": True}, ["hihi"]),
        ({"prompt": "abcdef", "stop": "d"}, ["abc"]),
        ({"prompt": "abcdef", "max_tokens": 2}, ["ab"]),
        ({"prompt": ["a", "b", "c", "d", "e", "f"]}, list("abcdef")),
    ],
)
def test_choices_are_in_order(engine: Engine, fields: dict[str, Any], expected: list[str]):
    assert texts(engine, **fields) == expected


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_is_scored_without_a_completion(engine: Engine, stream: bool):
    """As requested by evaluation harnesses: a log probability for each token of the prompt, and no output."""
    fields = {"prompt": ["ab", "cde"], "max_tokens": 0, "echo": True, "logprobs": 1}
    found = streamed(engine, **fields) if stream else body(engine, **fields)["choices"]
    assert sorted(choice["text"] for choice in found if choice["text"]) == ["ab", "cde"]
    assert [choice["finish_reason"] for choice in found if choice["finish_reason"]] == ["length"] * 2
    scores = [choice["logprobs"]["token_logprobs"] for choice in found if choice["logprobs"]]
    assert sorted(scores, key=len) == [[None, -0.5], [None, -0.5, -0.5]]
    usage = body(engine, **fields)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 0)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["a", "b", "c", ""]),
        ({"stop_token_ids": [98]}, ["a", ""]),
        ({"max_tokens": 2}, ["a", "b"]),
        ({"stop": "b"}, ["a", "b"]),
        ({"echo": True, "max_tokens": 1}, ["a", "b", "c", "a"]),
    ],
)
def test_every_counted_token_has_a_log_probability(engine: Engine, fields: dict[str, Any], names: list[str]):
    """The token that ended the output has one, too: clients that score with `max_tokens: 1` drop the last one."""
    fields = {"prompt": "abc", "logprobs": 0, **fields}
    whole, chunks = body(engine, **fields), streamed(engine, **fields)
    for found in (whole["choices"], chunks):
        assert [name for choice in found if choice["logprobs"] for name in choice["logprobs"]["tokens"]] == names
    assert len(names) == whole["usage"]["completion_tokens"] + (3 if "echo" in fields else 0)
    assert (chunks[-1]["text"], chunks[-1]["finish_reason"] is None) == ("", False)  # The end is a separate chunk.


def test_v48_tokens_are_spelled_as_ids(engine: Engine):
    fields = {"prompt": "ab", "logprobs": 2, "echo": True, "max_tokens": 1, "return_tokens_as_token_ids": True}
    (choice,) = body(engine, **fields)["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:97", "token_id:98", "token_id:97"]
    assert choice["logprobs"]["top_logprobs"][1] == {"token_id:98": -0.5, "token_id:0": -1.5}
    assert choice["text"] == "aba"


def test_v44_prompt_logprobs_are_beside_each_choice(engine: Engine):
    """Also with `echo` and a smaller `logprobs`."""
    choices = body(engine, prompt="ab", prompt_logprobs=2, echo=True, logprobs=0, n=2)["choices"]
    b = {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    other = {"logprob": -1.5, "rank": 2, "decoded_token": "\0"}
    for choice in choices:
        assert choice["prompt_logprobs"] == [None, {"98": b, "0": other}]
        assert choice["logprobs"]["top_logprobs"][1] == {"b": -0.5}


class BeginningBackend(FakeBackend):
    """A vocabulary that adds BOS and a space before a text."""

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        return [*([1] if add_bos else []), *(b" " + text.encode() if text else b"")]


def test_bos_may_be_left_out():
    with Engine(BeginningBackend(endless)).start() as engine:
        for fields, n_prompt in (({}, 3), ({"add_special_tokens": False}, 2)):
            found = body(engine, prompt="a", echo=True, logprobs=0, max_tokens=0, **fields)
            assert found["usage"]["prompt_tokens"] == n_prompt
            assert found["choices"][0]["logprobs"]["tokens"] == ["", "a"]


def test_echo_has_neither_bos_nor_its_space():
    with Engine(BeginningBackend(endless)).start() as engine:
        for prompt, text, first in (("h", "h", -0.5), ([1, 104], "\x01h", None)):
            (choice,) = body(engine, prompt=prompt, echo=True, logprobs=0, max_tokens=2)["choices"]
            assert choice["text"] == text + "ab"
            assert "".join(choice["logprobs"]["tokens"]) == text + "ab"
            assert choice["logprobs"]["token_logprobs"] == [first, *[-0.5] * 3]


def test_suffix_makes_a_fim_prompt():
    backend = FakeBackend(echo)
    backend.facts = dataclasses.replace(backend.facts, fim_tokens=(1, 2, 3))
    with Engine(backend).start() as engine:
        assert texts(engine, prompt="ab", suffix="cd") == ["\x01ab\x02cd\x03"]


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"prompt": ""}, BadRequest, "prompt"),
        ({"prompt": ["a", ""]}, BadRequest, "prompt[1]"),
        ({"prompt": [999]}, BadRequest, "prompt"),
        ({"prompt": "a", "suffix": "b"}, BadRequest, "suffix"),
        ({"prompt": "a" * 300}, ContextLengthExceeded, "prompt"),
        ({"prompt": "a", "n": 100}, BadRequest, "n"),
    ],
)
def test_request_that_cannot_run_is_refused(engine: Engine, fields: Any, error: type[Exception], param: Any):
    with pytest.raises(error) as wrong:
        complete(engine, **fields)
    assert wrong.value.param == param  # type: ignore[attr-defined]
    assert texts(engine, prompt="ab") == ["ab"]


def test_error_of_an_unknown_token_names_the_known_ones(engine: Engine):
    message = "'stop_token_ids' has the token id 257; the token ids of this model are 0 to 256"
    with pytest.raises(BadRequest, match=message):
        complete(engine, prompt="a", stop_token_ids=[257])
    complete(engine, prompt="a", stop_token_ids=[256])


def test_too_long_prompt_cancels_the_prompts_before_it():
    with serving(endless, n_ctx=200_000, n_cells=200_000) as running:
        with pytest.raises(ContextLengthExceeded):
            complete(running.engine, prompt=["a", "b" * 200_000])
        running.wait_until_idle()


def test_usage_counts_each_prompt_once(engine: Engine):
    with complete(engine, prompt=["abc", "de"], n=2) as run:
        assert list(events(run))
        usage = run.usage()
    assert usage.n_prompt == 5
    assert usage.n_completion == (4 + 3) * 2  # including the tokens that end them
    assert run.summary.endswith(", 4 stop")


# --- The server ---


def completion_request(**fields: Any) -> bytes:
    return raw_request(json.dumps(fields).encode(), path="/v1/completions")


@pytest.mark.parametrize("broken", [EngineError("it broke"), RuntimeError("a bug")], ids=["engine", "bug"])
def test_k5_failure_inside_a_streamed_completion_is_an_event_then_done(monkeypatch, broken: Exception):
    with serving(endless, is_gated=True) as running, running.connect() as sock:
        sock.sendall(completion_request(prompt="a", stream=True))
        running.gate.release()
        read_until(sock, b'"text":"a"')

        def fail(self: object, item: object, tokens: object) -> None:
            raise broken

        monkeypatch.setattr("localchat.serving.chat.run.Output.read", fail)
        running.gate.release(1000)
        raw = read_until(sock, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert b'"type":"inference_error"' in raw
        assert (b"a bug" in raw, b"Traceback" in raw) == (False, False)
        # The stream ended properly, so the connection is still usable.
        sock.sendall(raw_request(b"", path="/health", method="GET"))
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def chunks_of(running: Serving, **fields: Any) -> list[Any]:
    with running.connect() as sock:
        sock.sendall(completion_request(stream=True, **fields))
        raw = read_until(sock, b"0\r\n\r\n")
    return payloads(dechunked(raw.partition(b"\r\n\r\n")[2]))


def test_stream_reports_the_prefill_progress_of_each_prompt():
    """As in chat: in order, and before the first text of the prompt's choices, with or without `echo` (K31)."""
    with serving(n_ctx=2000, n_cells=8000, n_batch=64) as running:
        chunks = chunks_of(running, prompt=["a" * 200, "b" * 150], n=2, return_progress=True, echo=True, max_tokens=2)
    for index, n_prompt in ((0, 200), (2, 150)):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        n_done = [chunk["prompt_progress"]["processed"] for chunk in own if "prompt_progress" in chunk]
        assert n_done[-1] == n_prompt  # Of several reports at once, only the newest is sent.
        assert n_done == sorted(n_done)
        assert all("prompt_progress" in chunk for chunk in own[: len(n_done)])
        assert "".join(chunk["choices"][0]["text"] for chunk in own[: len(n_done)]) == ""
    assert all(chunk["choices"][0]["index"] in (0, 2) for chunk in chunks if "prompt_progress" in chunk)


def test_usage_and_timings_are_on_every_chunk_on_request():
    """V18: counted over all choices."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    with serving() as running:
        chunks = chunks_of(running, prompt="abc", n=2, timings_per_token=True, stream_options=options)
        plain = chunks_of(running, prompt="a", stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert plain[0]["choices"] == [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 2 * len("abc") + 2
    assert [chunk["timings"]["predicted_n"] for chunk in chunks] == counts
    assert {chunk["usage"] for chunk in plain[:-1]} == {None}
    assert not any("timings" in chunk for chunk in plain[:-1])


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99]])
def test_ids_of_tokens_whole_and_streamed(prompt: Any):
    with serving() as running:
        chunks = chunks_of(running, prompt=prompt, return_token_ids=True)
        whole = body(running.engine, prompt=prompt, return_token_ids=True, n=2)["choices"]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[97, 98, 99], *[None] * (len(choices) - 1)]
    assert [id for choice in choices for id in choice.get("token_ids", ())] == [97, 98, 99]
    assert [(choice["token_ids"], choice["prompt_token_ids"]) for choice in whole] == [([97, 98, 99], (97, 98, 99))] * 2


# --- fields, and log probabilities ---


HEAD = ResponseHead("cmpl-1", 7, "m", ((1,), (2,)))
USAGE = Usage(n_prompt=3, n_cached=1, n_completion=2, prompt_s=0.5, completion_s=0.25)


def token(piece: bytes, logprob: float | None = -0.5, top: tuple[tuple[bytes, float], ...] = ()) -> OutputToken:
    return OutputToken(7, piece, logprob, tuple(OutputToken(8, other, value) for other, value in top))


def writer(**fields: Any) -> LogprobWriter:
    return LogprobWriter(requested(prompt="a", **{"logprobs": 5, **fields}))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"prompt": "a", "n": 3, "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "logprobs": 99}, "logprobs"),
        ({"prompt": "a", "logprobs": 0, "echo": True, "suffix": "b"}, "suffix"),
        ({"prompt": "a", "post_sampling_probs": True}, "post_sampling_probs"),
        ({"prompt": "a", "logprobs": 0, "echo": True, "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"prompt": [1], "suffix": "b"}, "suffix"),
        ({"prompt": "a", "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        ({"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str):
    with pytest.raises(BadRequest) as wrong:
        requested(**fields)
    assert wrong.value.param == param


def test_unknown_fields_are_ignored_or_refused():
    assert ignored(parse_completion, {"prompt": "a", "colour": 1, "user": "u"}) == ("colour",)
    assert requested(strict=True, prompt="a", id_slot=1, prompt_cache_key="k")
    with pytest.raises(BadRequest, match="colour"):
        requested(strict=True, prompt="a", colour=1)


def test_logprobs_are_four_lists_with_offsets_in_characters():
    tokens = [
        token("é".encode(), -0.5, ((b"e", -1.0), ("é".encode(), -0.5))),
        token(b"\xe2\x82", float("-inf")),
        token(b"\xac!", -0.25),
    ]
    body = writer().write(tokens)
    assert body["tokens"] == ["é", "bytes:\\xe2\\x82", "bytes:\\xac\\x21"]
    assert body["token_logprobs"] == [-0.5, -9999.0, -0.25]
    assert body["top_logprobs"][0] == {"e": -1.0, "é": -0.5}
    assert body["text_offset"] == [0, 1, 1]


def test_likeliest_of_tokens_with_equal_text_is_kept():
    top = ((b"a", -0.5), (b"b", -1.0), (b"a", -2.0), (b"c", -3.0))
    body = writer().write([token(b"d", -4.0, top)])
    assert list(body["top_logprobs"][0].items()) == [("a", -0.5), ("b", -1.0), ("c", -3.0), ("d", -4.0)]


def test_whole_body():
    whole = CompletionEncoder(HEAD, requested(prompt=["a", "b"], logprobs=0), lambda: USAGE)
    for index, event in ((0, ContentDelta("a")), (1, SampledTokens((token(b"c", -1.0),))), (0, ContentDelta("b"))):
        whole.add(index, event)
    whole.add(0, OutputEnd("stop", "x"))
    whole.add(1, OutputEnd("length"))
    body = whole.body()
    assert (body["id"], body["object"], body["created"], body["model"]) == ("cmpl-1", "text_completion", 7, "m")
    assert body["choices"][0] == {
        "index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop", "stop_reason": "x"
    }  # fmt: skip
    assert body["choices"][1]["logprobs"]["tokens"] == ["c"]
    assert body["usage"]["total_tokens"] == 5
    assert body["timings"]["predicted_n"] == 2
