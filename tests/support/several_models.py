"""A server of several models, which are files of a folder; their engines are fakes that repeat the prompt."""

import contextlib
import http.client
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localchat.serving.chat.model import Model
from localchat.serving.core.server_options import Options
from localchat.serving.engine.engine import Engine
from localchat.serving.http.http_server import ChatServer
from localchat.serving.http.model_endpoints import state_word
from localchat.serving.loading.service import Service
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.memory import NotEnoughMemory, OtherModels
from localchat.serving.models.model_file import DEMO_PATH, ModelFile
from tests.support.chat_requests import HI
from tests.support.engines import client_of, started
from tests.support.exchanges import ask
from tests.support.fakes import FakeBackend
from tests.support.serving import LAST_MESSAGE, served, wait_for

NAMES = ("one", "two", "three")


class Loads:
    """Loads fake models of 1 GB, and records what was loaded. `gate` is acquired before each load."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.engines: dict[str, Engine] = {}
        self.most_at_once = 0
        # How many models fit into memory, the bytes missing for one more, and whether a smaller context would do.
        self.memory, self.n_missing, self.can_shrink = math.inf, 10**9, False
        self.error: Exception | None = None
        self.on_load: Callable[[], None] = lambda: None  # Called within each load.
        self.gate = threading.Semaphore(1_000_000)

    def __call__(self, file: ModelFile, others: OtherModels, on_progress: Callable[[float], None]) -> Model:
        name = file.name
        self.names.append(name)
        on_progress(0.5)
        assert self.gate.acquire(timeout=60), "the test never opened the gate"
        self.on_load()
        if self.error is not None:
            raise self.error
        if self.n_open + 1 > self.memory and (others.n_idle or not self.can_shrink):
            raise NotEnoughMemory("the weights take too much", 0 if self.can_shrink else self.n_missing)
        backend = FakeBackend(chat_template=LAST_MESSAGE)
        backend.facts = replace(backend.facts, n_bytes=10**9)
        engine = self.engines[name] = started(backend)
        self.most_at_once = max(self.most_at_once, self.n_open)
        return Model(name, client_of(engine))

    @property
    def n_open(self) -> int:
        return sum(not engine.backend.is_closed for engine in self.engines.values())


@dataclass
class Running:
    """A server of three models in a folder. The built-in model, which is loaded at first, is the default."""

    service: Service
    loads: Loads
    http_server: ChatServer
    later: Callable[..., Future[Any]]  # Calls a function on a thread.
    skew_s: list[float]  # How far the clock of the service is ahead.

    def pass_time(self, seconds: float) -> None:
        """Advance the clock of the service. Threads that wait read it again."""
        self.skew_s[0] += seconds
        with self.service._lock:
            self.service._lock.notify_all()

    def get(self, path: str) -> tuple[int, Any]:
        return ask(self.http_server.server_port, path)

    def post(self, path: str, **body: Any) -> tuple[int, Any]:
        return ask(self.http_server.server_port, path, body)

    def chat(self, model: str, **fields: Any) -> tuple[int, Any]:
        return self.post("/v1/chat/completions", **{"model": model, "messages": HI, **fields})

    def together(self, *requests: dict[str, Any]) -> list[tuple[int, Any]]:
        """The responses to chat requests that are sent at the same time."""
        return [waiting.result(60) for waiting in [self.later(self.chat, **fields) for fields in requests]]

    def statuses(self, *models: str) -> list[int]:
        """The statuses of requests for models, one after another."""
        return [self.chat(model)[0] for model in models]

    def requested(self, path: str = "/v1/chat/completions", **fields: Any) -> http.client.HTTPConnection:
        """A connection on which a request for the model `one` was sent, which now waits for a load."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_server.server_port, timeout=60)
        connection.request("POST", path, json.dumps({"model": "one", "messages": HI, **fields}))
        self.wait("one", "loading")
        return connection

    def states(self, *models: str) -> list[str]:
        return [state_word(self.service.find(model)) for model in models or NAMES]

    def wait(self, model: str, state: str) -> None:
        wait_for(lambda: self.states(model) == [state])


@contextlib.contextmanager
def several_models(folder: Path, **options: Any) -> Iterator[Running]:
    for name in NAMES:
        (folder / f"{name}.gguf").write_bytes(DEMO_PATH.read_bytes()[:70_000])
    loads, settings = Loads(), Options(port=0, **options)
    catalog = Catalog([folder], environment={"HOME": str(folder)})
    skew_s = [0.0]
    clock = {"clock": lambda: time.monotonic() + skew_s[0]}
    service = Service(ModelFile(DEMO_PATH, "demo"), settings, catalog=catalog, load=loads, **clock)
    with ThreadPoolExecutor(64) as threads, served(service, settings) as (found, _):
        try:
            yield Running(service, loads, found, threads.submit, skew_s)
        finally:
            loads.gate.release(1000)
    assert loads.n_open == 0
