"""Files of images and sounds are checked by their headers, before native code sees them."""

import base64
import contextlib
import random
import re
import struct
import time
from typing import Any

import pytest

from localchat.serving.core.errors import BadRequest
from localchat.serving.core.media import AUDIO, IMAGE, MARKER, Attachment, checked, marker
from tests.support.media_files import bmp, flac, gif, jpeg, mp3, png, wav

GOOD = {
    "png": (IMAGE, png()), "jpeg": (IMAGE, jpeg()), "gif": (IMAGE, gif()), "bmp": (IMAGE, bmp()),
    "wav": (AUDIO, wav()), "mp3": (AUDIO, mp3()), "flac": (AUDIO, flac()),
}  # fmt: skip


def attached(kind: str, data: bytes, format: str = "") -> Attachment:
    return Attachment(kind, "messages[0].content[1]", base64.b64encode(data).decode(), format)


def replaced(data: bytes, at: int, part: bytes) -> bytes:
    return data[:at] + part + data[at + len(part) :]


@pytest.mark.parametrize("name", GOOD)
def test_good_file_is_taken(name: str):
    kind, data = GOOD[name]
    media = checked(attached(kind, data, name))
    assert (media.kind, media.data, media.path) == (kind, data, "messages[0].content[1]")


@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:image/png;name=a;base64,", "data:;base64,", ""])
def test_source_is_a_data_url_or_base64(head: str):
    text = base64.encodebytes(png()).decode()  # with line breaks
    assert checked(Attachment(IMAGE, "p", head + text)).data == png()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        *((url, "fetches nothing") for url in ("https://example.org/a.png", "HTTP://a/a.png", "file:///etc/passwd")),
        *((url, "base64") for url in ("data:image/png,abc", "data:image/png;base64")),
        *((text, "not valid base64") for text in ("AA=A", "ÄÄÄÄ")),
        ("/etc/passwd", "not valid base64|unknown format"),
    ],
)
def test_other_source_is_refused(source: str, expected: str):
    with pytest.raises(BadRequest, match=expected) as found:
        checked(Attachment(IMAGE, "a.b", source))
    assert found.value.param == "a.b"
    assert "'a.b'" in found.value.message


def test_interlaced_png_is_counted_by_its_passes():
    # 1 x 20: four passes have pixels: rows 0 and 8; 16 is in the first; 4, 12; 2, 6, ...; 1, 3, ...
    data = replaced(png(1, 20, data=bytes(20 * 4)), 28, b"\1")
    assert checked(attached(IMAGE, data)).data == data


BIG = 20_000
WAV, MP3 = wav(), mp3()
# The head of a frame of 8 kilobits and 8,000 samples a second, of which each byte is a millisecond.
SLOW = b"\xff\xe3\x18\xc4" + bytes(68)
HUGE_FLAC = flac(n_samples=(1 << 35))
MANY, SCAN = 1_000_000, b"\xff\xda\0\x08\1\1\0\0\x3f\0"

