"""The output of one sequence, up to its end or a stop text, and runs with several sequences."""

import itertools
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.parser import OutputParser
from localchat.serving.chat.model import Model
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.chat.runs.start import start_chat
from localchat.serving.core import scan
from localchat.serving.core.errors import BadRequest, QueueFull
from localchat.serving.core.events import ContentDelta, OutputEnd, OutputToken, PromptProgress, SampledTokens
from localchat.serving.core.mailbox import Mailbox
from localchat.serving.core.request import ChatRequest
from localchat.serving.engine.values import End, EngineError, StepOutput
from tests.support import engines
from tests.support.deadline import DEADLINE_S
from tests.support.dialect_outputs import cuts, text_of
from tests.support.engines import (
    LocalEngine,
    client_of,
    events_of,
    output_of,
    request,
    request_for,
    run_of,
    step_until_idle,
    stepped,
)
from tests.support.fakes import FakeBackend, echo, endless
from tests.support.serving import BIG, TOOLS, generating, serving, wait_for

CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
IN_TAGS = "<tool_call>\n<function=look>\n<parameter=at>\nRome\n</function>\n</tool_call>"  # Without </parameter>.


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ("Hi", "stop", "stop"),
        ("Hi", "length", "length"),
        (CALL, "stop", "tool_calls"),
        (CALL, "length", "tool_calls"),
        (CALL + CALL[:-15], "length", "length"),
        (CALL[:-15], "stop", "stop"),
        (CALL[:-13], "length", "length"),
        (CALL[:15], "length", "length"),
        (CALL[:-13] + ', "note": "x', "length", "length"),
        (CALL[:-13], "stop", "tool_calls"),
        (IN_TAGS, "stop", "tool_calls"),
        (IN_TAGS, "length", "length"),
        (CALL[:-13] + ', "note": *}', "stop", "tool_calls"),
        (CALL + "Hi", "length", "tool_calls"),
    ],
)
def test_finish_reason(text: str, reason: str, expected: str):
    """An output with a call that is cut does not end with "tool_calls", since clients would run it."""
    output = output_of([text.encode()], OutputParser(DIALECTS["hermes"], tools=TOOLS))
    events = events_of(output, 0, end=reason)
    assert events[-1] == OutputEnd(expected)
    assert output.finish_reason == expected


def test_echo_comes_before_the_first_token_and_after_progress():
    a, b = OutputToken(0, b"a"), OutputToken(1, b"b")
    output = output_of([b"a", b"b"], echo=[ContentDelta("Once")], reports_progress=True, stop_token_ids=(1,))
    older, newer = PromptProgress(1, 3, 0, 0.5), PromptProgress(2, 3, 0, 0.5)
    steps = [StepOutput(0, 1.0, progress=older), StepOutput(0, 2.0, progress=newer)]
    assert output.read(steps) == [newer]
    assert output.read([StepOutput(0, 3.0, tokens=[0]), StepOutput(0, 4.0, end=End("stop", 1))]) == [
        ContentDelta("Once"),
        SampledTokens((a,)),
        ContentDelta("a"),
        OutputEnd("stop", 1, b),
    ]
    usage = output.usage()
    assert (usage.n_completion, usage.prompt_s, usage.completion_s) == (2, 2.0, 1.0)


# Stop texts end the content, at any cut. A word of the reasoning or of a call ends nothing.


