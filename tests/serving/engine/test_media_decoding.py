"""Files of images and sounds become pixels and samples; damaged and hostile ones are refused within bounds."""

import contextlib
import io
import itertools
import random
import struct
import sys
import time
import zlib
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image, ImageOps

from localchat.serving.core.errors import BadRequest, NotSupported
from localchat.serving.core.media import AUDIO, IMAGE, MediaFile
from localchat.serving.engine.media.decoding import Pixels, Samples, decode
from tests.support.documents import ROOT, run
from tests.support.growth import assert_linear
from tests.support.media_files import bmp, flac, gif, jpeg, mp3, png, wav
from tests.support.time_limit import limited_time

RATE = 16_000
PATH = "messages[0].content[1]"
ORIENTATION = 0x0112  # The tag of EXIF.


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def picture(width: int = 24, height: int = 16, seed: int = 0) -> Image.Image:
    """A picture of blocks of 8 x 8 pixels, which a JPEG keeps nearly as they are."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST)


def webp(seed: int = 0) -> bytes:
    return saved(picture(seed=seed), "WEBP", lossless=True)


GOOD = {
    "png": (IMAGE, png()), "jpeg": (IMAGE, jpeg()), "gif": (IMAGE, gif()), "bmp": (IMAGE, bmp()),
    "webp": (IMAGE, webp()), "wav": (AUDIO, wav()), "mp3": (AUDIO, mp3()), "flac": (AUDIO, flac()),
}  # fmt: skip


def pixels(data: bytes) -> Any:
    decoded = decode(MediaFile(IMAGE, data, PATH), RATE)
    assert isinstance(decoded, Pixels)
    return np.frombuffer(decoded.data, np.uint8).reshape(decoded.height, decoded.width, 3).astype(int)


def samples(data: bytes, rate: int = RATE) -> Any:
    decoded = decode(MediaFile(AUDIO, data, PATH), rate)
    assert isinstance(decoded, Samples)
    assert len(decoded.data) == 4 * decoded.count
    return np.frombuffer(decoded.data, np.float32)


def replaced(data: bytes, at: int, part: bytes) -> bytes:
    return data[:at] + part + data[at + len(part) :]


# --- images ---


@pytest.mark.parametrize(
    ("format", "options", "most"),
    [
        ("PNG", {}, 0), ("BMP", {}, 0), ("GIF", {}, 0), ("WEBP", {"lossless": True}, 0),
        ("JPEG", {"quality": 95, "subsampling": 0}, 12),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}, 12),
    ],
)  # fmt: skip
def test_pixels_are_those_of_the_picture(format: str, options: Any, most: int):
    image = picture()
    assert abs(pixels(saved(image, format, **options)) - np.asarray(image)).max() <= most


TURNED = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90",
          7: "TRANSVERSE", 8: "ROTATE_270"}  # fmt: skip


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, *TURNED])
def test_image_is_turned_as_its_orientation_says(format: str, orientation: int):
    upright = picture()
    # A camera that is held in this way sees the picture so.
    seen = upright.transpose(Image.Transpose[TURNED[orientation]]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    options = {"lossless": True} if format == "WEBP" else {"subsampling": 0}
    data = saved(seen, format, exif=exif.tobytes(), **options)
    assert abs(pixels(data) - np.asarray(upright)).max() <= 30


def test_damaged_orientation_is_not_used():
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = saved(picture(), "JPEG", exif=exif.tobytes())
    damaged = data.replace(exif.tobytes()[6:16], b"MM\0\x2a\xff\xff\xff\xff\xff\xff")
    assert damaged != data
    assert pixels(damaged).shape == (16, 24, 3)


def transparent(mode: str) -> tuple[Image.Image, dict[str, Any]]:
    """A black image, of which the left half is transparent, and the options to save it."""
    if mode in ("RGBA", "LA"):
        image = Image.new(mode, (8, 8), (0,) * len(mode))
        image.paste((0,) * (len(mode) - 1) + (255,), (4, 0, 8, 8))
        return image, {}
    image = Image.new(mode, (8, 8), 7 if mode in "LP" else (7, 7, 7))
    if mode == "P":
        image.putpalette([0] * 768)
    image.paste(0, (4, 0, 8, 8))
    return image, {"transparency": (7, 7, 7) if mode == "RGB" else 7}


@pytest.mark.parametrize(
    ("mode", "format"),
    [("RGBA", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("L", "PNG"), ("RGB", "PNG"), ("P", "GIF"), ("RGBA", "WEBP")],
)
def test_transparency_is_composed_on_white(mode: str, format: str):
    image, options = transparent(mode)
    if format == "WEBP":
        options |= {"lossless": True, "exact": True}  # Keep the colours of transparent pixels.
    seen = pixels(saved(image, format, **options))
    assert (seen[:, :4] == 255).all()
    assert (seen[:, 4:] == 0).all()


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_first_frame_of_an_animation_is_taken(format: str):
    frames = [picture(seed=seed) for seed in range(3)]
    options = {"lossless": True} if format == "WEBP" else {}
    data = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert (pixels(data) == np.asarray(frames[0])).all()


def test_grey_of_16_bits_keeps_its_brightness():
    values = np.array([[0, 255, 256 * 100, 65_535]], np.uint16)
    assert pixels(saved(Image.fromarray(values), "PNG"))[0].tolist() == [[v >> 8] * 3 for v in values[0].tolist()]


@pytest.mark.parametrize("mode", ["1", "CMYK", "YCbCr"])
def test_other_colours_become_red_green_and_blue(mode: str):
    image = ImageOps.invert(picture().convert("L")).point(lambda value: 255 * (value > 100)).convert(mode)
    expected = np.asarray(image.convert("RGB")).astype(int)
    assert abs(pixels(saved(image, "PNG" if mode == "1" else "JPEG")) - expected).max() <= 12


# --- sounds ---


def tone(rate: int, seconds: float = 2.3, hertz: int = 1000) -> Any:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate).astype(np.float32)


def sound(values: Any, rate: int, format: str = "WAV", subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, values, rate, format=format, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize("rate", [4000, 8000, 11_025, 16_000, 22_051, 44_100, 48_000, 192_000])
@pytest.mark.parametrize("target", [16_000, 24_000])
def test_sound_is_resampled(rate: int, target: int):
    heard, expected = samples(sound(tone(rate), rate, subtype="FLOAT"), target), tone(target)
    assert abs(len(heard) - len(expected)) <= 1
    middle = slice(target // 10, -target // 10)
    assert abs(heard[: len(expected)] - expected[: len(heard)])[middle].max() < 0.001


def test_sound_of_many_segments_has_no_seams():
    assert abs(samples(sound(tone(8000, 35), 8000)) - tone(RATE, 35))[1000:-1000].max() < 0.001


def test_tones_above_the_sample_rate_of_the_model_are_not_heard():
    assert abs(samples(sound(tone(48_000, hertz=10_000), 48_000)))[1000:-1000].max() < 0.001


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "MS_ADPCM"])
def test_kinds_of_wav_are_heard(subtype: str):
    assert abs(samples(sound(tone(RATE), RATE, subtype=subtype))[:30_000] - tone(RATE)[:30_000]).max() < 0.05


def test_channels_are_mixed():
    silence = np.zeros_like(tone(RATE))
    for format in ("WAV", "FLAC", "MP3"):
        heard = samples(sound(np.stack([tone(RATE), silence], axis=1), RATE, format))
        assert abs(heard).max() == pytest.approx(0.25, abs=0.02)


def test_loud_samples_are_clipped():
    assert abs(samples(sound(tone(RATE) * 1e30, RATE, subtype="FLOAT"))).max() <= 1.2


UNKNOWN = (0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFFFFE, 0x7FFF0000)


@pytest.mark.parametrize(
    ("n_riff", "n_data"), [*itertools.product((*UNKNOWN, 0, None), UNKNOWN), *((n, None) for n in (*UNKNOWN, 0))]
)
def test_wav_of_unknown_length_is_heard(n_riff: int | None, n_data: int | None):
    """Programs that write to a pipe do not know the length when they write the header."""
    data = expected = wav()
    for at, n in ((4, n_riff), (40, n_data)):
        data = data if n is None else replaced(data, at, struct.pack("<I", n))
    assert (samples(data) == samples(expected)).all()


def test_flac_of_unknown_length_is_heard():
    known = sound(tone(RATE), RATE, "FLAC")
    unknown = replaced(known, 21, bytes([known[21] & 0xF0]) + bytes(4))
    assert unknown != known
    assert (samples(unknown) == samples(known)).all()


def test_mp3_has_the_length_of_its_frames():
    tagged = mp3(tag=b"Info\0\0\0\1\x7f\xff\xff\xff")
    assert 0.4 * RATE < len(samples(b"ID3\3\0\0\0\0\0\x05abcde" + tagged)) < 0.6 * RATE


# --- files that are refused ---


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of(*chunks: bytes, width: int = 10, height: int = 10) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks[:1]) + header + b"".join(chunks[1:]) + chunk(b"IEND")


def webp_of(width: int, height: int) -> bytes:
    """The head of an extended WebP."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + size + bytes(8)


