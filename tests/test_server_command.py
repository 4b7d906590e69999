"""The command `python -m localchat.server`: invalid options and environments, and the errors that it writes."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from localchat.serving.engine.library_build import LIBRARY
from localchat.serving.http.options import read_options
from localchat.serving.models.catalog import DEMO_PATH

from .command import run_command
from .serving import DEADLINE_S

ROOT = DEMO_PATH.parents[3]
START = "from localchat.server import main; sys.exit(main([]))"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        pytest.param(["--version"], 0, "localchat ", id="version"),
        pytest.param(["--help"], 0, "--gpu-layers", id="help"),
        pytest.param(["--parallel", "0"], 2, "at least 1", id="wrong number"),
        pytest.param(["--port", "99999"], 2, "at most 65535, got 99999", id="no such port"),
        pytest.param(["--threads", "3000000000"], 2, "at most 512", id="more threads than llama.cpp allows"),
        pytest.param(["--gpu-layers", "4294967296"], 2, "at most 2147483647", id="number beyond 32 bits"),
        pytest.param(["--api-key", ""], 2, "the key is empty", id="empty key"),
        pytest.param(["--api-key", "a\nb"], 2, "that an HTTP header cannot have", id="key of two lines"),
        pytest.param(["--api-key-file", "/nowhere/keys"], 2, "cannot read keys from /nowhere/keys", id="no keys"),
        pytest.param(["--api-key-file", os.devnull], 2, "has no key: write one per line", id="file without a key"),
        pytest.param(
            ["--host", "0.0.0.0"], 2, "or add --insecure to allow requests without a key", id="open without a key"
        ),
        pytest.param(["--tls-key", "key.pem"], 2, "add --tls-cert", id="key without a certificate"),
        pytest.param(["--tls-cert", "/nowhere.pem"], 1, "cannot use the certificate /nowhere.pem", id="no certificate"),
        pytest.param(["--uds", "/nowhere/s"], 1, "cannot listen on /nowhere/s", id="socket in no folder"),
        pytest.param(["--cors", "localhost:3000"], 2, "such as https://example.org", id="origin without its scheme"),
        pytest.param(["--cors", "https://example.org/app"], 2, "example.org/app'", id="origin with a path"),
        pytest.param(["--default", "top_p=2"], 2, "from 0 to 1, got 2", id="k9-wrong default"),
        pytest.param(["--default", "topp=1"], 2, "topp", id="k9-unknown default"),
        pytest.param(["/nowhere/model.gguf"], 1, "/nowhere/model.gguf", id="no such model"),
        pytest.param(
            ["~nobody-here/model.gguf"], 1, "there is no file ~nobody-here", id="home folder of an unknown user"
        ),
        pytest.param(["m" * 300], 1, "there is no model", id="name that is too long"),
        pytest.param(["--host", "203.0.113.1", "--insecure"], 1, "cannot listen on 203.0.113.1", id="foreign address"),
    ],
)
def test_command_line(arguments, status, text):
    """V1, H10."""
    done = run_command(*arguments)
    assert done.returncode == status
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_exit_status_of_the_process_is_that_of_the_command():
    program = [sys.executable, "-m", "localchat.server", "--parallel", "0"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 2
    assert "at least 1" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit the address space otherwise")
def test_memory_limit_is_one_line():
    """The memory is too little for the model file, for numpy or for a thread. Which of them fails first may differ."""
    program = ["sh", "-c", 'ulimit -v 250000; exec "$@"', "sh", sys.executable, "-m", "localchat.server", "--port", "0"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert "Traceback" not in done.stderr
    # OpenBLAS, which numpy loads, and the dynamic linker end the process themselves.
    ends = {
        "localchat.server: cannot ": 1,
        "OpenBLAS error: ": 1,
        "cannot allocate memory for thread-local data: ": 127,
    }
    assert [status for text, status in ends.items() if done.stderr.splitlines()[-1].startswith(text)] == [
        done.returncode
    ]


def test_tilde_that_the_shell_does_not_expand_is_the_home_folder():
    options = read_options(["--draft=~/small.gguf"])
    assert options.draft == str(Path.home() / "small.gguf")


def test_origins_as_browsers_send_them_are_accepted():
    origins = ["*", "null", "http://localhost:3000", "https://example.org/", "http://[::1]:80", "app-x://a.b"]
    assert read_options([word for origin in origins for word in ("--cors", origin)]).cors == origins


@pytest.mark.parametrize(
    ("arguments", "key"),
    [([], "from env"), (["--api-key", " from option\n"], "from option")],
    ids=["environment", "option"],
)
def test_key_from_a_file_may_end_with_a_line_end(arguments, key, monkeypatch):
    monkeypatch.setenv("LOCALCHAT_API_KEY", "from env\n")
    assert read_options(arguments).api_keys == [key]


def test_error_of_a_missing_library_names_the_tested_release():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {START}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert done.stderr.endswith(f"-m pip install {LIBRARY}\n")
    _, release = LIBRARY.split("==")
    for file in ("pyproject.toml", "docs/install.md"):
        assert set(re.findall(r"llama-cpp-python\S*=([\d.]+)", (ROOT / file).read_text(encoding="utf-8"))) == {release}


def test_port_in_use_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run_command("--port", str(port))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