def text_and_stop(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[str, str | int | None]:
    """The text of the pieces up to a stop text, and this stop text."""
    output, events = output_of(pieces, stop=stop), list[Any]()
    for i in range(len(pieces) + 1):
        if output.finish_reason is None:
            events += events_of(output, *range(i, len(pieces))[:1], end=None if i < len(pieces) else "length")
    *_, end = events
    assert isinstance(end, OutputEnd)
    assert end.reason == ("length" if end.stop is None else "stop")
    return text_of(events, ContentDelta), end.stop


CASES = {
    "plain": (b"hello world", (), "hello world", None),
    "characters of 1 to 4 bytes": ("aé€😀z".encode(), (), "aé€😀z", None),
    "invalid byte": (b"a\xffb", (), "a\ufffdb", None),
    "cut character at the end": ("a😀".encode()[:-1], (), "a\ufffd", None),
    "stop with a cut character": ("a😀".encode()[:-1], ("\ufffd",), "a", "\ufffd"),
}


@pytest.mark.parametrize(("data", "stop", "text", "stopped_by"), CASES.values(), ids=CASES.keys())
def test_every_cut_gives_the_same_text(data: bytes, stop: tuple[str, ...], text: str, stopped_by: str | None):
    for pieces in cuts(data):
        assert text_and_stop(pieces, stop) == (text, stopped_by), pieces


def test_stop_text_at_the_start_of_the_content_ends_the_tags_of_the_reasoning():
    parser = OutputParser(DIALECTS["hermes"], is_raw=True)
    output = output_of([b"<think>hm</think>", b"END"], parser, stop=("END",))
    assert text_of(events_of(output, 0, 1), ContentDelta) == "<think>hm</think>"
    assert output.finish_reason == "stop"


@pytest.mark.parametrize("stop", [(), ("\n",)], ids=["no stop text", "stop text"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<think>\n hm \n\n</think>\n\n Hi\nyou"),
        ("hermes", "<think>\n\n</think>\n\nHi"),
        ("hermes", "\n<think> \nh\nm "),
        ("hermes", "<think>"),
        ("gemma-4", "<|channel>thought\n<channel|>Hi <channel|>\n<|channel>thought\nhm<channel|> \n you"),
        ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|end|>"),
    ],
)
def test_raw_output_is_the_text_as_it_was_generated(name: str, text: str, stop: tuple[str, ...]):
    """Stop texts and the count of reasoning tokens do not change."""
    pieces = [character.encode() for character in text]
    raw, split = (
        output_of(pieces, DIALECTS[name].parser(DIALECTS[name], is_raw=is_raw), stop=stop) for is_raw in (True, False)
    )
    events, _ = (events_of(output, *range(len(pieces)), end="length") for output in (raw, split))
    content = text_of(events, ContentDelta)
    assert text.startswith(content + "\n") if raw.finish_reason == "stop" else content == text
    for counted in ("n_completion", "n_reasoning"):
        assert getattr(raw.usage(), counted) == getattr(split.usage(), counted)
    assert raw.finish_reason == split.finish_reason


def test_text_is_returned_as_soon_as_it_cannot_be_a_stop_text():
    output = output_of([b"a", b"<", b"e", b"x", b"y"], stop=("<end>",))
    assert [text_of(events_of(output, i), ContentDelta) for i in range(5)] == ["a", "", "", "<ex", "y"]


def test_character_is_returned_with_its_last_byte():
    output = output_of([bytes([byte]) for byte in "é€".encode()])
    assert [text_of(events_of(output, i), ContentDelta) for i in range(5)] == ["", "é", "", "", "€"]


def test_tokens_after_a_stop_text_are_neither_shown_nor_counted():
    output = output_of([b"a", b"b!c", b"d"], stop=("!",))
    assert text_of(events_of(output, 0, 1, 2), ContentDelta) == "ab"
    assert (output.finish_reason, output.usage().n_completion) == ("stop", 2)


def test_tokens_after_a_stop_text_that_was_held_back_are_neither_shown_nor_counted():
    """The text might have been the beginning of a call, which the third token rules out."""
    parser = DIALECTS["hermes"].parser(DIALECTS["hermes"], tools=TOOLS)
    output = output_of([b"a", b"<too", b"x", b"y"], parser, stop=("<too",))
    events = [*events_of(output, 0), *events_of(output, 1), *events_of(output, 2, 3)]
    assert text_of(events, ContentDelta) == "a"
    assert (output.finish_reason, output.usage().n_completion) == ("stop", 3)


@pytest.mark.parametrize("stop", [(), ("so",)], ids=["no stop text", "stop text"])
@pytest.mark.parametrize("seed", range(10))
def test_tokens_of_a_text_do_not_depend_on_how_many_are_read_at_once(seed: int, stop: tuple[str, ...]):
    random_ = random.Random(seed)
    pieces = [character.encode() for character in f"<think>hm é</think>\n\nHi{CALL}so END"]

    def tokens_by_text(most: int) -> list[tuple[str, str]]:
        """The kind of each event with text, and the tokens since the one before."""
        parser = DIALECTS["hermes"].parser(DIALECTS["hermes"], tools=TOOLS)
        output = output_of(pieces, parser, stop=stop, returns_ids=True)
        ids, tokens, found = iter(range(len(pieces))), "", list[tuple[str, str]]()
        while output.finish_reason is None:
            read = list(itertools.islice(ids, random_.randint(1, most)))
            for event in events_of(output, *read, end=None if read else "length"):
                if isinstance(event, SampledTokens):
                    tokens += "".join(token.piece.decode("latin-1") for token in event.tokens)
                    continue
                kind = type(event).__name__
                if found and found[-1][0] == kind:
                    tokens = found.pop()[1] + tokens
                found.append((kind, tokens))
                tokens = ""
        return found

    assert tokens_by_text(1) == tokens_by_text(30) == tokens_by_text(1000)


@pytest.mark.parametrize("seed", range(50))
def test_random_texts_match_a_search_in_the_whole_text(seed: int):
    random_ = random.Random(seed)
    text = "".join(random_.choices("ab€", k=30))
    stop = tuple({"".join(random_.choices("ab€", k=random_.randint(1, 4))) for _ in range(2)})
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    expected = (text[: min(ends)[1]], min(ends)[2]) if ends else (text, None)
    for pieces in cuts(text.encode()):
        assert text_and_stop(pieces, stop) == expected


LOOK = '<tool_call>\n{"name": "look", "arguments": {"at": "Rome"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "stop", "content", "reason"),
    [
        pytest.param("<think>see END</think>Hi END you", "END", "Hi ", "stop", id="word of the reasoning"),
        pytest.param("<think>hm", "hm", "", "length", id="reasoning that is cut"),
        pytest.param("Hi" + LOOK, "Rome", "Hi", "tool_calls", id="word of the arguments"),
        pytest.param("Hi" + LOOK, "name", "Hi", "tool_calls", id="word of the format"),
        pytest.param("Hi" + LOOK, "<tool_call>", "Hi", "tool_calls", id="marker"),
        pytest.param("Hi" + LOOK + "so END", "END", "Hiso ", "tool_calls", id="after a call"),
        pytest.param("Hi END" + LOOK, "END", "Hi ", "stop", id="before a call"),
        pytest.param("Hi" + LOOK[:-20], "Rome", "Hi", "length", id="call that is cut"),
    ],
)
def test_stop_text_counts_in_the_content_alone(text: str, stop: str, content: str, reason: str):
    with serving(generating(text), **BIG) as running:
        _, body = running.chat(tools=TOOLS, stop=stop, max_tokens=len(text))
    (choice,) = body["choices"]
    assert ((choice["message"]["content"] or ""), choice["finish_reason"]) == (content, reason)
    calls = choice["message"].get("tool_calls", [])
    if reason == "tool_calls":
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"at": "Rome"}]


