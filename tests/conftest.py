"""Settings and fixtures of all tests."""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.clients import client_class, hanging_resolver
from tests.support.raw_server import certificate

__all__ = ["certificate", "client_class", "hanging_resolver"]  # Fixtures: used by name.

if sys.version_info < (3, 10):  # Only the tests of the client run, which needs no other package on any Python.
    collect_ignore = ["install", "live", "node", "page", "programs", "project", "serving", "soak", "typing"]

# Tests and the programs that they start see no settings, proxies, models, chats and servers of the user.
_OF_THE_USER = ("OPENAI_", "ANTHROPIC_", "OLLAMA_", "HF_", "HUGGINGFACE_", "LLAMA_CACHE", "XDG_STATE_HOME", "LITELLM_")
for _name in list(os.environ):
    if _name.startswith((*_OF_THE_USER, "LOCALCHAT_MODEL", "LOCALCHAT_API")) or _name.lower().endswith("_proxy"):
        del os.environ[_name]
_ignored: Any = {"ignore_cleanup_errors": True} if sys.version_info >= (3, 10) else {}
_home = tempfile.TemporaryDirectory(prefix="localchat-home-", **_ignored)
os.environ["HOME"] = os.environ["USERPROFILE"] = _home.name

# Where Python writes no bytecode, each process of the run and each program that it starts would compile its modules.
# They share the bytecode in this folder instead, which is removed after the run.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = _home.name

# The threads of llama.cpp wait for each other after each operation. They spin meanwhile, which takes the cores from the
# tests in other processes and, while a thread has no core, makes a step ten times as long. Here they sleep.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell makes a background program ignore SIGINT, and its children inherit that. The programs under test must handle
# SIGINT, also if the tests run in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis has no deadline per example, since its time depends on the load of the machine.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the processes of a whole run share the work of compiling the tests.

    pytest rewrites the assertions of a module when it is first imported, which takes as long as all other work before
    the first test, and keeps the result with the bytecode. Each process begins with another part of the modules, and
    finds the others compiled.
    """
    if session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS or "PYTEST_XDIST_WORKER" not in os.environ:
        return
    tests = Path(__file__).parent
    modules = sorted(
        ".".join(path.relative_to(tests.parent).with_suffix("").parts) for path in tests.rglob("test_*.py")
    )
    n_workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    first = len(modules) * int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) // n_workers
    for module in modules[first:] + modules[:first]:
        # What is raised here, a warning too, is raised again in the collection, which reports it.
        with contextlib.suppress(Exception, pytest.skip.Exception), warnings.catch_warnings():
            warnings.simplefilter("error")
            importlib.import_module(module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than cores, since many tests wait for servers, clients and timeouts."""
    return (os.cpu_count() or 1) + 2


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The built-in model with 32 slots. Files that need other options have a fixture of the same name."""
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    from localchat.serving.engine import load
    from localchat.serving.engine.values import LoadOptions
    from tests.support.demo_model import DEMO

    with load(DEMO, LoadOptions(n_parallel=32)) as engine:
        yield engine


@pytest.fixture
def drafts_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets engines of this process compute all drafts. Otherwise that depends on how long their steps take."""
    from localchat.serving.engine.pace import Pace

    monkeypatch.setattr(Pace, "draft_length", lambda self, predictions: max(one.n_tokens for one in predictions))


@pytest.fixture(scope="session")
def vocabulary() -> Any:
    """The vocabulary of the built-in model."""
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    from tests.support.demo_model import read_vocabulary

    return read_vocabulary()


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    """The base URL of a server process with the built-in model."""
    pytest.importorskip("llama_cpp", reason="the real server needs llama-cpp-python")
    from tests.support.live import running_process

    with running_process() as server:
        yield server.url


@pytest.fixture(scope="session")
def port(engine: Any) -> Iterator[int]:
    """The port of a server with this engine, which takes templates of requests."""
    from tests.support.serving import serving_demo

    with serving_demo(engine, allow_template=True) as port:
        yield port