def stating(n_samples: int, n_channels: int, rate: int) -> bytes:
    """A FLAC of 204,800 silent samples in each channel, whose header states another number; 0: unknown."""
    silence = sound(np.zeros((4096 * 50, n_channels), np.float32), rate, "FLAC")
    info = int.from_bytes(silence[18:26], "big") >> 36 << 36 | n_samples
    return replaced(silence, 18, info.to_bytes(8, "big"))


def long_flac(n_channels: int, is_known: bool = True) -> bytes:
    """Silence of 20,480,000 samples in each channel, 48,000 a second, in some thousand bytes."""
    silence = stating(4096 * 5000 if is_known else 0, n_channels, 48_000)
    at = silence.index(b"\xff\xf8")
    return silence[:at] + silence[at:] * (100 if is_known else 60)


def scans(n: int) -> bytes:
    """A progressive JPEG of 4,000 x 4,000 pixels with `n` scans more."""
    data = saved(Image.new("L", (4000, 4000)), "JPEG", progressive=True)
    return data[:-2] + b"\xff\xda\0\x08\1\1\0\1\x3f\0" * n + data[-2:]


def deflated_zeros(n_megabytes: int) -> bytes:
    """Zeros as raw deflate data: one compressed megabyte, again and again, since all of it takes half a second."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    megabyte = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return megabyte * n_megabytes + packer.flush()


WAV = wav()
# Of Apple: the data of the pixels has no header, and other decoders inflate it without a limit.
CGBI = chunk(b"CgBI", b"\x50\0\x20\x02")
RAW_BOMB = deflated_zeros(95)
TEXT_BOMB = b"\x78\x9c" + deflated_zeros(86) + zlib.adler32(bytes(86 << 20)).to_bytes(4, "big")
# The head of a frame of 8 kilobits and 8,000 samples a second, of which each byte is a millisecond.
SLOW = b"\xff\xe3\x18\xc4" + bytes(68)
MANY = 200_000

BAD: dict[str, tuple[str, bytes, str]] = {
    "text": (IMAGE, b"hello, this is no image", "no PNG, JPEG, GIF, BMP or WebP: it begins with b'hello, this "),
    "svg": (IMAGE, b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no PNG, JPEG, GIF, BMP or WebP"),
    "tiff": (IMAGE, saved(picture(), "TIFF"), "no PNG, JPEG, GIF, BMP or WebP"),
    "video": (IMAGE, b"\0\0\0\x18ftypmp42" + bytes(50), "no PNG, JPEG, GIF, BMP or WebP"),
    "sound for an image": (IMAGE, WAV, "no PNG, JPEG, GIF, BMP or WebP"),
    "image for a sound": (AUDIO, png(), "no WAV, MP3 or FLAC"),
    "empty image": (IMAGE, b"", "begins with b''"),
    "empty sound": (AUDIO, b"", "begins with b''"),
    "ogg": (AUDIO, sound(tone(RATE), RATE, "OGG"), "no WAV, MP3 or FLAC"),
    "png of 20,000 x 20": (IMAGE, png(20_000, 20, data=b""), "20000 x 20 pixels, the limit of a side is 16384"),
    "png of 16,000 x 16,000": (IMAGE, png(16_000, 16_000, data=b""), "256000000 pixels, the limit is 33000000"),
    "png of 6,000 x 6,000": (IMAGE, png(6000, 6000, data=b""), "36000000 pixels, the limit is 33000000"),
    "png of 0 x 10": (IMAGE, png(0, 10, data=b""), ""),
    "png with less data": (IMAGE, png(data=bytes(100)), "truncated"),
    "png with damaged data": (IMAGE, replaced(png(), 60, bytes(20)), ""),
    "png with unknown filters": (IMAGE, png(20, 10, data=(b"\x09" + bytes(60)) * 10), ""),
    "png, cut": (IMAGE, png()[:-500], "truncated"),
    "png, only its signature": (IMAGE, png()[:8], ""),
    "png with a CgBI chunk": (IMAGE, png_of(CGBI, chunk(b"IDAT", RAW_BOMB)), "broken data stream"),
    "png with a bomb as text": (IMAGE, png_of(b"", chunk(b"zTXt", b"a\0\0" + TEXT_BOMB)), ""),
    "jpeg, cut": (IMAGE, jpeg(64, 64)[:-20], "runcated"),
    "jpeg without size": (IMAGE, b"\xff\xd8\xff\xd9", ""),
    "jpeg of 65,535 x 1": (IMAGE, jpeg().replace(b"\x08\0\x10\0\x10", b"\x08\0\1\xff\xff"), "65535 x 1 pixels"),
    "jpeg of many scans": (IMAGE, scans(300), "306 scans of 4000 x 4000 pixels, the limit is 206"),
    "gif, cut": (IMAGE, gif()[:-30], "truncated"),
    "gif of 60,000 x 60,000": (IMAGE, replaced(gif(), 6, b"\x60\xea\x60\xea"), "60000 x 60000 pixels"),
    "bmp of 250 bytes": (IMAGE, replaced(bmp(8, 8), 18, struct.pack("<ii", 5000, 5000)), "truncated"),
    "bmp, cut": (IMAGE, bmp()[:-30], "truncated"),
    "webp of 16,383 x 16,383": (IMAGE, webp_of(16_383, 16_383), ""),
    "webp, cut": (IMAGE, webp()[:-30], ""),
    "wav of 1 sample": (AUDIO, wav(n_samples=1), "1 samples, which are 6.25e-05 seconds, the limits are 0.1 and 600"),
    "wav of 0 samples": (AUDIO, wav(n_samples=0), "0 samples"),
    "wav of 1 Hz": (AUDIO, wav(n_samples=16_000, rate=1), "1 samples a second, the limits are 4000 and 192000"),
    "wav of 700 s": (AUDIO, wav(700, rate=4000), "700 seconds, the limits are 0.1 and 600 seconds"),
    "wav of 200 channels": (AUDIO, wav(n_channels=200), "200 channels, the limit is 8"),
    "flac of many channels": (AUDIO, long_flac(8), "8 x 20480000 = 163840000 samples in its channels, the limit is"),
    "flac of ten minutes in stereo, cut": (AUDIO, stating(28_800_000, 2, 48_000), "its header says 28800000"),
    "flac of a sample more": (AUDIO, stating(28_800_001, 2, 96_000), "57600002 samples in its channels, the limit is"),
    "flac of many channels and unknown length": (AUDIO, long_flac(8, is_known=False), "in its channels, the limit is"),
    "wav, cut": (AUDIO, WAV[:-1000], "the WAV is cut: it has 15044 bytes, and its header says 16044"),
    "wav of an unknown tag": (AUDIO, replaced(WAV, 20, b"\x77\x77"), "damaged, or of a rare kind"),
    "wav without format": (AUDIO, WAV.replace(b"fmt ", b"junk"), "damaged, or of a rare kind"),
    "wav without data": (AUDIO, WAV[:36], "damaged, or of a rare kind"),
    "wav without numbers": (AUDIO, sound(np.full(RATE, np.nan), RATE, subtype="FLOAT"), "not finite"),
    "flac of 2^35 samples": (AUDIO, flac(n_samples=(1 << 35)), "34359738368 samples"),
    "flac, cut": (AUDIO, sound(tone(RATE), RATE, "FLAC")[:-3000], ""),
    "flac, its head": (AUDIO, flac()[:42], ""),
    "mp3 without frames": (AUDIO, b"ID3\3\0\0\0\0\0\0" + bytes(2000), "damaged, or of a rare kind"),
    "mp3 of 3 frames": (AUDIO, mp3(3), " samples, which are 0.0"),
    "mp3 of hours": (AUDIO, SLOW * 10_000, "the limits are 0.1 and 600 seconds"),
    "png of many chunks": (IMAGE, png_of(b"", chunk(b"tEXt") * MANY), "more than 100000 parts"),
    "png of many unknown chunks": (IMAGE, png_of(chunk(b"teSt") * MANY), "more than 100000 parts"),
    "jpeg of many segments": (IMAGE, b"\xff\xd8" + b"\xff\xe0\0\2" * MANY, "more than 100000 parts"),
    "gif of many blocks": (IMAGE, gif()[:397] + b"!\xfe\0" * MANY + gif()[397:], "more than 100000 parts"),
    "wav of many chunks": (AUDIO, WAV[:12] + b"junk\0\0\0\0" * MANY, ""),
    "flac of many blocks": (AUDIO, replaced(flac()[:42], 4, b"\0") + b"\1\0\0\0" * MANY, ""),
    "mp3 of many false frames": (AUDIO, b"\xff\xfb" * MANY, ""),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_is_refused_with_its_path(name: str):
    kind, data, expected = BAD[name]
    with limited_time(2), pytest.raises(BadRequest) as found:
        decode(MediaFile(kind, data, PATH), RATE)
    assert found.value.param == PATH
    assert expected in found.value.message
    assert found.value.message.startswith(f"'{PATH}' cannot be read: ")


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss")
def test_bad_file_takes_no_memory_for_what_its_header_says():
    program = """