# --- runs with several sequences, on a fake backend ---


def test_events_of_all_sequences_come_in_order_with_their_index():
    with stepped(FakeBackend()) as engine, run_of(engine, [request("ab"), request("cdef")]) as run:
        texts, ends = ["", ""], []
        while run.is_running:
            engine.step()
            for index, event in run.take(0):
                assert index not in ends
                if isinstance(event, OutputEnd):
                    ends.append(index)
                elif isinstance(event, ContentDelta):
                    texts[index] += event.text
        assert (texts, sorted(ends)) == (["ab", "cdef"], [0, 1])
        assert [output.usage().n_completion for output in run.outputs] == [3, 5]


def test_all_sequences_are_queued_or_none():
    with stepped(FakeBackend(n_parallel=1), max_queue=2) as engine:
        with pytest.raises(BadRequest):
            run_of(engine, [request("ab"), request_for((999,))])
        with pytest.raises(QueueFull):
            run_of(engine, [request("ab")] * 4)
        assert not engine.step()
        run_of(engine, [request("ab")] * 3)
        assert step_until_idle(engine)


def test_nothing_is_made_for_a_request_beyond_the_queue(monkeypatch: pytest.MonkeyPatch):
    with stepped(FakeBackend(n_parallel=1, chat_template="{{ messages }}"), max_queue=0) as engine:
        run_of(engine, [request("ab")])
        model = Model("m", client_of(engine))
        monkeypatch.setattr(LocalEngine, "_start", None)
        monkeypatch.setattr(ChatTemplate, "render", None)
        with pytest.raises(QueueFull):
            start_chat(model, ChatRequest(messages=({"role": "user", "content": "a"},)), "", Mailbox())


