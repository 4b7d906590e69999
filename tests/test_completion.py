"""Text completions between the wire and the engine, on a fake model: choices, gaps, ends."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from localchat.engine import Cancelled, Engine, EngineError, Histogram
from localchat.generation.completion import Completion
from localchat.generation.model import Model
from localchat.generation.work import AtWork
from localchat.protocol.completions import Choice, parse_completion
from localchat.protocol.errors import BadRequest, ContextLengthExceeded, ShuttingDown
from localchat.serving.routes import Settings

from .fakes import FakeBackend, echo, endless
from .serving import Serving, dechunked, payloads, raw_request, read_until, serving, wait_for

DEADLINE_S = 8


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(FakeBackend(echo), max_queue=4).start() as engine:
        yield engine


@pytest.fixture
def endless_engine() -> Iterator[Engine]:
    backend = FakeBackend(endless, n_ctx=200_000, n_cells=200_000)
    with Engine(backend).start() as engine:
        yield engine


def complete(engine: Engine, **members: Any) -> Completion:
    return Completion(Model("fake", engine), parse_completion(json.dumps(members).encode()))


def finish(completion: Completion) -> None:
    while completion.is_running:
        completion.advance()


def texts(engine: Engine, **members: Any) -> list[str]:
    with complete(engine, **members) as completion:
        finish(completion)
        return ["".join(choice.text) for choice in completion.choices()]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        pytest.param({"prompt": "abc"}, ["abc"], id="text"),
        pytest.param({"prompt": [104, 105]}, ["hi"], id="tokens"),
        pytest.param({"prompt": ["ab", [99]], "n": 2}, ["ab", "ab", "c", "c"], id="n of each prompt"),
        pytest.param({"prompt": [104, 105], "echo": True}, ["hihi"], id="tokens echoed"),
        pytest.param({"prompt": "abcdef", "stop": "d"}, ["abc"], id="stop"),
        pytest.param({"prompt": "abcdef", "max_tokens": 2}, ["ab"], id="length"),
        pytest.param({"prompt": "ab", "best_of": 3, "n": 2}, ["ab", "ab"], id="best of"),
        pytest.param({"prompt": ["a", "b", "c", "d", "e", "f"]}, list("abcdef"), id="more than there are slots"),
    ],
)
def test_choices_are_in_order(engine: Engine, members: dict[str, Any], expected: list[str]):
    assert texts(engine, **members) == expected


def test_prompt_is_scored_and_nothing_answered(engine: Engine):
    """As evaluation harnesses ask: a log probability for each token of the prompt, and no answer."""
    for stream in (False, True):
        found: list[Choice] = []
        members = {"prompt": ["ab", "cde"], "max_tokens": 0, "echo": True, "logprobs": 1, "stream": stream}
        with complete(engine, **members) as completion:
            while completion.is_running:
                completion.advance()
                found += [choice for _, choice in completion.news()] if stream else []
            found = found or completion.choices()
            usage = completion.usage
        assert sorted("".join(choice.text) for choice in found if choice.text) == ["ab", "cde"]
        assert [choice.reason for choice in found if choice.reason] == ["length"] * 2
        scores = [[token.logprob for token in choice.tokens] for choice in found if choice.tokens]
        assert sorted(scores, key=len) == [[None, -0.5], [None, -0.5, -0.5]]
        assert (usage.n_prompt, usage.n_completion) == (5, 0)
        assert completion.summary.endswith("2 length")


def test_without_anything_asked_a_prompt_is_only_read(engine: Engine):
    assert texts(engine, prompt=["ab", "c"], max_tokens=0, n=2) == [""] * 4
    assert engine.stats().n_tokens_computed > 0


@pytest.mark.parametrize(
    ("members", "names"),
    [
        pytest.param({}, ["a", "b", "c", ""], id="the model's end"),
        pytest.param({"stop_token_ids": [98]}, ["a", ""], id="a stop token"),
        pytest.param({"max_tokens": 2}, ["a", "b"], id="the limit"),
        pytest.param({"stop": "b"}, ["a", "b"], id="a stop text"),
        pytest.param({"echo": True, "max_tokens": 1}, ["a", "b", "c", "a"], id="echo"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_token_that_counts_has_its_log_probability(
    engine: Engine, members: dict[str, Any], names: list[str], stream: bool
):
    """The one that ended the answer too: who scores with `max_tokens: 1` leaves out the last one, whatever it is."""
    found: list[Choice] = []
    with complete(engine, prompt="abc", logprobs=0, stream=stream, **members) as completion:
        while completion.is_running:
            completion.advance()
            found += [choice for _, choice in completion.news()] if stream else []
        found = found or completion.choices()
        n_counted = completion.usage.n_completion + (3 if "echo" in members else 0)
    assert [token.piece.decode() for choice in found for token in choice.tokens] == names
    assert len(names) == n_counted
    assert not found[-1].tokens or not stream  # the end is a chunk of its own


def test_tokens_are_spelled_as_ids(engine: Engine):
    """V48."""
    members = {"prompt": "ab", "logprobs": 2, "echo": True, "max_tokens": 1, "return_tokens_as_token_ids": True}
    with complete(engine, **members) as completion:
        finish(completion)
        (choice,) = completion.choices()
    assert [token.name for token in choice.tokens] == ["token_id:97", "token_id:98", "token_id:97"]
    assert choice.tokens[1].top == ((b"token_id:98", -0.5), (b"token_id:0", -1.5))
    assert "".join(choice.text) == "aba"


def test_v44_prompt_logprobs_are_beside_each_choice(engine: Engine):
    """With the echo's own beside them, which are fewer."""
    with complete(engine, prompt="ab", prompt_logprobs=2, echo=True, logprobs=0, n=2) as completion:
        finish(completion)
        choices = completion.choices()
    b = {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    other = {"logprob": -1.5, "rank": 2, "decoded_token": "\0"}
    for choice in choices:
        assert choice.body(0, None)["prompt_logprobs"] == [None, {"98": b, "0": other}]
        assert all(token.top == () for token in choice.tokens)


class BeginningBackend(FakeBackend):
    """A vocabulary that begins texts with a token of its own, and with a space that is not in them."""

    def tokenize(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        return [*([1] if add_bos else []), *(b" " + text.encode() if text else b"")]


def test_begin_token_may_be_left_out():
    with Engine(BeginningBackend(endless)).start() as engine:
        for members, prompt in (({}, (1, 32, 97)), ({"add_special_tokens": False}, (32, 97))):
            with complete(engine, prompt="a", echo=True, logprobs=0, max_tokens=0, **members) as completion:
                finish(completion)
                (choice,) = completion.choices()
                assert completion.usage.n_prompt == len(prompt)
            assert b"".join(token.piece for token in choice.tokens) == b"a"


def test_echo_has_neither_the_begin_token_nor_its_space():
    with Engine(BeginningBackend(endless)).start() as engine:
        for prompt, text, first in (("hé", "hé", -0.5), ([1, 104], "\x01h", None)):
            with complete(engine, prompt=prompt, echo=True, logprobs=0, max_tokens=2) as completion:
                finish(completion)
                (choice,) = completion.choices()
            assert "".join(choice.text) == text + "ab"
            assert b"".join(token.piece for token in choice.tokens if token.piece).decode() == text + "ab"
            assert choice.tokens[0].logprob == first
            assert all(token.logprob == -0.5 for token in choice.tokens[1:])


def test_gap_is_filled_between_its_texts():
    backend = FakeBackend(echo)
    backend.facts = dataclasses.replace(backend.facts, fill_in=(1, 2, 3))
    with Engine(backend).start() as engine:
        assert texts(engine, prompt="ab", suffix="cd") == ["\x01ab\x02cd\x03"]


@pytest.mark.parametrize(
    ("members", "error", "param"),
    [
        pytest.param({"prompt": ""}, BadRequest, "prompt", id="empty"),
        pytest.param({"prompt": ["a", ""]}, BadRequest, "prompt[1]", id="one empty"),
        pytest.param({"prompt": [999]}, BadRequest, "prompt", id="unknown token"),
        pytest.param({"prompt": "a", "suffix": "b"}, BadRequest, "suffix", id="no tokens for a gap"),
        pytest.param({"prompt": "a" * 300}, ContextLengthExceeded, "prompt", id="too long"),
        pytest.param({"prompt": "a", "stop_token_ids": [999]}, BadRequest, "stop_token_ids", id="stop token"),
        pytest.param({"prompt": "a", "n": 100}, BadRequest, "n", id="more than may ever wait"),
    ],
)
def test_request_that_cannot_run_is_refused(engine: Engine, members: Any, error: type[Exception], param: Any):
    with pytest.raises(error) as wrong:
        complete(engine, **members)
    assert wrong.value.param == param  # type: ignore[attr-defined]
    assert texts(engine, prompt="ab") == ["ab"]


def test_prompt_that_does_not_fit_leaves_nothing_of_those_before_it(endless_engine: Engine):
    with pytest.raises(ContextLengthExceeded):
        complete(endless_engine, prompt=["a", "b" * 200_000])
    # What had been submitted has been cancelled: the engine hears of it before this.
    heard = threading.Event()
    endless_engine.post(heard.set)
    assert heard.wait(DEADLINE_S)
    stats = endless_engine.stats()
    assert (stats.n_running, stats.n_waiting) == (0, 0)


def test_usage_counts_each_prompt_once(engine: Engine):
    with complete(engine, prompt=["abc", "de"], n=2) as completion:
        finish(completion)
        usage = completion.usage
    assert usage.n_prompt == 5
    assert usage.n_completion == (4 + 3) * 2  # with the tokens that end them
    assert completion.summary.endswith("4 stop")


def test_timings_tell_what_was_guessed():
    prompts = ["the same words, the same words, the same words", "ab"]
    with (
        Engine(FakeBackend(echo, n_drafted=16)).start() as engine,
        complete(engine, prompt=prompts, n=2) as completion,
    ):
        finish(completion)
        timings = completion.usage.timings()
    assert timings["draft_n"] >= timings["draft_n_accepted"] > 0


def test_news_come_once_and_the_end_apart(engine: Engine):
    found = []
    with complete(engine, prompt="abc", echo=True) as completion:
        while completion.is_running:
            completion.advance()
            found += list(completion.news())
        assert not list(completion.news())
    assert "".join(text for _, choice in found for text in choice.text) == "abcabc"
    assert [choice.reason for _, choice in found if choice.reason] == ["stop"]
    assert not found[-1][1].text


def test_nothing_new_ends_the_patience(endless_engine: Engine):
    gate = threading.Semaphore(0)
    with Engine(FakeBackend(echo, gate=gate)).start() as engine, complete(engine, prompt="abc") as completion:
        completion.advance(patience_s=0.01)
        assert not list(completion.news())
        gate.release(100)
        while completion.is_running:
            completion.advance(patience_s=DEADLINE_S)
        assert "".join(completion.choices()[0].text) == "abc"


def test_cancel_and_stop_end_a_completion_differently(endless_engine: Engine):
    for end, error in (("cancel", Cancelled), ("stop", ShuttingDown)):
        with complete(endless_engine, prompt="a") as completion:
            completion.advance()
            getattr(completion, end)()
            with pytest.raises(error):
                finish(completion)


def test_leaving_ends_what_runs(endless_engine: Engine):
    with complete(endless_engine, prompt="a", n=2) as completion:
        completion.advance()
    wait_for(lambda: endless_engine.stats().n_running == 0)
    assert texts(endless_engine, prompt="b", max_tokens=2) == ["ab"]
    assert completion.summary.endswith("2 cut")


class Stopped:
    n = 0

    def stop(self) -> None:
        self.n += 1


def test_work_is_stopped_while_it_lasts_and_as_it_begins():
    at_work, first, over, late = AtWork(), Stopped(), Stopped(), Stopped()
    with at_work.during(over):
        pass
    with at_work.during(first):
        at_work.stop()
    with at_work.during(late):
        pass
    assert (first.n, over.n, late.n) == (1, 0, 1)


def test_histogram_counts_up_to_each_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    values = histogram.values()
    assert (values.counts, values.n, values.total) == ((2, 3), 4, 12.0)


def test_engine_counts_first_tokens_and_what_was_cached(engine: Engine):
    for _ in range(2):
        texts(engine, prompt="a long enough prompt for a prefix to be shared")
    stats = engine.stats()
    assert stats.first_token_s.n == 2
    assert stats.n_tokens_cached > 0
    assert engine.running() == []


# --- on the server ---


def completion_request(**members: Any) -> bytes:
    return raw_request(json.dumps(members).encode(), path="/v1/completions")


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_ends_its_completion(stream: bool):
    with serving(endless, n_ctx=200_000, n_cells=400_000) as running:
        sock = running.connect()
        sock.sendall(completion_request(prompt=["a", "b"], stream=stream))
        wait_for(lambda: running.engine.stats().n_running == 2)
        sock.close()
        running.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_end_of_the_server_ends_completions_with_an_error(stream: bool):
    with serving(endless, n_ctx=200_000, n_cells=200_000) as running, running.connect() as sock:
        sock.sendall(completion_request(prompt="a", stream=stream))
        if stream:
            read_until(sock, b'"text":"')
        wait_for(lambda: running.engine.stats().n_running == 1)
        running.server.shutdown()
        running.server.close()
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b'"code":"shutting_down"' in raw
    assert not stream or raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize("broken", [EngineError("it broke"), RuntimeError("a bug")], ids=["engine", "bug"])
def test_k5_failure_inside_a_streamed_completion_is_an_event_then_done(monkeypatch, broken: Exception):
    gate = threading.Semaphore(0)
    with serving(endless, gate=gate) as running, running.connect() as sock:
        sock.sendall(completion_request(prompt="a", stream=True))
        gate.release()
        read_until(sock, b'"text":"a"')

        def fail(self: object, item: object) -> None:
            raise broken

        monkeypatch.setattr("localchat.generation.completion._Run.take", fail)
        gate.release(1000)
        raw = read_until(sock, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert b'"type":"inference_error"' in raw
        assert (b"a bug" in raw, b"Traceback" in raw) == (False, False)
        # The stream ended in order, so the connection goes on.
        sock.sendall(raw_request(b"", path="/health", method="GET"))
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def chunks_of(running: Serving, **members: Any) -> list[Any]:
    with running.connect() as sock:
        sock.sendall(completion_request(stream=True, **members))
        raw = read_until(sock, b"0\r\n\r\n")
    return payloads(dechunked(raw.partition(b"\r\n\r\n")[2]))


def test_stream_tells_how_far_each_prompt_has_been_read():
    """As in chat: in the order of reading, before the prompt's first text, echoed or not (K31)."""
    with serving(n_ctx=2000, n_cells=8000, n_batch=64) as running:
        chunks = chunks_of(running, prompt=["a" * 200, "b" * 150], n=2, return_progress=True, echo=True, max_tokens=2)
    for index, n_prompt in ((0, 200), (2, 150)):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        n_done = [chunk["prompt_progress"]["processed"] for chunk in own if "prompt_progress" in chunk]
        assert n_done[-1] == n_prompt  # of several that came at once only the newest is told
        assert n_done == sorted(n_done)
        assert all("prompt_progress" in chunk for chunk in own[: len(n_done)])
        assert "".join(chunk["choices"][0]["text"] for chunk in own[: len(n_done)]) == ""
    assert all(chunk["choices"][0]["index"] in (0, 2) for chunk in chunks if "prompt_progress" in chunk)


def test_figures_ride_on_every_chunk_where_they_are_asked_for():
    """V18: counted over all choices."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    with serving() as running:
        chunks = chunks_of(running, prompt="abc", n=2, timings_per_token=True, stream_options=options)
        plain = chunks_of(running, prompt="abc", stream_options={"include_usage": True})
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
        with complete(running.engine, prompt=prompt, return_token_ids=True, n=2) as completion:
            finish(completion)
            whole = completion.choices()
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[97, 98, 99], *[None] * (len(choices) - 1)]
    assert [id for choice in choices for id in choice.get("token_ids", ())] == [97, 98, 99]
    assert [(choice.token_ids, choice.prompt_token_ids) for choice in whole] == [([97, 98, 99], (97, 98, 99))] * 2


def test_request_says_how_long_silence_may_last():
    gate = threading.Semaphore(0)
    with serving(gate=gate) as running, running.connect() as sock:
        sock.sendall(completion_request(prompt="ab", stream=True, sse_ping_interval=0.01))
        read_until(sock, b"\n:")
        gate.release(100)
        assert b"[DONE]" in read_until(sock, b"[DONE]")


def test_silent_stream_shows_that_it_lives():
    gate = threading.Semaphore(0)
    with serving(gate=gate, settings=Settings(port=0, ping_s=0.01)) as running, running.connect() as sock:
        sock.sendall(completion_request(prompt="ab", stream=True))
        head = read_until(sock, b"\r\n\r\n")
        assert b"200 OK" in head
        read_until(sock, b"\n:")
        gate.release(100)
        assert b"[DONE]" in read_until(sock, b"[DONE]")


def test_metrics_and_slots_while_the_model_loads():
    with serving(is_ready=False) as running, running.connect() as sock:
        sock.sendall(raw_request(b"", path="/metrics", method="GET"))
        raw = read_until(sock, b"\r\n\r\n")
        assert b"200 OK" in raw
        assert b"text/plain" in raw
        sock.sendall(raw_request(b"", path="/slots", method="GET"))
        assert b"503 " in read_until(sock, b"loading")
