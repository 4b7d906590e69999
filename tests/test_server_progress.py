"""Long requests over a socket: prefill progress, pings in a stream without output, and disconnects."""

from __future__ import annotations

from localchat.serving.http.options import Options

from .fakes import endless
from .serving import (
    BIG,
    assert_in_order,
    chat_request,
    chunk_kind,
    generating,
    read_until,
    serving,
    wait_for,
)


def test_progress_of_a_long_prompt():
    """The progress goes from the cached prefix to the whole prompt. It comes before the first token (K31)."""
    with serving(generating("!"), is_gated=True, n_batch=64, **BIG) as running, running.connect() as sock:
        sock.sendall(chat_request("x" * 200, stream=True, return_progress=True))
        running.gate.release(1)
        read_until(sock, b'"processed":64')
        running.gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")
        _, chunks = running.chat(content="x" * 200, stream=True, return_progress=True)
        _, plain = running.chat(content="x" * 200, stream=True)
    assert_in_order([chunk for chunk in chunks if "prompt_progress" not in chunk], 1, usage=False)
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[-1]["processed"] == progress[-1]["total"] == 200
    assert all(entry["cache"] == 199 for entry in progress)
    kinds = ["progress" if "prompt_progress" in chunk else chunk_kind(chunk["choices"][0]) for chunk in chunks]
    assert kinds == ["role", *["progress"] * len(progress), "content", "finish"]
    assert all("prompt_progress" not in chunk for chunk in plain)


def test_stream_without_output_gets_pings_and_then_its_text():
    """K31, C37: the status line is sent with the first token, or after the ping interval."""
    with serving(is_gated=True, settings=Options(port=0, ping_s=0.02)) as running, running.connect() as sock:
        sock.sendall(chat_request("a", stream=True))
        head = read_until(sock, b"\r\n\r\n")
        first = read_until(sock, b": \n\n\r\n")
        running.gate.release()
        text = read_until(sock, b'"content":"a"')
        read_until(sock, b": \n\n\r\n")
        running.gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"data:" not in first
    assert b'"role":"assistant"' in text


def test_failure_after_a_ping_is_an_event():
    """K5: the status line is already sent."""

    def broken(tokens: list[int], n_prompt: int) -> int:
        raise RuntimeError("broken")

    with serving(broken, is_gated=True, settings=Options(port=0, ping_s=0.01)) as running, running.connect() as sock:
        sock.sendall(chat_request("a", stream=True))
        read_until(sock, b": \n\n")
        running.gate.release(1000)
        rest = read_until(sock, b"0\r\n\r\n")
    assert b'"inference_error"' in rest
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_k33_disconnect_during_the_prefill_leaves_nothing():
    with serving(endless, is_gated=True, n_ctx=100_000, n_cells=100_000) as running:
        with running.connect() as sock:
            sock.sendall(chat_request("x" * 500, stream=True, return_progress=True))
            running.gate.release()
            read_until(sock, b"prompt_progress")
        running.gate.release(1000)
        wait_for(lambda: running.engine.stats().n_running == 0)
        running.wait_until_idle()
