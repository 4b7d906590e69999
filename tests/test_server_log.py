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

from localchat.serving import logs

from .serving import serving


@contextlib.contextmanager
def logged(log_format: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged meanwhile in this form."""
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
        logs.say("plain", n=1)
        try:
            raise ValueError("no")
        except ValueError:
            logs.log.exception("failed")
        assert logs.complain("bad") == 1
    assert re.fullmatch(pattern, stderr.getvalue())
