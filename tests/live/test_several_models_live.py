"""Several models of one server as real engine processes: three families by name, kills, memory, and the client."""

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localchat import Client
from localchat.serving.core.server_options import Options
from localchat.serving.engine import process
from localchat.serving.http.model_endpoints import state_word
from localchat.serving.loading.loader import Loader
from localchat.serving.loading.service import Service
from localchat.serving.models.catalog import Catalog
from localchat.serving.models.model_file import DEMO_PATH
from tests.support import tiny_models
from tests.support.engine_programs import LIMITED
from tests.support.exchanges import ask
from tests.support.live import ServerProcess, engines_of, running_process
from tests.support.serving import served, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds the engine processes by Linux's means")

HI = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(DEMO_PATH, folder / "llama-tiny.gguf")
    tiny_models.write_mamba(folder / "mamba-tiny.gguf")
    tiny_models.write_sliding(folder / "sliding-tiny.gguf", 64)
    (folder / "models.json").write_text('{"other": {"path": "sliding-tiny.gguf", "ctx": 512, "parallel": 2}}')
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with running_process("--models-dir", str(folder), "--max-models", "2") as found:
        yield found


def engines(server: ServerProcess) -> list[int]:
    return engines_of(server.process.pid)


def complete(port: int, model: str) -> tuple[int, Any]:
    return ask(port, "/v1/chat/completions", {"model": model, "messages": HI, "max_tokens": 2})


def test_models_of_three_families_are_served_by_name(server: ServerProcess):
    for model in ("llama-tiny", "mamba-tiny", "other", "Llama-Tiny", "demo"):
        assert complete(server.port, model)[0] == 200
        assert len(engines(server)) <= 2
    models = Client(server.url).models()
    states = {"demo": "loaded", "llama-tiny": "loaded", "mamba-tiny": "unloaded", "other": "unloaded"}
    assert {str(model): model.state for model in models} == states
    assert Client(server.url, model="mamba-tiny").chat("hello", max_tokens=3).model == "mamba-tiny"
    settings = next(model for model in Client(server.url).models() if model == "mamba-tiny")
    assert (settings.state, settings.context_length is not None) == ("loaded", True)
    assert complete(server.port, "other")[0] == 200
    assert next(m for m in Client(server.url).models() if m == "other").context_length == 512


def test_kill_of_one_engine_leaves_the_streams_of_the_other(server: ServerProcess):
    assert complete(server.port, "demo")[0] == 200
    before = set(engines(server))
    assert complete(server.port, "mamba-tiny")[0] == 200
    (killed,) = set(engines(server)) - before
    options = {"max_tokens": 120, "extra_body": {"ignore_eos": True}, "allow_truncated": True}
    with ThreadPoolExecutor(4) as pool:
        chats = [pool.submit(Client(server.url, model="demo").chat, "hello", **options) for _ in range(4)]
        os.kill(killed, signal.SIGKILL)
        assert [chat.result(60).usage.output_tokens for chat in chats] == [120] * 4
    assert complete(server.port, "mamba-tiny")[0] == 200


def resident_kb(server: ServerProcess) -> int:
    """The memory of the server and its engines without shared files."""
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in (server.process.pid, *engines(server))]
    return sum(int(text.partition("RssAnon:")[2].split()[0]) for text in texts)


def test_unloaded_model_gives_its_memory_back(server: ServerProcess):
    for model in ("demo", "llama-tiny"):
        assert complete(server.port, model)[0] == 200
    n_engines, loaded_kb = len(engines(server)), resident_kb(server)
    assert ask(server.port, "/models/unload", {"model": "llama-tiny"})[0] == 200
    wait_for(lambda: len(engines(server)) == n_engines - 1)
    assert resident_kb(server) < loaded_kb - 10_000


# --- a machine with little memory ---

MB = 10**6


@contextlib.contextmanager
def limited(folder: Path, monkeypatch: Any, n_bytes: int, contexts: dict[str, int]) -> Iterator[tuple[Service, int]]:
    """A server in this process whose engine processes have this much memory, and its port. `contexts` has the models,
    each with its context, 0 for the default one."""
    for name in contexts:
        shutil.copy(DEMO_PATH, folder / f"{name}.gguf")
    settings = {name: {"path": f"{name}.gguf", "ctx": n_ctx} for name, n_ctx in contexts.items() if n_ctx}
    (folder / "models.json").write_text(json.dumps(settings))
    monkeypatch.setattr(process, "COMMAND", [sys.executable, "-c", LIMITED])
    monkeypatch.setenv("LIMITED_MEMORY", str(n_bytes))
    monkeypatch.setenv("LIMITED_FOLDER", str(folder))
    catalog, options = Catalog([folder], environment={"HOME": str(folder)}), Options(port=0, n_parallel=1)
    first = catalog.find(next(iter(contexts)))
    with contextlib.closing(Loader(options)) as loader:
        service = Service(first, catalog=catalog, load=loader.load)
        with served(service, options) as (server, _):
            yield service, server.server_port


def test_idle_model_is_ended_for_a_context_that_does_not_fit_beside_it(tmp_path, monkeypatch):
    """A token takes 4.6 kB, of which 3.6 are in the KV cache, and a process 30 MB."""
    contexts = {"one": 20_000, "two": 20_000, "three": 30_000, "huge": 100_000_000}
    with limited(tmp_path, monkeypatch, 300 * MB, contexts) as (service, port):
        for name in ("one", "two", "one", "three"):
            assert complete(port, name)[0] == 200
        assert [state_word(service.find(name)) for name in contexts] == ["loaded", "unloaded", "loaded", "unloaded"]
        status, body = complete(port, "huge")
        assert status == 500
        reason = r"100000000 tokens takes \d+\.\d GB, and \d+ MB are free.*: the largest that fits is --ctx \d+"
        assert re.search(reason, body["error"]["message"])
        assert [served.file.name for served in service.loaded_models()] == ["one", "three"]


def test_default_context_is_smaller_only_beside_a_model_in_use(tmp_path, monkeypatch, caplog):
    with limited(tmp_path, monkeypatch, 110 * MB, {"one": 0, "two": 0}) as (service, port):
        assert complete(port, "one")[0] == 200
        one, two = service.find("one"), service.find("two")
        wait_for(lambda: not one.n_users)  # The response has ended, and its thread a moment later.
        with service.using(two) as model:
            assert (state_word(one), model.engine.facts.n_ctx) == ("unloaded", 4096)
            assert "to save memory" not in caplog.text
            assert complete(port, "one")[0] == 200
            assert [state_word(one), state_word(two)] == ["loaded", "loaded"]
            n_ctx = one.model.engine.facts.n_ctx
        assert 512 <= n_ctx < 4096
        assert f"the context has {n_ctx} tokens, to save memory" in caplog.text
