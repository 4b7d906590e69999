"""Images and files in requests to a model of text: an error for the user, a note in place of what a tool returned."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.exchanges import ask
from tests.support.fakes import echo
from tests.support.serving import BIG, serving

DATA = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
URL = "data:image/png;base64,AAAA"
PART, ITEM = {"type": "image_url", "image_url": {"url": URL}}, {"type": "input_image", "image_url": URL}
BLOCK, SCAN = {"type": "image", "source": DATA}, {"type": "document", "source": DATA}
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
HI = {"role": "user", "content": "Hi"}
CALLED = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USED = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
TEXT = {"type": "text", "text": "seen: "}
NOTE = "[an image, left out: this model supports only text]"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": parts}


@pytest.mark.parametrize(
    ("path", "body", "at", "kind"),
    [
        (CHAT, {"messages": [user(PART)]}, "messages[0].content[0]", "an image"),
        (CHAT, {"messages": [user(SOUND)]}, "messages[0].content[0]", "audio"),
        (RESPONSES, {"input": [HI, user(ITEM)]}, "input[1].content[0]", "an image"),
        (MESSAGES, {"messages": [user(BLOCK)]}, "messages[0].content[0]", "an image"),
        (MESSAGES, {"messages": [user(SCAN)]}, "messages[0].content[0]", "a file"),
        ("/api/chat", {"messages": [{**HI, "images": ["AAAA"]}]}, "messages[0].images", "an image"),
        ("/api/generate", {"prompt": "a", "images": ["AAAA"]}, "images", "an image"),
    ],
)
def test_image_of_a_user_is_refused_and_the_error_says_what_to_do(path: str, body: dict[str, Any], at: str, kind: str):
    with serving(echo, **BIG) as running:
        status, error = ask(running.port, path, {"max_tokens": 500, **body})
    assert status == 400
    message = error["error"] if path.startswith("/api") else error["error"]["message"]
    assert message == f"'{at}' is {kind}; this model supports only text: leave it out, or send text about it"


CALLS = {"role": "assistant", "tool_calls": [CALLED]}
FUNCTION_CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [{**TEXT, "type": "input_text"}, ITEM]}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [TEXT, BLOCK, SCAN]}


@pytest.mark.parametrize(
    ("path", "body", "note"),
    [
        (CHAT, {"messages": [HI, CALLS, {"role": "tool", "content": [TEXT, PART]}]}, NOTE),
        (RESPONSES, {"input": [FUNCTION_CALL, OUTPUT]}, NOTE),
        (
            MESSAGES,
            {"messages": [HI, {"role": "assistant", "content": [USED]}, user(RESULT)]},
            NOTE + NOTE.replace("an image", "a file"),
        ),
        (
            "/api/chat",
            {"messages": [HI, {"role": "tool", "tool_name": "look", "content": "seen: ", "images": ["AAAA"]}]},
            NOTE,
        ),
    ],
)
def test_image_of_a_tool_is_left_out_with_a_note(path: str, body: dict[str, Any], note: str):
    with serving(echo, **BIG) as running:
        status, found = ask(running.port, path, {"max_tokens": 500, "stream": False, **body})
        assert status == 200, found
        assert "seen: " + note in running.last_prompt
