"""Images, sound and files in the requests of all interfaces: to a model that takes them, and to a model of text."""

import base64
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localchat.serving.core.media import AUDIO
from localchat.serving.core.media import IMAGE as AN_IMAGE
from tests.serving.engine.test_media_decoding import GOOD as GOOD_FILES
from tests.support.exchanges import ask
from tests.support.fakes import FakeProjector, echo, endless
from tests.support.media_files import jpeg, png, wav
from tests.support.serving import BIG, Serving, serving

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BOTH = ("image", "audio")
# The limit of one token, of all interfaces.
LIMIT = {"max_tokens": 1, "max_output_tokens": 1, "options": {"num_predict": 1}}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


IMAGE, OTHER, SOUND = encoded(png()), encoded(jpeg()), encoded(wav())
URL = f"data:image/png;base64,{IMAGE}"
# The path of the first part, and what the fake projector makes of a file.
PART, SEEN = "messages[0].content[0]", "<****>"


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def chat(*parts: Any) -> dict[str, Any]:
    return {"messages": [user(*parts)]}


def responses(*parts: Any) -> dict[str, Any]:
    return {"input": [user(*parts)]}


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def sound(format: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": SOUND, "format": format}}


def block(data: str = IMAGE, media_type: str = "image/png", kind: str = "image") -> dict[str, Any]:
    return {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}


A, B, C = ({"type": "text", "text": text} for text in "abc")
INPUT = {"type": "input_image", "image_url": URL}
INPUT_TEXT = {"type": "input_text", "text": "b"}
FUNCTION = {"name": "look", "arguments": "{}"}
CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}]}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]}


# The results of a tool, with a message before them.


def chat_result(*parts: Any) -> dict[str, Any]:
    return {"messages": [user(A), CALLED, {"role": "tool", "content": list(parts)}]}


def messages_result(*parts: Any) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": "c", "content": list(parts)}
    return {"messages": [user(A), USED, user(result)]}


def responses_result(*parts: Any) -> dict[str, Any]:
    output = {"type": "function_call_output", "call_id": "c", "output": list(parts)}
    return {"input": [{"type": "function_call", "call_id": "c", **FUNCTION}, output]}


def ollama(images: list[Any], content: str = "b", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, "images": images, **fields}]}


# Prints the text of each message.
CONTENTS = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def seeing() -> Iterator[Serving]:
    """A server whose model takes images and sound."""
    with serving(endless, projector=FakeProjector(), **BIG, modalities=BOTH, chat_template=CONTENTS) as running:
        yield running


GOOD: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": (CHAT, chat(A, image({"url": URL, "detail": "low"}), B), f"a{SEEN}b"),
    "chat, a text": (CHAT, chat(image(URL), B), f"{SEEN}b"),
    "chat, base64": (CHAT, chat(image(IMAGE), B), f"{SEEN}b"),
    "chat, several": (CHAT, chat(image(URL), B, image(OTHER), sound("wav"), C), f"{SEEN}b{SEEN}{SEEN}c"),
    "chat, a tool": (CHAT, chat_result(image(URL), C), f"{SEEN}c"),
    "responses": (RESPONSES, responses(INPUT, INPUT_TEXT), f"{SEEN}b"),
    "responses, a tool": (RESPONSES, responses_result(INPUT, INPUT_TEXT), f"{SEEN}b"),
    "messages": (MESSAGES, chat(block(), B, block(OTHER, "image/jpeg"), C), f"{SEEN}b{SEEN}c"),
    "messages, a tool": (MESSAGES, messages_result(block(), B), f"{SEEN}b"),
    "ollama": ("/api/chat", ollama([IMAGE, OTHER]), f"{SEEN}{SEEN}b"),
    "ollama, generate": ("/api/generate", {"prompt": "b", "images": [IMAGE]}, f"{SEEN}b"),
}


@pytest.mark.parametrize("name", GOOD)
def test_image_is_where_it_is_in_the_message(seeing: Serving, name: str):
    path, body, prompt = GOOD[name]
    status, found = ask(seeing.port, path, {**LIMIT, "stream": False, **body})
    assert status == 200, found
    assert seeing.last_prompt.endswith(prompt)