BAD: dict[str, tuple[str, bytes, str]] = {
    "empty": (IMAGE, b"", "it has no data"),
    "text": (IMAGE, b"hello, this is no image", "unknown format"),
    "svg": (IMAGE, b"<svg xmlns='http://www.w3.org/2000/svg'/>", "unknown format"),
    "webp": (IMAGE, b"RIFF\x10\0\0\0WEBPVP8 ", "it is WebP, and this server reads PNG, JPEG, GIF, BMP"),
    "video": (IMAGE, b"\0\0\0\x18ftypmp42" + bytes(50), "unknown format"),
    "sound for an image": (IMAGE, WAV, "it is WAV"),
    "image for a sound": (AUDIO, png(), "it is PNG"),
    "png of 20,000 x 20": (IMAGE, png(BIG, 20, data=b""), "20000 x 20 pixels, the limit of a side is 16384"),
    "png of 16,000 x 16,000": (IMAGE, png(16_000, 16_000, data=b""), "256000000 pixels, the limit is 33000000"),
    "png of 0 x 10": (IMAGE, png(0, 10, data=b""), "0 x 10 pixels"),
    "png with less data": (IMAGE, png(data=bytes(100)), "100 bytes or more, and its pixels need 24080"),
    "png with more data": (IMAGE, png(10, 10, data=bytes(50_000_000)), "bytes or more, and its pixels need 310"),
    "png with damaged data": (IMAGE, replaced(png(), 60, bytes(20)), "the data of the PNG is damaged"),
    "png, cut": (IMAGE, png()[:-500], "the PNG is cut"),
    "png, only its signature": (IMAGE, png()[:8], "the PNG is cut: it has 8 bytes"),
    "png without header": (IMAGE, replaced(png(), 12, b"XXXX"), "invalid header"),
    "png of an unknown colour": (IMAGE, replaced(png(), 25, b"\5"), "invalid header"),
    "jpeg, cut": (IMAGE, jpeg()[:-2], "the JPEG is cut"),
    "jpeg without size": (IMAGE, b"\xff\xd8\xff\xd9", "the JPEG is cut"),
    "jpeg of 65,535 x 1": (IMAGE, jpeg().replace(b"\x08\0\x10\0\x10", b"\x08\0\1\xff\xff"), "65535 x 1 pixels"),
    "jpeg, lossless": (IMAGE, jpeg().replace(b"\xff\xc0", b"\xff\xc3"), "rare kind"),
    "jpeg of many scans": (IMAGE, jpeg()[:-2] + SCAN * 200 + b"\xff\xd9", "101 scans or more, the limit is 100"),
    "gif, cut": (IMAGE, gif()[:-30], "the GIF is cut"),
    "gif of 60,000 x 60,000": (IMAGE, replaced(gif(), 6, b"\x60\xea\x60\xea"), "60000 x 60000 pixels"),
    "bmp of 250 bytes": (IMAGE, replaced(bmp(8, 8), 18, struct.pack("<ii", 5000, 5000)), "needs 75000054"),
    "bmp, upside down": (IMAGE, replaced(bmp(8, 8), 18, struct.pack("<ii", 8, -80)), "the BMP is cut"),
    "bmp, compressed": (IMAGE, replaced(bmp(), 30, b"\1"), "rare kind"),
    "wav of 1 sample": (AUDIO, wav(n_samples=1), r"1 samples, which are 6.25e-05 seconds, the limits are 0.1 and 600"),
    "wav of 0 samples": (AUDIO, wav(n_samples=0), "0 samples"),
    "wav of 1 Hz": (AUDIO, wav(n_samples=16_000, rate=1), "1 samples a second, the limits are 4000 and 192000"),
    "wav of 700 s": (AUDIO, wav(700, rate=4000), "700 seconds, the limits are 0.1 and 600 seconds"),
    "wav of 200 channels": (AUDIO, wav(n_channels=200), "200 channels, the limit is 8"),
    "wav, cut": (AUDIO, WAV[:-1000], "the WAV is cut"),
    "wav with a wrong size of frames": (AUDIO, replaced(WAV, 32, b"\1"), "rare kind"),
    "wav of another kind": (AUDIO, replaced(WAV, 20, b"\x11"), "rare kind"),
    "wav without format": (AUDIO, WAV.replace(b"fmt ", b"junk"), "no format"),
    "wav without data": (AUDIO, WAV[:36], "the WAV is cut"),
    "flac of 2^35 samples": (AUDIO, HUGE_FLAC, "34359738368 samples"),
    "flac of an unknown length": (AUDIO, flac(n_samples=0), "0 samples"),
    "flac, cut": (AUDIO, flac()[:42], "the FLAC is cut"),
    "flac without streaminfo": (AUDIO, replaced(flac(), 4, b"\x84"), "STREAMINFO"),
    "mp3 without frames": (AUDIO, b"ID3\3\0\0\0\0\0\0" + bytes(2000), "no frames"),
    "mp3 of 1 frame": (AUDIO, mp3(1), "no frames"),
    "mp3 of 3 frames": (AUDIO, mp3(3), "3456 samples"),
    "png of many chunks": (IMAGE, png()[:33] + (bytes(4) + b"tEXt" + bytes(4)) * MANY, "more than 100000 parts"),
    "jpeg of many segments": (IMAGE, b"\xff\xd8" + b"\xff\xe0\0\2" * MANY, "more than 100000 parts"),
    "wav of many chunks": (AUDIO, WAV[:12] + b"junk\0\0\0\0" * MANY, "more than 100000 parts"),
    "flac of many blocks": (AUDIO, replaced(flac()[:42], 4, b"\0") + b"\1\0\0\0" * MANY, "more than 100000 parts"),
    "mp3 of many false frames": (AUDIO, b"\xff\xfb" * MANY, "more than 100000 parts"),
    "mp3 of hours": (AUDIO, SLOW * 10_000, "the limits are 0.1 and 600 seconds"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_refused_with_its_path(name: str):
    kind, data, expected = BAD[name]
    began_at = time.thread_time()
    with pytest.raises(BadRequest, match=re.escape(expected) if "|" not in expected else expected) as found:
        checked(attached(kind, data))
    assert found.value.param == "messages[0].content[1]"
    assert found.value.message.startswith("'messages[0].content[1]' cannot be read: ")
    assert time.thread_time() - began_at < 1


@pytest.mark.parametrize(
    ("kind", "data", "said"), [(IMAGE, jpeg(), "image/png"), (IMAGE, png(), "image/webp"), (AUDIO, wav(), "mp3")]
)
def test_file_of_another_kind_than_it_says_is_refused(kind: str, data: bytes, said: str):
    with pytest.raises(BadRequest, match="the request says that it is"):
        checked(attached(kind, data, said))


@pytest.mark.parametrize(
    "said", ["image/jpg", "image/jpeg; charset=binary", "IMAGE/JPEG", "application/octet-stream", ""]
)
def test_other_names_of_a_format_are_taken(said: str):
    assert checked(attached(IMAGE, jpeg(), said)).data == jpeg()


def test_mp3_gets_no_length_but_that_of_its_frames():
    tagged = mp3(tag=b"Info\0\0\0\1\x7f\xff\xff\xff")
    data = b"ID3\3\0\0\0\0\0\x05abcde" + tagged + b"\xff\xfb\xff junk" + MP3[104:]
    found = checked(attached(AUDIO, data)).data
    assert len(found) == 104 * 39
    assert b"Info" not in found
    assert found == found[:40] + found[40:].replace(b"junk", b"")


def test_frames_of_another_kind_of_mp3_are_left_out():
    assert checked(attached(AUDIO, MP3 + SLOW * 100)).data == MP3


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The file with a few other bytes, most of them in its header, and perhaps cut."""
    result = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        result[chance.randrange(min(len(result), chance.choice([60, len(result)])))] = chance.randrange(256)
    return bytes(result[: chance.choice([len(result), len(result), chance.randrange(len(result))])])


def test_mutated_files_are_taken_or_refused_within_a_second():
    chance = random.Random(1)
    for _ in range(3000):
        kind, data = chance.choice(list(GOOD.values()))
        began_at = time.thread_time()
        with contextlib.suppress(BadRequest):
            checked(attached(kind, mutated(data, chance)))
        assert time.thread_time() - began_at < 1


def test_markers_are_found_and_cannot_be_guessed():
    text: Any = f"a{marker(0)}b{marker(12)}1"
    assert [found[1] for found in MARKER.finditer(text)] == ["0", "12"]
    assert not MARKER.search("media0123456789abcdefn0n")
