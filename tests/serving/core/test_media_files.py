"""The sources of images and sounds in requests, and the markers that stand for them."""

import base64
from typing import Any

import pytest

from localchat.serving.core.errors import BadRequest
from localchat.serving.core.media import IMAGE, MARKER, Attachment, MediaFile, marker, read_attachment
from tests.support.media_files import png


@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:image/png;name=a;base64,", "data:;base64,", ""])
def test_source_is_a_data_url_or_base64(head: str):
    text = base64.encodebytes(png()).decode()  # with line breaks
    assert read_attachment(Attachment(IMAGE, "p", head + text)) == MediaFile(IMAGE, png(), "p")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        *((url, "fetches nothing") for url in ("https://example.org/a.png", "HTTP://a/a.png", "file:///etc/passwd")),
        *((url, "base64") for url in ("data:image/png,abc", "data:image/png;base64")),
        *((text, "not valid base64") for text in ("AA=A", "ÄÄÄÄ", "/etc/passwd")),
        ("", "it has no data"),
    ],
)
def test_other_source_is_refused(source: str, expected: str):
    with pytest.raises(BadRequest, match=expected) as found:
        read_attachment(Attachment(IMAGE, "a.b", source))
    assert found.value.param == "a.b"
    assert "'a.b'" in found.value.message


def test_markers_are_found_and_cannot_be_guessed():
    text: Any = f"a{marker(0)}b{marker(12)}1"
    assert [found[1] for found in MARKER.finditer(text)] == ["0", "12"]
    assert not MARKER.search("media0123456789abcdefn0n")
