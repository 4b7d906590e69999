"""Model files that are loaded in a child process first, since llama.cpp aborts the process at some of them."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from localchat.serving.engine import EngineError, LoadOptions, crash_check
from localchat.serving.models.catalog import DEMO_PATH

from .child_programs import replace_child

pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
pytestmark = pytest.mark.usefixtures("cache")


def write_changed(path: Path, key: str, value: int) -> None:
    """The built-in model with another number in its header."""
    data = DEMO_PATH.read_bytes()
    name = struct.pack("<Q", len(key)) + key.encode()
    at = data.index(name) + len(name) + 4
    path.write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])


LOADS = "pass"
FAILS = "raise SystemExit('the file is cut')"
CRASHES = "import os, sys; print('GGML_ASSERT(n > 0) failed', file=sys.stderr, flush=True); os.abort()"


def test_file_that_aborts_llama_cpp_ends_the_command_with_one_line(tmp_path: Path):

    path = tmp_path / "hostile.gguf"
    write_changed(path, "llama.block_count", 7_000_000)
    program = [sys.executable, "-m", "localchat.server", "--no-supervise", "--port", "0", str(path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "crashes at this file (SIGABRT, GGML_ASSERT(" in done.stderr
    *log, last = done.stderr.splitlines()
    assert last.startswith("localchat.server: cannot load ")
    assert len(log) <= 2
    assert "Traceback" not in done.stderr


def test_file_that_aborts_is_tried_at_each_start(monkeypatch: pytest.MonkeyPatch):
    started = replace_child(monkeypatch, CRASHES)
    for _ in range(2):
        with pytest.raises(
            EngineError, match=r"crashes .*\(SIGABRT, GGML_ASSERT\(n > 0\) failed\): .*download it again"
        ):
            crash_check.check_model_file(str(DEMO_PATH), LoadOptions())
    assert len(started) == 2


def test_file_that_loads_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is tried again if its content or its time has changed."""
    path = tmp_path / "good.gguf"
    shutil.copy2(DEMO_PATH, path)
    started = replace_child(monkeypatch, LOADS)
    crash_check.check_model_file(str(path), LoadOptions())
    crash_check.check_model_file(str(path), LoadOptions(n_ctx=1000))
    assert [file for file, _ in started] == [str(path)]
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    write_changed(path, "llama.context_length", 5000)
    os.utime(path, ns=times)
    crash_check.check_model_file(str(path), LoadOptions())
    assert len(started) == 2
    os.utime(path, ns=(times[0], times[1] + 1))
    crash_check.check_model_file(str(path), LoadOptions())
    assert len(started) == 3


def test_file_that_fails_without_a_crash_passes_each_check(monkeypatch: pytest.MonkeyPatch):
    started = replace_child(monkeypatch, FAILS)
    for _ in range(2):
        crash_check.check_model_file(str(DEMO_PATH), LoadOptions())
    assert len(started) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs a FIFO")
def test_child_ends_with_its_parent(tmp_path: Path):
    """The server may be killed while the child waits for a slow disk, here a FIFO."""
    fifo = tmp_path / "slow.gguf"
    os.mkfifo(fifo)
    child = (
        "import threading; from localchat.serving.engine import self_test; self_test.end_with_parent(); "
        f"file = open({str(fifo)!r}, 'w'); print('started', file=file, flush=True); threading.Event().wait(60)"
    )
    program = (
        "import sys; from localchat.serving.engine import LoadOptions, self_test\n"
        f"self_test.child_command = lambda path, options: [sys.executable, '-c', {child!r}]\n"
        "self_test.run_child(LoadOptions(), '', 60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as parent, open(fifo) as from_child:
        assert from_child.readline() == "started\n"
        parent.kill()
        began_at = time.monotonic()
        assert from_child.read() == ""  # It ends when the child does.
        assert time.monotonic() - began_at < 30
