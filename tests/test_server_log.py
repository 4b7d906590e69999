"""The log of the server as text and as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from localchat.serving.http import logs
from localchat.serving.http.settings import Settings

from .serving import GOOD, raw_request, serving


@contextlib.contextmanager
def logged(log_format: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The log within the `with`, in this format."""
    package_log = logging.getLogger("localchat")
    before = package_log.handlers, package_log.level
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    try:
        logs.log_to_stderr(log_format)
        yield stderr
    finally:
        package_log.handlers, package_log.level = before


def test_request_is_an_object_with_fields(monkeypatch: pytest.MonkeyPatch):
    with logged("json", monkeypatch) as stderr, serving() as running, contextlib.closing(running.client()) as client:
        client.request("GET", "/v1/nothing?q=1", headers={"X-Request-Id": "mine"})
        client.getresponse().read()
        client.request("GET", "/health")
        client.getresponse().read()
    (entry,) = map(json.loads, stderr.getvalue().splitlines())
    assert (entry["level"], entry["logger"], entry["status"]) == ("info", "localchat.server", 404)
    assert (entry["request"], entry["request_id"]) == ("GET /v1/nothing", "mine")
    assert entry["summary"].startswith("there is nothing at /v1/nothing")
    assert 0 <= entry["seconds"] < 8
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])


@pytest.mark.parametrize(
    ("log_format", "pattern"),
    [
        ("text", r"plain\n\d\d:\d\d:\d\d failed\nTraceback [\s\S]*ValueError: no\nlocalchat\.server: bad\n"),
        ("json", r'\{.*"message": "plain", "n": 1\}\n\{.*"exception": "Traceback .*no"\}\n\{.*"level": "error".*\}\n'),
    ],
)
def test_lines_for_people_have_no_time_in_text(log_format: str, pattern: str, monkeypatch: pytest.MonkeyPatch):
    with logged(log_format, monkeypatch) as stderr:
        logs.report("plain", n=1)
        try:
            raise ValueError("no")
        except ValueError:
            logs.log.exception("failed")
        assert logs.report_failure("bad") == 1
    assert re.fullmatch(pattern, stderr.getvalue())


def test_log_has_one_line_per_request_and_nothing_forged(caplog):
    """V49."""
    caplog.set_level(logging.INFO, "localchat.server")
    with serving(settings=Settings(port=0, api_keys=("s3cret",))) as running, running.connect() as sock:
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
