"""Engines on fake backends, stepped by hand or with their thread, and runs with one sequence, read item by item."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from localchat.serving.chat.dialects.parser import OutputParser
from localchat.serving.chat.model import Model
from localchat.serving.chat.runs.generation import GenerationRun
from localchat.serving.chat.runs.output_reader import OutputReader, PlainText
from localchat.serving.core.errors import ApiError
from localchat.serving.core.events import ContentDelta, Event, OutputEnd, OutputEvent, OutputToken, SampledTokens, Usage
from localchat.serving.core.mailbox import Mailbox
from localchat.serving.core.params import GenerationParams
from localchat.serving.engine.delivery import Delivery
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.engine_client import EngineClient
from localchat.serving.engine.request_runner import RequestRunner
from localchat.serving.engine.values import End, EngineDied, SequenceRequest, StepOutput, TokenizedPrompts, TokenTexts
from tests.support.deadline import DEADLINE_S
from tests.support.fakes import FakeBackend

_PARAMS = {field.name for field in fields(GenerationParams)} - {"sampling"}


def request_for(prompt: tuple[int, ...], **options: Any) -> SequenceRequest:
    """A request with fields of SequenceRequest and of GenerationParams, by their names. It returns token ids."""
    params = {name: options.pop(name) for name in list(options) if name in _PARAMS}
    return SequenceRequest(prompt, GenerationParams(**params), **{"returns_ids": True, **options})


def request(text: str = "hello", **options: Any) -> SequenceRequest:
    return request_for(tuple(text.encode()), **options)


class Finish(NamedTuple):
    """The end of a generation, with its usage."""

    reason: str
    stop: str | int | None
    last: OutputToken | None
    usage: Usage


def output_of(
    pieces: Sequence[bytes], parser: OutputParser | None = None, echo: Sequence[Event] = (), **options: Any
) -> OutputReader:
    """An output of tokens with these bytes, whose ids are their indexes. Options are those of the request."""
    texts = TokenTexts(pieces, frozenset(), frozenset())
    return OutputReader(request_for((0,), **options), texts, parser or PlainText(), echo)


def events_of(output: OutputReader, *tokens: int, end: str | None = None) -> list[OutputEvent]:
    """The events of a step with these tokens."""
    return output.read([StepOutput(0, 0.0, tokens=tokens, end=None if end is None else End(end))])


class ImmediateDelivery(Delivery):
    """Sends each output at once."""

    def start(self, id: int, prompts: TokenizedPrompts) -> None:
        super().start(id, prompts)
        self.send_due(True)

    def add(self, id: int, output: StepOutput) -> None:
        super().add(id, output)
        self.send_due(True)

    def end(self, id: int, error: Exception | None) -> None:
        super().end(id, error)
        self.send_due(True)


class LocalEngine(EngineClient):
    """The client of an engine in this process. The messages between them are those of an engine process."""

    def __init__(self, engine: Engine, max_queue: int = 256) -> None:
        """If the engine is stepped by hand, its side of a request runs on the calling thread, otherwise on others."""

        def run_on_thread(work: Callable[[], None]) -> None:
            threading.Thread(target=work).start()

        def run_at_once(work: Callable[[], None]) -> None:
            work()
            engine._run_commands()  # The test reads the first output before it steps.

        run = run_at_once if engine._thread is None else run_on_thread
        self.engine = engine
        self.server = RequestRunner(lambda messages: self.receive(copied(messages)), run, ImmediateDelivery)
        self.server.engine = engine
        super().__init__(self._send_to_engine)
        self.facts, self.texts = engine.facts, engine.texts
        self.max_open = engine.facts.n_parallel + max_queue

    def _send_to_engine(self, message: Any) -> None:
        self.server.receive(*copied(message))
        if self.engine.failure is not None:  # An engine process would end.
            self.end(EngineDied(f"the engine has stopped: {self.engine.failure!r}"))

    def crash(self) -> None:
        """End as an engine process does that crashes."""
        self.end(EngineDied("the engine process was killed by SIGSEGV"))
        self.engine.close()

    def stop(self) -> None:
        self.engine.stop()

    def close(self) -> None:
        self.engine.close()


class DeadlineMailbox(Mailbox):
    """A mailbox in which something must arrive."""

    def take(self, sender: object, timeout_s: float | None = None) -> list[Any]:
        messages = super().take(sender, DEADLINE_S if timeout_s is None else timeout_s)
        assert messages or timeout_s is not None, "the deadline passed"
        return messages


def copied(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))


def client_of(engine: Engine | EngineClient, **options: Any) -> EngineClient:
    """The client of an engine; its first call may have options of LocalEngine."""
    if isinstance(engine, EngineClient):
        return engine
    client: EngineClient = vars(engine).setdefault("test_client", None) or LocalEngine(engine, **options)
    vars(engine)["test_client"] = client
    return client


def run_of(engine: Engine | EngineClient, requests: Sequence[SequenceRequest]) -> GenerationRun:
    """A run whose events have the tokens and, beside them, their text."""
    outputs = [OutputReader(request, engine.texts, PlainText()) for request in requests]
    model = cast(Model, SimpleNamespace(name="m", engine=client_of(engine)))
    return GenerationRun(model, outputs, "id-", DeadlineMailbox(), n_each=len(requests), prompt_field="prompt")


class Generation:
    """An iterator of the events of a run with one sequence, with a Finish as its end. Leaving the `with` cancels it."""

    def __init__(self, run: GenerationRun) -> None:
        self.run = run
        self._items: list[OutputEvent | Exception] = []

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.wait(DEADLINE_S)
        if not self._items:
            assert not self.run.is_running, "the deadline passed"
            raise StopIteration
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        if isinstance(item, OutputEnd):
            return Finish(item.reason, item.stop, item.last, self.run.usage())
        return item

    def wait(self, timeout_s: float) -> bool:
        """Whether there is an item or an error within the timeout."""
        ends_at = time.monotonic() + timeout_s
        while not self._items and self.run.is_running:
            try:
                events = self.run.take(timeout_s)
                self._items = [event for _, event in events if not isinstance(event, ContentDelta)]
            except ApiError as error:
                self._items = [error]
            if time.monotonic() >= ends_at:
                break
        return bool(self._items)

    def cancel(self) -> None:
        self.run.drop()


def submit(engine: Engine | EngineClient, request: SequenceRequest) -> Generation:
    return Generation(run_of(engine, [request]))


def tokens_of(items: Iterable[object]) -> list[OutputToken]:
    return [token for item in items if isinstance(item, SampledTokens) for token in item.tokens]


def text_of(items: Iterable[object]) -> str:
    return b"".join(token.piece for token in tokens_of(items)).decode("utf-8", "replace")


def read(generation: Generation) -> tuple[str, Finish]:
    """The text and the finish of a generation. Fails unless the last item is the only Finish."""
    *items, finish = generation
    assert all(isinstance(item, SampledTokens) for item in items)
    assert isinstance(finish, Finish)
    return text_of(items), finish


def step_until_idle(engine: Engine) -> int:
    n_steps = 0
    while engine.step():
        n_steps += 1
        assert n_steps < 10_000
    return n_steps


class CheckedEngine(Engine):
    """An engine on a fake backend that checks its KV cache after each step. It fails if the check does."""

    def _step(self, wait: bool) -> bool:
        has_run = super()._step(wait)
        cast(FakeBackend, self.backend).check(self._cache)
        return has_run


@contextmanager
def stepped(backend: FakeBackend, max_queue: int = 256, **options: Any) -> Iterator[Engine]:
    """An engine that is stepped by hand. At the end it must have released everything."""
    with CheckedEngine(backend, **options) as engine:
        client_of(engine, max_queue=max_queue)
        yield engine
        stats = engine.stats()
        is_idle = not engine._groups and engine.failure is None
        assert not is_idle or (stats.n_running, stats.n_waiting, stats.n_cells_active) == (0, 0, 0)
        assert not isinstance(engine.failure, AssertionError), engine.failure
    assert backend.is_closed


def started(backend: FakeBackend, max_queue: int = 256, **options: Any) -> Engine:
    """An engine with its thread."""
    engine, has_started = CheckedEngine(backend, **options), threading.Event()
    threading.Thread(target=engine.run, args=(has_started.set,), name="localchat-engine").start()
    assert has_started.wait(DEADLINE_S)
    client_of(engine, max_queue=max_queue)
    return engine
