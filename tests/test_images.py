"""Images and files in requests to a model of text: an error for the user, a note in place of what a tool returned."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .fakes import echo
from .serving import BIG, serving
from .wire_schemas import validate

DATA = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
URL = "data:image/png;base64,AAAA"
PART, ITEM = {"type": "image_url", "image_url": {"url": URL}}, {"type": "input_image", "image_url": URL}
BLOCK, SCAN = {"type": "image", "source": DATA}, {"type": "document", "source": DATA}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
HI = {"role": "user", "content": "Hi"}
CALLED = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TEXT = {"type": "text", "text": "seen: "}
NOTE = "[an image, left out: this model supports only text]"
CHAT = "/v1/chat/completions"
ERRORS = {"/v1/messages": "messages-error", "/api/chat": "api-error", "/api/generate": "api-error"}


def post(running: Any, path: str, body: Any) -> tuple[int, Any]:
    return running.request("POST", path, json.dumps({"max_tokens": 500, "stream": False, **body}))


@pytest.mark.parametrize(
    ("path", "body", "at", "kind"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [PART]}]},
            "messages[0].content[0]",
            "an image",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [SOUND]}]},
            "messages[0].content[0]",
            "audio",
        ),
        ("/v1/responses", {"input": [HI, {"role": "user", "content": [ITEM]}]}, "input[1].content[0]", "an image"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [BLOCK]}]}, "messages[0].content[0]", "an image"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [SCAN]}]}, "messages[0].content[0]", "a file"),
        ("/api/chat", {"messages": [{**HI, "images": ["AAAA"]}]}, "messages[0].images", "an image"),
        ("/api/generate", {"prompt": "a", "images": ["AAAA"]}, "images", "an image"),
    ],
)
def test_image_of_a_user_is_refused_and_the_error_says_what_to_do(path: str, body: dict[str, Any], at: str, kind: str):
    with serving(echo, **BIG) as running:
        status, error = post(running, path, body)
    assert status == 400
    validate(error, ERRORS.get(path, "error"))
    message = error["error"] if path.startswith("/api") else error["error"]["message"]
    assert message == f"'{at}' is {kind}; this model supports only text: leave it out, or send text about it"


@pytest.mark.parametrize(
    ("path", "body", "note"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": [
                    HI,
                    {"role": "assistant", "tool_calls": [CALLED]},
                    {"role": "tool", "content": [TEXT, PART]},
                ]
            },
            f"seen: {NOTE}",
        ),
        (
            "/v1/responses",
            {
                "input": [
                    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": [{**TEXT, "type": "input_text"}, ITEM]},
                ]
            },
            f"seen: {NOTE}",
        ),
        (
            "/v1/messages",
            {
                "messages": [
                    HI,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT, BLOCK, SCAN]}],
                    },
                ]
            },
            f"seen: {NOTE}{NOTE.replace('an image', 'a file')}",
        ),
        (
            "/api/chat",
            {"messages": [HI, {"role": "tool", "tool_name": "look", "content": "seen: ", "images": ["AAAA"]}]},
            f"seen: {NOTE}",
        ),
    ],
)
def test_image_of_a_tool_is_left_out_with_a_note(path: str, body: dict[str, Any], note: str):
    with serving(echo, **BIG) as running:
        status, found = post(running, path, body)
        assert status == 200, found
        assert note in running.last_prompt