@pytest.mark.parametrize(
    ("path", "body", "at", "expected"),
    [
        (CHAT, chat(image({"url": "https://example.org/a.png"})), PART, "fetches nothing"),
        (CHAT, {"messages": [user(A), user(image("file:///a.png"))]}, "messages[1].content[0]", "fetches nothing"),
        (CHAT, chat(image({})), PART, "fetches nothing"),
        (CHAT, chat(image(encoded(png()[:-99]))), PART, "truncated"),
        (CHAT, chat(image(SOUND)), PART, "it is damaged, or no PNG, JPEG, GIF, BMP or WebP"),
        (CHAT, chat(*[image(URL)] * 21, A), "messages[0].content[20]", "more than 20"),
        (RESPONSES, responses({"type": "input_image", "file_id": "f"}), "input[0].content[0]", "fetches nothing"),
        (MESSAGES, chat({"type": "image", "source": {"type": "url", "url": "https://a"}}), PART, "fetches nothing"),
        (MESSAGES, chat(block("AAAA")), PART, "it begins with"),
        ("/api/chat", ollama([IMAGE, "http://a"]), "messages[0].images[1]", "fetches nothing"),
        ("/api/chat", ollama([1]), "messages[0].images", "must be a list of images"),
        ("/api/generate", {"prompt": "a", "raw": True, "images": [IMAGE]}, "images", "not supported with 'raw'"),
    ],
)
def test_bad_image_is_refused_with_its_path(seeing: Serving, path: str, body: dict[str, Any], at: str, expected: str):
    status, found = ask(seeing.port, path, {**LIMIT, **body})
    message = found["error"] if path.startswith("/api") else found["error"]["message"]
    assert (status, expected in message, f"'{at}'" in message) == (400, True, True), message
    assert seeing.chat(max_tokens=1)[0] == 200


# An image in each interface, whose type is said to be PNG: the path, the body, and the path of the part.
INTERFACES: dict[str, Callable[[str], tuple[str, dict[str, Any], str]]] = {
    "chat": lambda data: (CHAT, chat(A, image(f"data:image/png;base64,{data}"), B), "messages[0].content[1]"),
    "responses": lambda data: (
        RESPONSES,
        responses({"type": "input_image", "image_url": f"data:image/png;base64,{data}"}, INPUT_TEXT),
        "input[0].content[0]",
    ),
    "messages": lambda data: (MESSAGES, chat(block(data), B), PART),
    "ollama": lambda data: ("/api/chat", ollama([data]), "messages[0].images"),
}


