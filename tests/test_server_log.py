"""The log of the server."""

from __future__ import annotations

import io
import logging
import re
import sys

import pytest

from localchat.serving.http import loading
from localchat.serving.http.options import Options

from .command import restored
from .serving import GOOD, raw_request, serving


def test_lines_for_people_have_no_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with restored():
        loading.log_to_stderr()
        loading.report("plain")
        loading.log.info("timed")
        assert loading.report_failure("bad") == 1
        assert re.fullmatch(r"plain\n\d\d:\d\d:\d\d timed\nlocalchat\.server: bad\n", sys.stderr.getvalue())


def test_log_has_one_line_per_request_and_nothing_forged(caplog):
    """V49."""
    caplog.set_level(logging.INFO, "localchat.server")
    with serving(settings=Options(port=0, api_keys=("s3cret",))) as running, running.connect() as sock:
        key = "Authorization: Bearer s3cret"
        sock.sendall(raw_request(GOOD, key) + raw_request(b"", key, path="/\x1b[2J\x9bx", method="GET"))
        with running.connect() as odd:
            odd.sendall(raw_request(b"", key, path="/" + "y" * 9000, method="GET"))
            odd.sendall(raw_request(b"", key, method="B\x1b[2JREW"))
            b"".join(iter(lambda: odd.recv(65536), b""))
        for path in ("/metrics", "/v1/slots"):  # their successes are not logged, as for /health
            sock.sendall(raw_request(b"", key, path=path, method="GET"))
        sock.sendall(raw_request(b"", "Connection: close", path="/health", method="GET"))
        b"".join(iter(lambda: sock.recv(65536), b""))
    lines = [record.getMessage() for record in caplog.records]
    assert "\x1b" not in caplog.text
    assert max(map(len, lines)) < 1000
    (odd,) = (line for line in lines if " 501 " in line)
    assert odd.startswith(r"- 501 B\x1b[2JREW")
    lines = [line for line in lines if line != odd and "/yyy" not in line]
    assert len(lines) == 2
    assert re.fullmatch(
        r"chatcmpl-[0-9a-f]{32} 200 POST /v1/chat/completions [\d.]+ s: "
        r"in 5 \(0 cached\) at [\d.]+/s, out 6 at [\d.]+/s, stop",
        lines[0],
    )
    assert lines[1].startswith(r"- 404 GET /\x1b[2J\x9bx")
    assert "s3cret" not in caplog.text


def test_k10_ignored_fields_are_logged_once(caplog):
    caplog.set_level(logging.INFO, "localchat.server")
    with serving() as running:
        for _ in range(2):
            assert running.chat(frobnicate=1, **{"x" * 100_000: 1})[0] == 200
    assert caplog.text.count("frobnicate") == 1
    assert len(caplog.text) < 10_000
