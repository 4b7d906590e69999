"""Several models of one server as real engine processes: three families by name, kills, memory, and the client."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localchat import Client
from localchat.serving.models.catalog import DEMO_PATH

from .exchanges import ask
from .live import ServerProcess, running_process
from .serving import wait_for
from .soak.faults import engines_of

pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
pytest.importorskip("gguf", reason="the tiny models are written with the gguf package")
tiny_models = importlib.import_module("tests.tiny_models")
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


def resident_bytes(server: ServerProcess) -> int:
    """The memory of the server and its engines without shared files."""
    texts = (Path(f"/proc/{pid}/status").read_text() for pid in [server.process.pid, *engines(server)])
    return sum(int(text.partition("RssAnon:")[2].split()[0]) * 1024 for text in texts)


def chat(server: ServerProcess, model: str, **fields: object) -> int:
    body = {"model": model, "messages": HI, "max_tokens": 4, **fields}
    return ask(server.port, "/v1/chat/completions", body)[0]


def test_models_of_three_families_are_served_by_name(server: ServerProcess):
    for model in ("llama-tiny", "mamba-tiny", "other", "Llama-Tiny", "demo"):
        assert chat(server, model) == 200
        assert len(engines(server)) <= 2
    models = Client(server.url).models()
    assert {str(model): model.state for model in models} == {
        "demo": "loaded",
        "llama-tiny": "loaded",
        "mamba-tiny": "unloaded",
        "other": "unloaded",
    }
    assert Client(server.url, model="mamba-tiny").chat("hello", max_tokens=3).model == "mamba-tiny"
    settings = next(model for model in Client(server.url).models() if model == "mamba-tiny")
    assert (settings.state, settings.context_length is not None) == ("loaded", True)
    assert chat(server, "other") == 200
    assert next(m for m in Client(server.url).models() if m == "other").context_length == 512


def test_kill_of_one_engine_leaves_the_streams_of_the_other(server: ServerProcess):
    assert chat(server, "demo") == 200
    before = set(engines(server))
    assert chat(server, "mamba-tiny") == 200
    (killed,) = set(engines(server)) - before
    lengths: list[int] = []

    def stream() -> None:
        reply = Client(server.url, model="demo").chat(
            "hello", max_tokens=600, extra_body={"ignore_eos": True}, allow_truncated=True
        )
        lengths.append(reply.usage.output_tokens if reply.usage else 0)

    threads = [threading.Thread(target=stream) for _ in range(4)]
    for thread in threads:
        thread.start()
    os.kill(killed, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert lengths == [600] * 4
    assert chat(server, "mamba-tiny") == 200


def test_unloaded_model_gives_its_memory_back(server: ServerProcess):
    assert chat(server, "demo") == 200
    before = resident_bytes(server)
    assert chat(server, "llama-tiny") == 200
    loaded = resident_bytes(server)
    assert ask(server.port, "/models/unload", {"model": "llama-tiny"})[0] == 200
    wait_for(lambda: len(engines(server)) == 1)
    assert loaded > before + 5_000_000
    assert resident_bytes(server) < before + (loaded - before) / 4