@pytest.mark.parametrize("interface", INTERFACES)
def test_file_is_read_by_its_bytes_and_refused_with_its_path(seeing: Serving, interface: str):
    """Whatever type the request says that it has."""
    for kind, data in GOOD_FILES.values():
        path, body, at = INTERFACES[interface](encoded(data))
        status, found = ask(seeing.port, path, {**LIMIT, "stream": False, **body})
        assert status == (200 if kind == AN_IMAGE else 400), found
        for wrong in (data[: len(data) // 3], b"\0" * 40 + data):
            path, body, at = INTERFACES[interface](encoded(wrong))
            status, found = ask(seeing.port, path, {**LIMIT, "stream": False, **body})
            message = found["error"] if path.startswith("/api") else found["error"]["message"]
            assert (status, message.startswith(f"'{at}' cannot be read: ")) == (400, True), message


def test_sound_is_read_by_its_bytes(seeing: Serving):
    for kind, data in GOOD_FILES.values():
        part = {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "mp3"}}
        assert ask(seeing.port, CHAT, {**LIMIT, **chat(part, B)})[0] == (200 if kind == AUDIO else 400)


def test_server_without_the_libraries_names_their_extra(seeing: Serving, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if re.match(r"(PIL|soundfile)(\.|$)", name)]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("PIL", "soundfile"):
        monkeypatch.setitem(sys.modules, name, None)
    new = {"type": "input_audio", "input_audio": {"data": encoded(wav(seed=99))}}  # Not prepared for another test.
    for part in (image(encoded(png(seed=99))), new):
        status, found = ask(seeing.port, CHAT, {**LIMIT, **chat(part, B)})
        assert (status, found["error"]["param"]) == (501, PART)
        assert "pip install 'localchat-llama[media]'" in found["error"]["message"]
    assert ask(seeing.port, CHAT, {**LIMIT, **chat_result(image(encoded(png(seed=99))), C)})[0] == 200
    assert "localchat-llama[media]" in seeing.last_prompt
    assert seeing.chat(max_tokens=1)[0] == 200


def test_bad_image_of_a_tool_is_left_out_with_the_reason(seeing: Serving):
    assert ask(seeing.port, CHAT, {**LIMIT, **chat_result(A, image("https://b"), C)})[0] == 200
    note = "a[an image, left out: 'messages[2].content[1]' cannot be read: this server fetch"
    assert note in seeing.last_prompt


@pytest.mark.parametrize("n_results", [19, 20, 21, 45])
def test_oldest_replayed_images_are_left_out_where_there_are_too_many(n_results: int):
    """Agents that look at the screen would otherwise be refused from the 21st step on."""
    texts = [{"type": "text", "text": f"<{i}>"} for i in range(n_results)]
    results = [{"role": "tool", "content": [text, image(URL)]} for text in texts]
    messages = [user(A), *(message for result in results for message in (CALLED, result)), user(image(URL))]
    facts = {"chat_template": CONTENTS, "projector": FakeProjector(), "modalities": BOTH, "n_ctx": 9000}
    with serving(endless, **facts, n_cells=20_000) as running:
        status, found = ask(running.port, CHAT, {**LIMIT, "messages": messages})
        prompt = running.last_prompt
    assert status == 200, found
    n_left_out = max(n_results + 1 - 20, 0)
    assert prompt.count("[an image, left out: the limit is 20 images and sounds") == n_left_out
    assert n_left_out == 0 or f"<{n_left_out - 1}>[an image, left out" in prompt
    assert f"<{n_left_out}>[an image, left out" not in prompt


SCAN = block(kind="document")


def document(kind: str, field: str, text: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": kind, field: text}, **fields}


# Documents that are no files, and their texts.
DOCUMENTS = {
    "text": (document("text", "data", "a"), "a"),
    "a text as content": (document("content", "content", "a"), "a"),
    "parts": (document("content", "content", [A, B]), "ab"),
    "an image": (document("content", "content", [A, block()]), "a[an image, left out: this model supports only text]"),
    "parts with a title": (document("content", "content", [A], title="T", context="from C"), "T\nfrom C\na"),
    "text with a title": (document("text", "data", "a", title="T", context="from C"), "T\nfrom C\na"),
}


@pytest.mark.parametrize(("part", "text"), DOCUMENTS.values(), ids=DOCUMENTS)
def test_document_that_is_no_file_is_read_in_messages_and_results(part: dict[str, Any], text: str):
    # An image in a new message is refused by a model of text.
    bodies = [messages_result(part)] if "image" in text else [messages_result(part), chat(part)]
    with serving(chat_template=CONTENTS, **BIG) as running:
        for body in bodies:
            status, response = ask(running.port, MESSAGES, {**LIMIT, **body})
            assert status == 200, response
            assert running.last_prompt.endswith(text)


@pytest.mark.parametrize(
    ("modalities", "path", "body", "at", "kind"),
    [
        ((), CHAT, chat(image(URL)), PART, "an image"),
        ((), CHAT, chat(sound("wav")), PART, "audio"),
        ((), RESPONSES, {"input": [user(INPUT_TEXT), user(INPUT)]}, "input[1].content[0]", "an image"),
        ((), MESSAGES, chat(block()), PART, "an image"),
        ((), MESSAGES, chat(SCAN), PART, "a file"),
        ((), "/api/chat", ollama(["AAAA"]), "messages[0].images", "an image"),
        ((), "/api/generate", {"prompt": "a", "images": ["AAAA"]}, "images", "an image"),
        (("image",), CHAT, chat(sound("wav")), PART, "audio"),
        (("audio",), CHAT, chat(image(URL)), PART, "an image"),
    ],
)
def test_media_that_the_model_cannot_take_are_refused_and_the_error_says_what_to_do(modalities, path, body, at, kind):
    """The error is the same for a file that is broken."""
    projector = FakeProjector() if modalities else None
    with serving(echo, projector=projector, **BIG, modalities=modalities) as running:
        status, error = ask(running.port, path, {**LIMIT, **body})
    message = error["error"] if path.startswith("/api") else error["error"]["message"]
    supported = f"this model supports {' and '.join(['text', *modalities]) if modalities else 'only text'}"
    reason = "this server reads no files" if kind == "a file" else supported
    expected = f"'{at}' is {kind}; {reason}: leave it out, or send text about it"
    assert (status, message) == (400, expected)


OLLAMA_USER = [{"role": "user", "content": "b"}]
NOTE = "[an image, left out: this model supports only text]"


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        (CHAT, chat_result(B, image(URL)), "b" + NOTE),
        (
            CHAT,
            {"messages": [{"role": "assistant", "content": [B, image(URL)]}], "add_generation_prompt": True},
            "b" + NOTE,
        ),
        (RESPONSES, responses_result(INPUT_TEXT, INPUT), "b" + NOTE),
        (MESSAGES, messages_result(B, block(), SCAN), "b" + NOTE + "[a file, left out: this server reads no files]"),
        ("/api/chat", ollama(["AAAA"], role="tool", tool_name="look"), "b" + NOTE),
        ("/api/chat", {"messages": ollama(["AAAA"], "", role="assistant")["messages"] + OLLAMA_USER}, NOTE + "b"),
    ],
)
def test_replayed_image_is_left_out_with_a_note(path: str, body: dict[str, Any], end: str):
    with serving(chat_template=CONTENTS, **BIG) as running:
        status, found = ask(running.port, path, {**LIMIT, "stream": False, **body})
    assert status == 200, found
    assert running.last_prompt.endswith(end)


