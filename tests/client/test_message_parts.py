"""Images and audio as parts of a message: sources, types, and their position in the message."""

import base64
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from localchat import Client
from localchat.request.media import attach, audio_part, image_part
from tests.support.scripted import playing, text

PNG = b"\x89PNG\r\n\x1a\n rest"
WAV = b"RIFF\x24\0\0\0WAVEfmt "
PNG_URI = "data:image/png;base64," + base64.b64encode(PNG).decode()
IMAGE = {"type": "image_url", "image_url": {"url": PNG_URI}}
TEXT = {"type": "text", "text": "what?"}
TYPES = {"png": PNG, "jpeg": b"\xff\xd8\xff\xe0", "gif": b"GIF89a", "webp": b"RIFF1234WEBP", "bmp": b"BM1234\0\0\0\0"}


def test_type_is_detected_by_the_first_bytes():
    for kind, data in TYPES.items():
        encoded = base64.b64encode(data).decode()
        assert image_part(data)["image_url"]["url"] == f"data:image/{kind};base64,{encoded}"
    for data in (b"ID3\4 tag", b"\xff\xfb\x90\0 frame", b"\xff\xf3\x90\0 frame"):
        assert audio_part(data)["input_audio"] == {"data": base64.b64encode(data).decode(), "format": "mp3"}


@pytest.mark.parametrize("make", [image_part, audio_part])
@pytest.mark.parametrize("data", [b"", b"hello", b"RIFF\0\0\0\0AVI ", b"\xff\xe0", b"\xff"])
def test_unknown_type_is_an_error_that_names_the_known_types(make: Any, data: bytes):
    with pytest.raises(ValueError, match=r"known format \((png|wav)"):
        make(data)


def test_image_comes_from_path_bytes_url_and_part(tmp_path: Path):
    path = tmp_path / "a.dat"
    path.write_bytes(PNG)
    for source in (path, PNG, bytearray(PNG), memoryview(PNG), PNG_URI, IMAGE):
        assert image_part(source) == IMAGE
        assert attach("", source) == [{"role": "user", "content": [IMAGE]}]
    assert image_part("https://host/a.png")["image_url"] == {"url": "https://host/a.png"}


def test_audio_comes_from_path_bytes_and_data_url(tmp_path: Path):
    path = tmp_path / "a.wav"
    path.write_bytes(WAV)
    encoded = base64.b64encode(WAV).decode()
    urls = [f"data:audio/wav;base64,{encoded}", f"data:audio/wav,{quote(WAV)}"]
    for source in (path, WAV, *urls):
        assert audio_part(source) == {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}
    with pytest.raises(FileNotFoundError):
        audio_part(tmp_path / "none.wav")
    with pytest.raises(ValueError, match=r"base64|alphabet"):
        audio_part("data:audio/wav;base64,AA!A")
    path.write_bytes(PNG)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} is no audio of a known format"):
        audio_part(path)
    with pytest.raises(ValueError, match="pass its bytes"):
        audio_part("https://host/a.wav")


@pytest.mark.parametrize("make", [image_part, audio_part, attach])
def test_text_is_never_a_path(make: Any, tmp_path: Path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    arguments = ("hi", [str(path)]) if make is attach else (str(path),)
    with pytest.raises(ValueError, match=r"pass pathlib\.Path\("):
        make(*arguments)


@pytest.mark.parametrize(
    ("prompt", "content"),
    [
        ("what?", [IMAGE, TEXT]),
        ("", [IMAGE]),
        ([], [IMAGE]),
        ([{"role": "user", "content": [TEXT]}], [IMAGE, TEXT]),
        ([{"role": "assistant", "content": "look"}], [IMAGE]),
    ],
)
def test_every_kind_of_prompt_takes_an_image(prompt: Any, content: Any):
    assert attach(prompt, PNG)[-1] == {"role": "user", "content": content}
    assert attach("what?") == [{"role": "user", "content": "what?"}]
    messages = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "what?"}]
    assert attach(messages, [PNG], [WAV]) == [messages[0], {"role": "user", "content": [IMAGE, audio_part(WAV), TEXT]}]


@pytest.mark.parametrize("image", [[b"GIF89a"], {"type": "image_url", "image_url": {"url": "https://host/a.gif"}}])
@pytest.mark.parametrize("ask", [Client.chat, Client.run])
def test_images_are_attached_and_the_request_field_audio_is_sent_unchanged(ask: Any, image: Any):
    with playing(text("ok")) as (client, script):
        ask(client, "x", images=image, audio={"voice": "alto", "format": "wav"})
    assert [part["type"] for part in script.requests[0]["messages"][0]["content"]] == ["image_url", "text"]
    assert script.requests[0]["audio"] == {"voice": "alto", "format": "wav"}
