"""The command line of the server: options, numbers, errors and warnings."""

from __future__ import annotations

import errno
import os

import pytest

from localchat.serving.http import options
from localchat.serving.http.listener import why_not_listening
from localchat.serving.http.options import option_warnings, read_options
from localchat.serving.http.settings import Settings


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("-m a.gguf", "model", "a.gguf"),
        ("a.gguf", "model", "a.gguf"),
        ("--model a.gguf", "model", "a.gguf"),
        ("-c 8k", "ctx", 8192),
        ("--ctx-size 1M", "ctx", 1 << 20),
        ("-ngl 99", "gpu_layers", 99),
        ("--n-gpu-layers -1", "gpu_layers", -1),
        ("-t 3", "threads", 3),
        ("-np 4", "parallel", 4),
    ],
)
def test_short_options_and_numbers(line: str, name: str, value: object):
    assert getattr(read_options(line.split()), name) == value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-m a.gguf b.gguf", "two models are given, b.gguf and a.gguf"),
        ("-c 1", "--ctx/--ctx-size: must be at least 256, or 0 for the default, got 1"),
        ("-c many", "expected a whole number, such as 4096 or 4k, got 'many'"),
        ("-c 1.5k", "expected a whole number"),
        ("-c 4096M", "must be at most 2147483647, got 4294967296"),
    ],
)
def test_wrong_options_end_with_2_and_the_reason(line: str, message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        read_options(line.split())
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "warnings"),
    [
        (f"-t {os.cpu_count()} -np 64", []),
        ("-t 512", [f"--threads 512 on {os.cpu_count()} cores"]),
        ("-np 128", ["--parallel 128: each request is slow"]),
    ],
)
def test_options_that_slow_the_server_down_get_a_warning(line: str, warnings: list[str]):
    found = list(option_warnings(read_options(line.split())))
    assert len(found) == len(warnings)
    assert all(expected in warning for expected, warning in zip(warnings, found))


def test_error_of_a_port_in_use_names_the_option_for_another():
    error = OSError(errno.EADDRINUSE, "Address already in use")
    assert why_not_listening(Settings(), error) == (
        "cannot listen on 127.0.0.1 port 8080: Address already in use; choose another: --port 8081"
    )


def test_options_are_few():
    """Each needs a user's case. `-h` and `--version` are no options of the server, and `-m` is the model again."""
    names = {name for action in options._parser()._actions for name in action.option_strings if name.startswith("--")}
    dests = {action.dest for action in options._parser()._actions if names & set(action.option_strings)}
    assert len(dests - {"help", "version", "model_option"}) <= 43