ASSISTANT, LATER = {"role": "assistant", "content": "k"}, user(B)
INPUT_FILE, FILE = {"type": "input_file", "file_data": "AAAA"}, {"type": "file", "file": {"file_data": "AAAA"}}
VIDEO = {"type": "video_url", "video_url": "v"}
NO_FILE = "[a file, left out: this server reads no files]"
# A message with an image or a file, which a model of text cannot take: the path of the interface, the field of the
# messages, the message, what the prompt has if it is an earlier one, and the path of the image or file.
EARLIER: dict[str, tuple[str, str, dict[str, Any], str, str]] = {
    "chat": (CHAT, "messages", user(image(URL), A), f"{NOTE}a", PART),
    "chat, a file": (CHAT, "messages", user(FILE, A), f"{NO_FILE}a", PART),
    "chat, a type without support": (CHAT, "messages", user(VIDEO, A), '{"video_url":"v"}a', PART),
    "responses": (RESPONSES, "input", user(INPUT, INPUT_TEXT), f"{NOTE}b", "input[0].content[0]"),
    "responses, a file": (RESPONSES, "input", user(INPUT_FILE, INPUT_TEXT), f"{NO_FILE}b", "input[0].content[0]"),
    "messages": (MESSAGES, "messages", user(block(), A), f"{NOTE}a", PART),
    "messages, a file": (MESSAGES, "messages", user(SCAN, A), f"{NO_FILE}a", PART),
    "ollama": ("/api/chat", "messages", ollama(["AAAA"], "a")["messages"][0], f"{NOTE}a", "messages[0].images"),
    "ollama, a part": ("/api/chat", "messages", user(image(URL), A), f"{NOTE}a", PART),
}


@pytest.fixture(scope="module")
def reading() -> Iterator[Serving]:
    """A server whose model reads only text."""
    with serving(endless, chat_template=CONTENTS, **BIG) as running:
        yield running


@pytest.mark.parametrize("name", EARLIER)
def test_image_of_an_earlier_turn_is_left_out_with_a_note_and_a_new_one_is_refused(reading: Serving, name: str):
    """Programs send the conversation on when the user chooses another model; an error would end it."""
    path, field, message, texts, at = EARLIER[name]

    def send(*others: dict[str, Any]) -> tuple[int, Any]:
        return ask(reading.port, path, {**LIMIT, "stream": False, field: [message, *others]})

    status, found = send(ASSISTANT, LATER)
    assert status == 200, found
    assert reading.last_prompt == f"{texts}kb"
    # An assistant message at the end is a prefill, and begins the response to the image.
    for others in ((), (LATER,), (ASSISTANT,)):
        status, found = send(*others)
        assert (status, at in str(found), "leave it out" in str(found)) == (400, True, True), found
    repeated = at.replace("[0]", "[2]", 1)
    status, found = send(ASSISTANT, message)
    assert (status, repeated in str(found)) == (400, True), found


