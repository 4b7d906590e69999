"""The acceptance list of the client: the tests of each item, and the tests that no other file has.

1. SSE: the rules, the web platform tests and every cut
       test_sse.py::test_decode_by_rule, test_sse.py::test_decode_web_platform_tests,
       test_sse.py::test_random_streams_do_not_depend_on_chunking,
       test_sse.py::test_ten_megabyte_line_in_small_feeds_is_linear,
       test_acceptance.py::test_fuzz_sse
2. Dialects: the events of each, whole and cut at any place, and with `openai`
       test_wire.py::test_dialect,
       test_wire.py::test_dialect_that_is_cut_gives_a_prefix_and_an_error,
       test_acceptance.py::test_fuzz_wire, test_acceptance.py::test_openai_differs_from_the_dialects
3. Truncation matrix
       test_client.py::test_truncation_matrix,
       test_response.py::test_response_that_is_cut_is_not_complete
4. Timeouts, cancelling and Ctrl-C
       test_client_timeouts.py::test_timeout_expires, test_client_timeouts.py::test_connect_timeout,
       test_client_timeouts.py::test_connect_timeout_applies_while_the_resolver_hangs,
       test_client_timeouts.py::test_connect_timeout_applies_to_the_tunnel_of_a_proxy,
       test_client_timeouts.py::test_connect_timeout_applies_to_the_handshake,
       test_client_timeouts.py::test_first_event_timeout_applies_while_the_request_is_sent,
       test_client_cancel.py::test_cancel_from_another_thread,
       test_client_cancel.py::test_close_before_the_first_byte_of_a_response,
       test_client_cancel.py::test_close_while_the_resolver_hangs,
       test_client_cancel.py::test_close_while_it_connects, test_client_cancel.py::test_close_while_the_request_is_sent,
       test_aio.py::test_cancelled_task_closes_the_connection_at_once,
       test_aio.py::test_close_while_it_connects,
       test_acceptance.py::test_ctrl_c_ends_the_stream_at_once
5. Redirects, proxies and the key
       test_client_errors.py::test_key_is_in_no_error, test_client_errors.py::test_key_is_not_sent_to_a_redirect_target,
       test_client_errors.py::test_redirect_to_another_origin_is_never_followed,
       test_client_connections.py::test_loopback_never_uses_a_proxy, test_client_connections.py::test_no_proxy,
       test_record.py::test_key_is_masked_in_requests_and_responses,
       test_client_connections.py::test_https_goes_through_a_tunnel,
       test_acceptance.py::test_key_is_in_no_repr
6. Connections
       test_client_connections.py::test_thousand_calls_on_one_connection,
       test_client_connections.py::test_threads_share_a_client,
       test_client_connections.py::test_connection_closed_during_a_write_is_replaced_without_a_retry,
       test_client_connections.py::test_client_survives_a_fork,
       test_client_connections.py::test_stream_of_the_parent_is_not_cut_by_a_child,
       test_aio.py::test_cancels_at_any_moment_do_not_disturb_other_calls,
       test_aio.py::test_concurrent_calls_use_a_connection_each_and_later_calls_reuse_them
7. Weight and speed; the rows of bench/client.py carry this number
       test_acceptance.py::test_memory, test_vendor.py::test_size_of_the_one_file,
       test_imports.py::test_import_of_the_client_loads_nothing_heavy,
       test_imports.py::test_a_chat_over_http_loads_nothing_heavy
8. Versions of Python
       test_vendor.py::test_one_file_runs_without_site_and_environment,
       test_vendor.py::test_one_file_can_be_imported, test_vendor.py::test_asynchronous_client_under_every_python
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bench import client as bench
from bench import dialects
from localchat import Client

from . import fuzz_sse, fuzz_wire
from .raw_server import DEADLINE_S, KEY, Peer, Server, chunked, clean_environment, piece

__all__ = ["clean_environment"]  # A fixture, which pytest finds by name.

HERE = Path(__file__).parent
NAMED = re.findall(r"(test_\w+\.py)::(test_\w+)", __doc__ or "")


def test_list_names_tests_that_exist():
    texts = {file: (HERE / file).read_text(encoding="utf-8") for file, _ in NAMED}
    assert [name for name in NAMED if not re.search(rf"^def {name[1]}\(", texts[name[0]], re.MULTILINE)] == []


# 1 and 2


@pytest.mark.parametrize("seed", range(0, 3000, 300))
def test_fuzz_sse(seed):
    for step in range(300):
        fuzz_sse.check(seed + step)


@pytest.mark.parametrize("seed", range(0, 1000, 100))
def test_fuzz_wire(seed):
    for step in range(100):
        fuzz_wire.check(seed + step)


def test_openai_differs_from_the_dialects(capsys):
    pytest.importorskip("openai", reason="no release for this Python")
    dialects.main(["ollama-tools", "tail-cut", "openai-tools"])
    out = capsys.readouterr().out
    assert "ollama-tools: calls: [('fgg'" in out
    assert "tail-cut: raises: None, not 'IncompleteStream'" in out


# 4


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot interrupt a wait for the network")
def test_ctrl_c_ends_the_stream_at_once():
    program = (
        "import sys, localchat\n"
        "with localchat.Client(sys.argv[1], model='m') as client:\n"
        "    try:\n"
        "        with client.stream('hi') as stream:\n"
        "            for text in stream.text: print(text, flush=True)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted with', stream.reply.text)\n"
    )
    disconnected_at: list[float] = []
    disconnected = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(chunked(piece("a"), end=False))
        if peer.is_disconnected():
            disconnected_at.append(time.monotonic())
            disconnected.set()

    with Server(handle) as server:
        command = [sys.executable, "-c", program, server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "a\n"
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == "interrupted with a\n"
            assert process.wait(DEADLINE_S) == 0
        assert disconnected.wait(DEADLINE_S)
    assert disconnected_at[0] - start < 0.5  # 50 ms on an idle machine.


# 5


def test_key_is_in_no_repr():
    client = Client("http://127.0.0.1:1/v1", KEY)
    stream = client.stream("hi")
    assert KEY not in f"{client!r} {client} {stream!r} {stream}"


# 7. The benchmark measures times, since a test of a time would fail on a busy machine.


@pytest.mark.skipif(sys.platform != "linux", reason="other systems measure memory in another way")
def test_memory():
    assert bench.peak_memory("localchat with network") < 25


def test_benchmark_prints_a_row_for_each_aim(capsys):
    bench.main(["--events", "50", "--rounds", "1"])
    out = capsys.readouterr().out
    assert len(re.findall(r"^7\. .*aim [<>]=", out, re.MULTILINE)) >= 5
