"""The page at / for browsers."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from html.parser import HTMLParser

import pytest

from localchat.serving.http.settings import Settings

from .serving import serving

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class Page(HTMLParser):
    """The text, the links and the tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.links, self.commands, self.tag = "", [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tag = tag
        self.links += [value for name, value in attrs if name == "href" and tag == "a"]

    def handle_data(self, data):
        self.text += data
        if self.tag == "pre":
            self.commands.append(data)
        self.tag = ""


def get(running, path: str, headers: Mapping[str, str] = {}) -> tuple[http.client.HTTPResponse, str]:
    with contextlib.closing(running.client()) as client:
        client.request("GET", path, headers=dict(headers))
        response = client.getresponse()
        return response, response.read().decode()


def test_page_names_model_and_base_url_and_its_links_work():
    with serving() as running:
        response, text = get(running, "/", HTML)
        page = Page(text)
        assert response.getheader("Content-Type") == "text/html; charset=utf-8"
        assert "default-src 'none'" in (response.getheader("Content-Security-Policy") or "")
        assert f"http://127.0.0.1:{running.port}/v1" in page.text
        assert "the model Fake is ready" in page.text
        assert "refresh" not in text
        assert len(page.links) == 5
        for link in page.links:
            assert get(running, link)[0].status == 200, link
        (command,) = page.commands
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=20)
    assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_page_is_plain_text_without_a_browser():
    with serving() as running:
        response, text = get(running, "/")
    assert response.getheader("Content-Type") == "text/plain; charset=utf-8"
    assert text.startswith("localchat: the model Fake is ready")
    assert f"curl -s http://127.0.0.1:{running.port}/v1/chat/completions -d '{{" in text


def test_page_waits_for_the_model():
    with serving(is_ready=False) as running:
        response, text = get(running, "/", HTML)
    assert response.status == 200
    assert "the model is loading (0%)" in text
    assert '<meta http-equiv="refresh"' in text


def test_page_mentions_a_required_key_and_shows_only_hosts_that_are_names():
    """A server with a key does not check hosts, so any Host header reaches the page."""
    key = {"X-Api-Key": "k"}
    with serving(settings=Settings(port=0, api_keys=("k",))) as running:
        response, text = get(running, "/", HTML)
        assert (response.status, response.getheader("WWW-Authenticate")) == (401, "Bearer")
        assert "Unauthorized: send the API key of this server as &#x27;Authorization: Bearer KEY&#x27;" in text
        assert json.loads(get(running, "/")[1])["error"]["code"] == "invalid_api_key"
        _, text = get(running, "/", {**HTML, **key, "Host": "a<script>'$(x)"})
        assert f"http://127.0.0.1:{running.port}/v1" in Page(text).text
    assert "script" not in text
    assert "$(x)" not in text


def test_v1_lists_the_endpoints():
    with serving() as running:
        _, text = get(running, "/v1/")
        pointer = json.loads(text)
        assert pointer["base_url"] == f"http://127.0.0.1:{running.port}/v1"
        assert {"POST /v1/chat/completions", "GET /v1/models"} <= set(pointer["endpoints"])
        assert not [entry for entry in pointer["endpoints"] if re.search("favicon|/v1/$", entry)]


@pytest.mark.parametrize("path", ["/favicon.ico", "/nothing", "/x/"])
def test_only_the_root_is_the_page(path: str):
    with serving() as running:
        response, text = get(running, path, HTML)
    assert response.status == (204 if path == "/favicon.ico" else 404)
    assert "<html" not in text