def test_note_says_what_the_model_supports():
    with serving(endless, projector=FakeProjector(), chat_template=CONTENTS, **BIG, modalities=("image",)) as running:
        messages = [user(sound("wav"), image(URL)), ASSISTANT, LATER]
        assert ask(running.port, CHAT, {**LIMIT, "messages": messages})[0] == 200
        assert running.last_prompt == f"[audio, left out: this model supports text and image]{SEEN}kb"


def test_image_of_a_turn_with_calls_is_an_earlier_one(reading: Serving):
    asked = {"input": [user(INPUT), *responses_result(INPUT_TEXT)["input"]]}
    assert ask(reading.port, RESPONSES, {**LIMIT, **asked})[0] == 200
    assert reading.last_prompt.startswith(NOTE)


def test_oldest_images_of_a_long_conversation_are_left_out(seeing: Serving):
    """Otherwise a conversation with a picture in each message would end at the 21st."""
    history = [message for _ in range(20) for message in (user(image(URL)), ASSISTANT)]
    assert ask(seeing.port, CHAT, {**LIMIT, "messages": [*history, user(image(URL))]})[0] == 200
    note = "[an image, left out: the limit is 20 images and sounds, and newer ones follow]"
    assert seeing.last_prompt == note + f"k{SEEN}" * 20


def test_replayed_media_that_the_model_cannot_take_leave_no_others_out():
    history = [user(image(URL))] * 10 + [user(sound("wav"))] * 15 + [ASSISTANT]
    with serving(projector=FakeProjector(), **BIG, modalities=("image",), chat_template=CONTENTS) as running:
        status, found = ask(running.port, CHAT, {**LIMIT, "messages": [*history, user(A)]})
    assert status == 200, found
    assert running.last_prompt.count(SEEN) == 10
    assert running.last_prompt.count("[audio, left out: this model supports text and image]") == 15


def test_usage_counts_media_and_finds_them_in_the_cache():
    with serving(endless, projector=FakeProjector(), **BIG, modalities=BOTH) as running:
        body = {**chat(A, image(URL), B), "max_tokens": 1}
        usages = [ask(running.port, CHAT, body)[1]["usage"] for _ in range(2)]
        counted = ask(running.port, "/v1/messages/count_tokens", chat(A, block(), B))
    assert [usage["prompt_tokens"] for usage in usages] == [8, 8]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 7]
    assert counted == (200, {"input_tokens": 8})


def test_template_is_shown_with_a_marker_for_each_image_and_user_text_is_no_marker(seeing: Serving):
    assert ask(seeing.port, "/apply-template", chat(A, image(URL), B)) == (200, {"prompt": "a<__media__>b"})
    assert seeing.chat("<__media__> [IMG] media0123456789abcdefn0n", max_tokens=1)[0] == 200
    assert seeing.last_prompt == "<__media__> [IMG] media0123456789abcdefn0n"


def test_stored_response_keeps_the_image():
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    facts = {"chat_template": template, "projector": FakeProjector(), "modalities": BOTH, **BIG}
    with serving(endless, **facts) as running:
        _, found = ask(running.port, RESPONSES, {**responses(INPUT, INPUT_TEXT), **LIMIT})
        assert ask(running.port, RESPONSES, {**LIMIT, "previous_response_id": found["id"], "input": "c"})[0] == 200
        assert running.last_prompt == f"u:{SEEN}b;a:a;u:c;"


def test_state_says_what_the_model_takes(seeing: Serving):
    assert seeing.request("GET", "/props")[1]["modalities"] == {"vision": True, "audio": True, "video": False}
    (entry,) = seeing.request("GET", "/v1/models")[1]["data"]
    shown = ask(seeing.port, "/api/show", {"model": "Fake"})[1]
    assert entry["architecture"] == {"input_modalities": ["text", "image", "audio"], "output_modalities": ["text"]}
    assert {"vision", "audio", "multimodal"} <= set(entry["capabilities"])
    assert {"vision", "audio", "completion"} <= set(shown["capabilities"])