def test_one_sequence_can_end_at_a_stop_text_and_the_others_continue():
    requests = [request(max_tokens=9, stop=("b",)), request(max_tokens=4)]
    with stepped(FakeBackend(endless)) as engine, run_of(engine, requests) as run:
        for _ in range(3):
            engine.step()
        first = [event for index, event in run.take() if index == 0 and not isinstance(event, SampledTokens)]
        # Nothing comes after the stop text.
        assert first == [ContentDelta("a"), OutputEnd("stop", "b")]
        step_until_idle(engine)
        assert engine.stats().n_sampled == 3 + 4
        assert [(i, event) for i, event in run.take() if not isinstance(event, SampledTokens)] == [
            (1, ContentDelta("d")),
            (1, OutputEnd("length")),
        ]
        assert not run.is_running


def test_long_stop_texts_are_not_compiled():
    """A pattern of them would take seconds, and would stay in memory after the request."""
    before = scan._compiled.cache_info().currsize
    assert events_of(output_of([b"b"], stop=("a" * 100_000, "c")), 0)[1:] == [ContentDelta("b")]
    assert scan._compiled.cache_info().currsize == before


@pytest.mark.parametrize("n_steps", [0, 3])
def test_run_that_is_dropped_ends_all_of_its_sequences(n_steps: int):
    with stepped(FakeBackend(endless)) as engine:
        with run_of(engine, [request(), request()]) as run:
            for _ in range(n_steps):
                engine.step()
        assert not run.is_running
        assert not engine.step()
        assert client_of(engine).n_open == client_of(engine).n_requests == 0


def test_failure_of_one_sequence_ends_the_run():
    backend = FakeBackend(echo, poison=ord("!"))
    with stepped(backend) as engine, run_of(engine, [request("good"), request("bad!")]) as run:
        step_until_idle(engine)
        assert run.take()
        with pytest.raises(EngineError, match="could not compute"):
            run.take()
        assert not run.is_running


class Gate:
    """Holds the engine before its first step."""

    def __init__(self) -> None:
        self.is_reached, self.is_open = threading.Event(), threading.Event()

    def acquire(self, timeout: float) -> bool:
        self.is_reached.set()
        return self.is_open.wait(timeout)


def test_time_in_the_queue_is_apart_from_the_time_of_the_prompt():
    """The first prompt is held for some time in its first step, and the second one in the queue."""
    gate: Any = Gate()
    submitted_at = time.perf_counter()
    with ThreadPoolExecutor() as threads, engines.started(FakeBackend(n_parallel=1, gate=gate)) as engine:
        submitting = [threads.submit(engines.submit, engine, request("ab"))]
        assert gate.is_reached.wait(DEADLINE_S)
        submitting.append(threads.submit(engines.submit, engine, request("cd")))
        wait_for(lambda: len(engine._groups) == 2)
        held_at = time.perf_counter()
        threading.Event().wait(0.05)
        opened_at = time.perf_counter()
        gate.is_open.set()
        first, second = (submitted.result(DEADLINE_S) for submitted in submitting)
        for generation in (first, second):
            while generation.run.is_running:
                generation.run.take(DEADLINE_S)
        ended_at = time.perf_counter()
    first_usage, second_usage = first.run.usage(), second.run.usage()
    assert first_usage.queue_s <= held_at - submitted_at
    assert first_usage.prompt_s >= opened_at - held_at <= second_usage.queue_s
    assert second_usage.prompt_s <= ended_at - opened_at
