"""Recordings and replays: a replay gives the events of the server, and a recording has no secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from localchat import AsyncClient, Client, IncompleteStream, LocalChatError, ServerError, StreamError, replay
from localchat.extras.record import Recorder

from .clients import client_class, failure
from .raw_server import (
    DONE,
    HELLO,
    HELLO_EVENTS,
    KEY,
    MODELS,
    Peer,
    Server,
    always,
    certificate,
    chunked,
    clean_environment,
    piece,
    responding_once,
    serving,
    until_close,
    with_length,
    with_tls,
)

__all__ = ["certificate", "clean_environment", "client_class"]  # Fixtures: used by name.


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def joined(path: Path, kind: str) -> str:
    return "".join(item.get(kind, "") for item in lines(path))


def recording(folder: Path, raw: bytes = HELLO, **fields: Any) -> Path:
    """The recording of one chat with a server that returns `raw`."""
    path = folder / "r.jsonl"
    with always(raw) as server, Client(server.url, model="m", record=path) as client:
        client.chat("hi", **fields)
    return path


def events(client: Any) -> list[Any]:
    with client.stream("hi") as stream:
        return list(stream)


def test_replay_gives_the_events_of_the_server(tmp_path, client_class):
    path = tmp_path / "r.jsonl"
    with always(HELLO) as server, client_class(server.url, KEY, "m", record=path) as client:
        seen = [events(client) for _ in range(2)]
        assert server.connections == 1
    assert joined(path, "received") == 2 * HELLO.decode()
    assert KEY not in path.read_text(encoding="ascii")
    assert events(Client(transport=replay(path), model="m")) == seen[0]
    with client_class(transport=replay(path), model="m", max_retries=0) as replayed:
        assert [events(replayed) for _ in range(2)] == seen
        with pytest.raises(LocalChatError, match="no further response to POST /v1/chat/completions"):
            replayed.chat("hi")


def test_recording_is_written_at_once_and_has_all_bytes(tmp_path):
    path = tmp_path / "r.jsonl"
    with always(HELLO) as server, Client(server.url, model="m", record=path) as client:
        client.chat("hi")
        assert joined(path, "sent").startswith("POST /v1/chat/completions HTTP/1.1\r\n")
        assert joined(path, "received") == HELLO.decode()
        assert {item["connection"] for item in lines(path)} == {1}


@pytest.mark.parametrize(
    "raw", [chunked(piece("a"), end=False), until_close(piece("a"))], ids=["chunked", "until-close"]
)
def test_cut_response_is_cut_in_the_replay(raw, tmp_path):
    path = tmp_path / "r.jsonl"
    failure(responding_once(raw), IncompleteStream, record=path)
    with pytest.raises(IncompleteStream) as caught:
        Client(transport=replay(path), model="m").chat("hi")
    assert caught.value.partial is not None
    assert caught.value.partial.text == "a"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_replay_is_not_recorded(kind, tmp_path):
    with pytest.raises(ValueError, match="record and transport"):
        kind(record=tmp_path / "second", transport=replay(recording(tmp_path)))


def test_each_path_has_its_own_responses(tmp_path):
    path = tmp_path / "r.jsonl"
    with always(HELLO) as server, Client(server.url, record=path) as client:
        client.chat("hi")
    replayed = Client(transport=replay(path), model="first")
    assert replayed.chat("hi").text == "Hello"
    assert replayed.models() == ["first"]


SENT = [{"role": "user", "content": "hi"}]
OTHERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "text": ("ho", {}, 'messages[0].content is "ho", the recording has "hi"'),
    "message": ([*SENT, *SENT], {}, "messages has 2 items, the recording has 1"),
    "value": ("hi", {"temperature": 1, "n": 2}, "temperature is 1, the recording has 0; n is 2, the recording has 1"),
    "kind": ("hi", {"n": True}, "n is true, the recording has 1"),
    "missing": ("hi", {"stop": None}, 'stop is missing, the recording has "END"'),
    "added": ("hi", {"top_k": 5}, "top_k is 5, the recording has none"),
    "many": ("ho", {"temperature": 1, "n": 2, "stop": "x", "top_k": 5}, "; 2 more differences"),
}
RECORDED: dict[str, Any] = {"temperature": 0, "n": 1, "stop": "END"}


@pytest.mark.parametrize(("prompt", "options", "words"), OTHERS.values(), ids=OTHERS)
def test_request_that_is_not_in_the_recording_is_an_error_with_the_differences(prompt, options, words, tmp_path):
    path = recording(tmp_path, **RECORDED, seed=1)
    replayed = Client(transport=replay(path), model="m", max_retries=0)
    changed = {name: value for name, value in {**RECORDED, **options}.items() if value is not None}
    with pytest.raises(LocalChatError) as caught:
        replayed.chat(prompt, **changed)
    assert str(caught.value).startswith("the recording has no equal request POST /v1/chat/completions: ")
    assert words in str(caught.value)
    assert replayed.chat("hi", **RECORDED, seed=2).text == "Hello"  # The recorded response is still available.
    ignoring = replay(path, ignore=["messages", *changed, *RECORDED, "seed"])
    assert Client(transport=ignoring, model="m").chat(prompt, **changed).text == "Hello"


def test_equal_requests_get_their_responses_in_order(tmp_path):
    path = tmp_path / "r.jsonl"
    server = serving(lambda request, number: chunked(piece(f"{number}", "stop"), DONE))
    with server, Client(server.url, model="m", record=path) as client:
        assert [client.chat(text).text for text in "aba"] == ["1", "2", "3"]
    replayed = Client(transport=replay(path), model="m")
    assert [replayed.chat(text).text for text in "baa"] == ["2", "1", "3"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_the_owner_can_read_a_recording(tmp_path):
    for name in ("new", "older"):
        path = tmp_path / name
        if name == "older":
            path.write_text("something longer")
            path.chmod(0o644)
        Recorder(path)
        assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o600, b"")


@pytest.mark.parametrize(
    "line", [b'{"connection": 1, "se', b"", b"[]", b"3", b'{"messages": []}', b'{"connection": 1}', b"\xff"]
)
def test_file_that_is_not_a_recording_is_named_in_the_error(line, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"connection": 1, "at": 0, "sent": ""}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"r\.jsonl is not a recording: line 2"):
        replay(path)


def test_replay_does_not_depend_on_a_proxy(tmp_path):
    path, url = tmp_path / "r.jsonl", "http://host.test/v1"
    with always(HELLO) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        for recorded, replayed in ((proxy, False), (False, proxy)):
            where = url if recorded else server.url
            with Client(where, model="m", record=path, proxy=recorded) as client:
                client.chat("hi")
            assert Client(url, model="m", transport=replay(path), proxy=replayed).chat("hi").text == "Hello"


def test_retries_are_replayed(tmp_path):
    path = tmp_path / "r.jsonl"
    busy = with_length(b"{}", "503 Loading", "Retry-After: 0.001\r\n")
    server = serving(lambda request, number: HELLO if number == 2 else busy)
    with server, Client(server.url, model="m", record=path) as client:
        client.chat("hi")
    assert Client(transport=replay(path), model="m").chat("hi").text == "Hello"
    with pytest.raises(ServerError):
        Client(transport=replay(path), model="m", max_retries=0).chat("hi")


def test_key_is_masked_in_requests_and_responses(tmp_path):
    """Also in a response that repeats it in several pieces."""
    path = tmp_path / "r.jsonl"
    echo = f'data: {{"error": "wrong key {KEY}"}}\n\n'.encode()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        raw = with_length(echo)
        for i in range(len(raw)):
            peer.send(raw[i : i + 1])

    headers = {"X-Api-Key": "other-secret", "Cookie": "c=third-secret"}
    with Server(handle) as server:
        client = Client(server.url, KEY, "m", record=path, headers=headers)
        with pytest.raises(StreamError):
            client.chat(f"what is {KEY}?")
    assert "secret" not in path.read_text(encoding="ascii")
    assert f"wrong key {'*' * len(KEY)}" in joined(path, "received")
    with pytest.raises(StreamError, match="wrong key"):
        Client(transport=replay(path), model="m").chat(f"what is {KEY}?")


def test_all_headers_but_harmless_ones_are_masked(tmp_path):
    path = tmp_path / "r.jsonl"
    headers = dict.fromkeys(
        ["X-Goog-Api-Key", "Proxy-Authorization", "X-Tenant", "OpenAI-Organization"], "confidential"
    )
    folded = b"Server: open\r\nX-Trace: confidential\r\n\tconfidential\r\nconfidential\r\nTransfer-Encoding"
    raw = HELLO.replace(b"Transfer-Encoding", folded)
    with always(raw) as server, Client(server.url, model="m", record=path, headers=headers) as client:
        client.chat("hi")
    assert "confidential" not in path.read_text(encoding="ascii")
    assert joined(path, "sent").count("*" * len("confidential")) == len(headers)
    assert "Server: open\r\n" in joined(path, "received")
    assert "Host: 127.0.0.1:" in joined(path, "sent")


def test_secrets_in_the_query_of_the_base_url_are_masked(tmp_path):
    path = tmp_path / "r.jsonl"
    with always(HELLO) as server, Client(f"{server.url}?v=2&api-key=confidential", model="m", record=path) as client:
        client.chat("hi")
    assert f"?v=*&api-key={'*' * len('confidential')} HTTP/1.1" in joined(path, "sent")
    url = "http://host/v1?v=2&api-key=other"
    assert Client(url, transport=replay(path), model="m").chat("hi").text == "Hello"


def test_secrets_in_headers_of_responses_are_masked(tmp_path):
    path = tmp_path / "r.jsonl"
    head = "Set-Cookie: session=confidential\r\nX-Session-Token: confidential\r\n"
    raw = chunked(b"key: value\n", *HELLO_EVENTS).replace(b"Transfer-Encoding", f"{head}Transfer-Encoding".encode())

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        for part in (b"HTTP/1.1 103 Early Hints\r\nSet-Cookie: confidential\r\n\r\n", raw[:60], raw[60:]):
            peer.send(part)

    with Server(handle) as server, Client(server.url, model="m", record=path) as client:
        assert client.chat("hi").text == "Hello"
    assert "confidential" not in path.read_text(encoding="ascii")
    assert "key: value" in joined(path, "received")  # Not in a head, so not a header.


def test_secrets_in_a_head_that_is_cut_are_masked(tmp_path):
    path = tmp_path / "r.jsonl"
    raw = b"HTTP/1.1 200 OK\r\nSet-Cookie: confidential\r\nContent-"
    failure(responding_once(raw), IncompleteStream, record=path)
    assert "Set-Cookie: ************\r\n********" in joined(path, "received")


def test_head_with_bare_line_ends_is_a_head(tmp_path):
    path = tmp_path / "r.jsonl"
    head = b"HTTP/1.1 200 OK\nContent-Type: text/event-stream\nSet-Cookie: confidential\n\n"
    with responding_once(head + b"token: open\n" + b"".join(HELLO_EVENTS)) as server:
        assert Client(server.url, model="m", record=path).chat("hi").text == "Hello"
    assert "confidential" not in path.read_text(encoding="ascii")
    assert "token: open" in joined(path, "received")  # Not in a head.


@pytest.mark.parametrize("blanks", ["", "   ", "\t"])
def test_masked_header_keeps_its_length_with_any_blanks(blanks, tmp_path):
    raw = HELLO.replace(b"Content-Type", f"Set-Cookie:{blanks}confidential\r\nContent-Type".encode())
    assert joined(recording(tmp_path, raw), "received") == raw.decode().replace(
        "confidential", "*" * len("confidential")
    )


def test_short_key_does_not_damage_the_recording(tmp_path):
    """Programs often pass a short word as the key of a local server; it also occurs in other text."""
    path = tmp_path / "r.jsonl"
    with always(HELLO) as server, Client(server.url, "data", "m", record=path) as client:
        client.chat("hi")
    assert "Bearer data" not in joined(path, "sent")
    assert joined(path, "received") == HELLO.decode()
    assert Client(transport=replay(path), model="m").chat("hi").text == "Hello"


@pytest.mark.parametrize("size", range(1, 12))
def test_masking_keeps_the_cuts_and_the_lengths(size, tmp_path):
    raw = b"aaKEY-WORDKEY-WORDbKEY-WKEY-WORDc\xc3\xa9"
    recorder = Recorder(tmp_path / "r", secret="KEY-WORD")
    tape = recorder.tape()
    parts = [raw[i : i + size] for i in range(0, len(raw), size)]
    for part in parts:
        tape.received(part)
    tape.flush()
    pieces = [item["received"].encode("utf-8", "surrogateescape") for item in lines(tmp_path / "r")]
    assert b"".join(pieces) == raw.replace(b"KEY-WORD", b"********")
    assert [len(piece) for piece in pieces] == [len(part) for part in parts]


def test_tls_is_recorded_as_plain_text(certificate, tmp_path):
    path = tmp_path / "r.jsonl"
    server = with_tls(always(HELLO), certificate)
    with server, Client(server.url, model="m", verify=False, record=path) as client:
        client.chat("hi")
    assert Client("https://h/v1", transport=replay(path), model="m").chat("hi").text == "Hello"


def test_replay_of_one_path_in_two_threads_of_a_recording(tmp_path):
    """The responses of interleaved connections are separate."""
    recorder = Recorder(tmp_path / "r")
    tapes = [recorder.tape(), recorder.tape()]
    for tape in tapes:
        tape.sent(b"GET /v1/models HTTP/1.1\r\n\r\n")
    for i in range(0, len(MODELS), 10):
        for tape in tapes:
            tape.received(MODELS[i : i + 10])
    client = Client(transport=replay(tmp_path / "r"), model="m")
    assert [client.models() for _ in range(2)] == [["first"]] * 2