import contextlib, resource
from tests.serving.engine.test_media_decoding import BAD, GOOD, RATE, BadRequest, MediaFile, decode
for kind, data in GOOD.values():
    decode(MediaFile(kind, data, ""), RATE)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, (kind, data, _) in BAD.items():
    with contextlib.suppress(BadRequest):
        decode(MediaFile(kind, data, ""), RATE)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = run([sys.executable, "-c", program], cwd=ROOT)
    assert int(done.stdout) < 120, done.stderr


LENGTHENED = {
    "chunks of a png": lambda n: png_of(b"", chunk(b"tEXt", b"a\0b") * n),
    "pieces of data of a png": lambda n: png_of(b"", chunk(b"IDAT") * n),
    "segments of a jpeg": lambda n: b"\xff\xd8" + b"\xff\xfe\0\2" * n + jpeg()[2:],
    "blocks of a gif": lambda n: gif()[:397] + b"!\xfe\1a\0" * n + gif()[397:],
}


@pytest.mark.parametrize("name", LENGTHENED)
def test_time_is_linear_in_the_number_of_parts(name: str):
    def seconds(n: int) -> float:
        data, began_at = LENGTHENED[name](n), time.thread_time()
        with contextlib.suppress(BadRequest):
            decode(MediaFile(IMAGE, data, PATH), RATE)
        return time.thread_time() - began_at

    assert_linear(seconds, 1000, 20, 0.003)


