"""Images and sound in the requests of all interfaces, for a model that takes them, on a fake backend."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from localchat.serving.api import chat, messages, ollama, responses
from localchat.serving.core.fields import Fields
from tests.support.exchanges import ask
from tests.support.fakes import FakeProjector, endless
from tests.support.media_files import jpeg, png, wav
from tests.support.serving import BIG, serving

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SEES = {**BIG, "modalities": ("image", "audio")}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


IMAGE, OTHER, SOUND = encoded(png()), encoded(jpeg()), encoded(wav())
URL = f"data:image/png;base64,{IMAGE}"
# The path of the first part.
PART = "messages[0].content[0]"
# What the fake projector makes of a file.
SEEN = "<****>"


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def text(value: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": value}


def chat_image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def block(data: str = IMAGE, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


SOUND_PART = {"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED = {"role": "assistant", "tool_calls": [CALL]}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [text("here: "), block()]}
FUNCTION_CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c"}

GOOD: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": (CHAT, {"messages": [user(text("a"), chat_image({"url": URL, "detail": "low"}), text("b"))]}, f"a{SEEN}b"),
    "chat, a text": (CHAT, {"messages": [user(chat_image(URL), text("b"))]}, f"{SEEN}b"),
    "chat, base64": (CHAT, {"messages": [user(chat_image(IMAGE), text("b"))]}, f"{SEEN}b"),
    "chat, several": (
        CHAT,
        {"messages": [user(chat_image(URL), text("b"), chat_image(OTHER), SOUND_PART, text("c"))]},
        f"{SEEN}b{SEEN}{SEEN}c",
    ),
    "chat, a tool": (
        CHAT,
        {"messages": [user(text("x")), CALLED, {"role": "tool", "content": [chat_image(URL), text("y")]}]},
        f"{SEEN}y",
    ),
    "responses": (
        RESPONSES,
        {"input": [user({"type": "input_image", "image_url": URL}, text("b", "input_text"))]},
        f"{SEEN}b",
    ),
    "responses, a tool": (
        RESPONSES,
        {
            "input": [
                FUNCTION_CALL,
                {**OUTPUT, "output": [{"type": "input_image", "image_url": URL}, text("b", "input_text")]},
            ]
        },
        f"{SEEN}b",
    ),
    "messages": (
        MESSAGES,
        {"messages": [user(block(), text("b"), block(OTHER, "image/jpeg"), text("c"))]},
        f"{SEEN}b{SEEN}c",
    ),
    "messages, a tool": (
        MESSAGES,
        {"messages": [user(text("x")), USED, user({**RESULT, "content": [block(), text("b")]})]},
        f"{SEEN}b",
    ),
    "ollama": (
        "/api/chat",
        {"messages": [{"role": "user", "content": "b", "images": [IMAGE, OTHER]}]},
        f"{SEEN}{SEEN}b",
    ),
    "ollama, generate": ("/api/generate", {"prompt": "b", "images": [IMAGE]}, f"{SEEN}b"),
}


@pytest.mark.parametrize("name", GOOD)
def test_image_is_where_it_is_in_the_message(name: str):
    path, body, prompt = GOOD[name]
    with serving(endless, projector=FakeProjector(), **SEES) as running:
        status, found = ask(running.port, path, {"max_tokens": 1, "stream": False, **body})
        assert status == 200, found
        assert running.last_prompt == prompt


@pytest.mark.parametrize(
    ("path", "body", "at", "expected"),
    [
        (CHAT, {"messages": [user(chat_image({"url": "https://example.org/a.png"}))]}, PART, "fetches nothing"),
        (
            CHAT,
            {"messages": [user(text("a")), user(chat_image("file:///a.png"))]},
            "messages[1].content[0]",
            "fetches nothing",
        ),
        (CHAT, {"messages": [user(chat_image({}))]}, PART, "fetches nothing"),
        (CHAT, {"messages": [user(chat_image(encoded(png()[:-99])))]}, PART, "is cut"),
        (
            CHAT,
            {"messages": [user({"type": "input_audio", "input_audio": {"data": SOUND, "format": "mp3"}})]},
            PART,
            "says that it is MP3",
        ),
        (CHAT, {"messages": [user(chat_image(SOUND))]}, PART, "it is WAV"),
        (CHAT, {"messages": [user(*[chat_image(URL)] * 21, text("a"))]}, "messages[0].content[20]", "more than 20"),
        (
            RESPONSES,
            {"input": [user({"type": "input_image", "file_id": "f"})]},
            "input[0].content[0]",
            "fetches nothing",
        ),
        (
            MESSAGES,
            {"messages": [user({"type": "image", "source": {"type": "url", "url": "https://example.org/"}})]},
            PART,
            "fetches nothing",
        ),
        (MESSAGES, {"messages": [user(block("AAAA"))]}, PART, "unknown format"),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "a", "images": [IMAGE, "http://a"]}]},
            "messages[0].images[1]",
            "fetches nothing",
        ),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "a", "images": [1]}]},
            "messages[0].images",
            "must be a list of images",
        ),
        ("/api/generate", {"prompt": "a", "raw": True, "images": [IMAGE]}, "images", "not supported with 'raw'"),
    ],
)
def test_bad_image_is_refused_with_its_path(path: str, body: dict[str, Any], at: str, expected: str):
    with serving(endless, projector=FakeProjector(), **SEES) as running:
        status, found = ask(running.port, path, {"max_tokens": 1, **body})
        assert running.chat(max_tokens=1)[0] == 200
    assert status == 400
    message = found["error"] if path.startswith("/api") else found["error"]["message"]
    assert expected in message
    assert f"'{at}'" in message


def test_bad_image_of_a_tool_is_left_out_with_the_reason():
    body = {
        "messages": [
            user(text("x")),
            CALLED,
            {"role": "tool", "content": [text("a "), chat_image("https://b"), text("c")]},
        ]
    }
    with serving(endless, projector=FakeProjector(), **SEES) as running:
        assert ask(running.port, CHAT, {"max_tokens": 1, **body})[0] == 200
        assert running.last_prompt.startswith(
            "a [an image, left out: 'messages[2].content[1]' cannot be read: this server fetch"
        )


@pytest.mark.parametrize(
    ("modalities", "part", "expected"),
    [
        (("image",), SOUND_PART, "is audio; this model supports text and image: leave it out, or send text about it"),
        (
            ("audio",),
            chat_image(URL),
            "is an image; this model supports text and audio: leave it out, or send text about it",
        ),
    ],
)
def test_model_with_one_modality_refuses_the_other(modalities: Any, part: Any, expected: str):
    with serving(endless, projector=FakeProjector(), **{**SEES, "modalities": modalities}) as running:
        status, found = ask(running.port, CHAT, {"messages": [user(part)]})
    assert (status, found["error"]["message"]) == (400, f"'messages[0].content[0]' {expected}")


def test_usage_counts_media_and_finds_them_in_the_cache():
    body = {"messages": [user(text("a"), chat_image(URL), text("b"))], "max_tokens": 1}
    with serving(endless, projector=FakeProjector(), **SEES) as running:
        usages = [ask(running.port, CHAT, body)[1]["usage"] for _ in range(2)]
        counted = ask(running.port, "/v1/messages/count_tokens", {"messages": [user(text("a"), block(), text("b"))]})
    assert [usage["prompt_tokens"] for usage in usages] == [8, 8]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 7]
    assert counted == (200, {"input_tokens": 8})


def test_template_is_shown_with_a_marker_for_each_image():
    with serving(endless, projector=FakeProjector(), **SEES) as running:
        body = {"messages": [user(text("a"), chat_image(URL), text("b"))]}
        assert ask(running.port, "/apply-template", body) == (200, {"prompt": "a<__media__>b"})


def test_user_text_is_no_marker():
    with serving(endless, projector=FakeProjector(), **SEES) as running:
        assert running.chat("<__media__> [IMG] media0123456789abcdefn0n", max_tokens=1)[0] == 200
        assert running.last_prompt == "<__media__> [IMG] media0123456789abcdefn0n"


def test_stream_with_an_image_has_the_text():
    body = {"messages": [user(chat_image(URL), text("hello"))], "stream": True, "max_tokens": 3}
    with serving(lambda tokens, n: 97 + len(tokens) - n, projector=FakeProjector(), **SEES) as running:
        _, chunks = ask(running.port, CHAT, body)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk != "[DONE]") == "abc"


def test_stored_response_keeps_the_image():
    first = {
        "input": [user({"type": "input_image", "image_url": URL}, text("b", "input_text"))],
        "max_output_tokens": 1,
    }
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    with serving(endless, chat_template=template, projector=FakeProjector(), **SEES) as running:
        _, found = ask(running.port, RESPONSES, first)
        assert ask(running.port, RESPONSES, {"previous_response_id": found["id"], "input": "c"})[0] == 200
        assert running.last_prompt == f"u:{SEEN}b;a:a;u:c;"


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (chat.parse_chat, {"messages": [user(chat_image(URL))]}),
        (messages.parse_count_tokens, {"messages": [user(block())]}),
        (
            lambda body: responses.parse_response(responses.ResponseStore(), body),
            {"input": [user({"type": "input_image", "image_url": URL})]},
        ),
        (ollama.parse_ollama, {"messages": [{"role": "user", "images": [IMAGE]}]}),
        (ollama.parse_generate, {"images": [IMAGE]}),
    ],
)
def test_parsers_attach_images_without_looking_at_them(parse: Any, body: dict[str, Any]):
    request = parse(Fields(json.loads(json.dumps(body))))
    assert [(one.kind, one.is_replayed) for one in request.attachments] == [("an image", False)]
    assert IMAGE not in str(request.messages)


def test_state_says_what_the_model_takes():
    with serving(endless, projector=FakeProjector(), **SEES) as running:
        assert running.request("GET", "/props")[1]["modalities"] == {"vision": True, "audio": True, "video": False}
        (entry,) = running.request("GET", "/v1/models")[1]["data"]
        shown = ask(running.port, "/api/show", {"model": "Fake"})[1]
    assert entry["architecture"] == {"input_modalities": ["text", "image", "audio"], "output_modalities": ["text"]}
    assert {"vision", "audio", "multimodal"} <= set(entry["capabilities"])
    assert {"vision", "audio", "completion"} <= set(shown["capabilities"])
