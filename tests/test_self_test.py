"""The self-test in a child process: real processes that end by themselves, fail, or are killed by a real signal."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.core.child_processes import signal_name
from localchat.serving.engine import EngineError, LoadOptions, self_test
from localchat.serving.engine.library_build import LIBRARY
from localchat.serving.models.catalog import DEMO_PATH

from .child_programs import replace_child

pytestmark = pytest.mark.usefixtures("cache")

DEMO = str(DEMO_PATH)

LIVE = "pass"
FAIL = "raise SystemExit('the file is cut')"
DIE = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
# As on a machine whose AMX faults: it crashes only with the option.
DIE_WITH_EXTRA_BUFTS = f"import json, sys\nif json.loads(sys.argv[2])['use_extra_bufts']: {DIE}"


def test_llama_cpp_passes_on_this_machine():
    options = self_test.passing_options(LoadOptions(n_parallel=2), DEMO)
    assert options.n_parallel == 2


def test_child_that_passes_changes_no_option(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    started = replace_child(monkeypatch, LIVE)
    assert self_test.passing_options(LoadOptions(), DEMO) == LoadOptions()
    assert started == [(DEMO, LoadOptions())]
    assert caplog.records == []


def test_child_that_is_killed_is_tried_again_without_extra_bufts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    started = replace_child(monkeypatch, DIE_WITH_EXTRA_BUFTS)
    assert self_test.passing_options(LoadOptions(), DEMO) == LoadOptions(use_extra_bufts=False)
    assert [options.use_extra_bufts for _, options in started] == [True, False]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    message = record.getMessage()
    assert "\n" not in message
    assert "SIGSEGV" in message
    assert "CMAKE_ARGS=" in message


@pytest.mark.parametrize("program", [LIVE, DIE_WITH_EXTRA_BUFTS], ids=["fine", "without extra bufts"])
def test_result_is_saved(monkeypatch: pytest.MonkeyPatch, program: str):
    started = replace_child(monkeypatch, program)
    first = self_test.passing_options(LoadOptions(), DEMO)
    n_starts = len(started)
    assert self_test.passing_options(LoadOptions(), DEMO) == first
    assert len(started) == n_starts


def test_changed_library_is_tested_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    library = tmp_path / "libllama.so"
    library.write_bytes(b"one build")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    started = replace_child(monkeypatch, LIVE)
    self_test.passing_options(LoadOptions(), DEMO)
    library.write_bytes(b"another build")
    self_test.passing_options(LoadOptions(), DEMO)
    assert len(started) == 2


def test_child_that_always_crashes_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch, cache: Path):
    replace_child(monkeypatch, DIE)
    with pytest.raises(EngineError, match=rf"SIGSEGV.*CMAKE_ARGS=.* {LIBRARY}$"):
        self_test.passing_options(LoadOptions(), DEMO)
    assert not cache.exists()


def test_child_that_fails_without_a_signal_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch):
    replace_child(monkeypatch, FAIL)
    with pytest.raises(EngineError, match="the file is cut"):
        self_test.passing_options(LoadOptions(), DEMO)


def test_real_child_reports_why_a_model_cannot_be_loaded(tmp_path: Path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no model")
    with pytest.raises(EngineError, match=r"bad\.gguf"):
        self_test.passing_options(LoadOptions(), str(bad))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": "yes"}'], ids=["empty", "cut", "list", "wrong type"])
def test_broken_results_are_ignored_and_replaced(monkeypatch: pytest.MonkeyPatch, cache: Path, content: str):
    cache.mkdir(parents=True)
    (cache / "self-test.json").write_text(content)
    started = replace_child(monkeypatch, LIVE)
    self_test.passing_options(LoadOptions(), DEMO)
    assert started == [(DEMO, LoadOptions())]
    results: dict[str, Any] = json.loads((cache / "self-test.json").read_text())
    assert list(results.values()) == [True]


def test_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, cache: Path):
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text("a file where the folder should be")
    replace_child(monkeypatch, LIVE)
    assert self_test.passing_options(LoadOptions(), DEMO) == LoadOptions()


@pytest.mark.skipif(sys.platform == "win32", reason="homes are found otherwise")
def test_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch):
    """As in containers that run under an arbitrary user id."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("os.getuid", lambda: 987654321)
    replace_child(monkeypatch, LIVE)
    assert self_test.passing_options(LoadOptions(), DEMO) == LoadOptions()


@pytest.mark.parametrize(
    ("returncode", "name"),
    [
        (0, None),
        (1, None),
        (-11, "SIGSEGV"),
        (-4, "SIGILL"),
        (-250, "signal 250"),
        (0xC0000005, "exception 0xC0000005"),
    ],
)
def test_signal_names(returncode: int, name: str | None):
    assert signal_name(returncode) == name