@pytest.mark.parametrize("name", GOOD)
def test_cut_file_is_refused_unless_its_content_is_whole(name: str):
    kind, data = GOOD[name]
    whole, chance = decode(MediaFile(kind, data, PATH), RATE), random.Random(name)
    for n in [*range(40), len(data) // 2, *(chance.randrange(len(data)) for _ in range(100))]:
        try:
            decoded = decode(MediaFile(kind, data[:n], PATH), RATE)
        except BadRequest:
            continue
        assert decoded == whole or name == "mp3"  # An MP3 has no length: it is the sum of its frames.


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The file with a few other bytes, most of them in its header, and perhaps cut."""
    result = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        result[chance.randrange(min(len(result), chance.choice([60, len(result)])))] = chance.randrange(256)
    return bytes(result[: chance.choice([len(result), len(result), chance.randrange(len(result))])])


def test_mutated_files_are_taken_or_refused_within_a_second():
    chance = random.Random(1)
    for _ in range(2000):
        kind, data = chance.choice(list(GOOD.values()))
        with limited_time(1), contextlib.suppress(BadRequest):
            decode(MediaFile(kind, mutated(data, chance), PATH), RATE)


@pytest.mark.parametrize(("kind", "library"), [(IMAGE, "PIL"), (AUDIO, "soundfile")])
def test_missing_library_is_named_with_its_extra(kind: str, library: str, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(NotSupported, match=r"pip install 'localchat-llama\[media\]'") as found:
        decode(MediaFile(kind, png() if kind == IMAGE else WAV, PATH), RATE)
    assert found.value.param == PATH
