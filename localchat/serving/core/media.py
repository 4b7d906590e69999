"""Images and sounds in requests: their formats, what their headers say, and the limits of their sizes.

A file is checked with the standard library before native code sees it. It must be complete and of the kind that the
request says, and no decoder may take more memory or time for it than its header says: the data of a PNG is inflated and
counted, and an MP3 is put together again from its frames, since nothing else bounds what it decodes to.
"""

from __future__ import annotations

import base64
import re
import secrets
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import field_error

IMAGE, AUDIO = "an image", "audio"

# The limits of a request, of an image, and of a sound. The size of the body limits the bytes.
MAX_MEDIA = 20
MAX_PIXELS, MAX_SIDE = 33_000_000, 16_384
MIN_SECONDS, MAX_SECONDS = 0.1, 600
_MAX_SCANS = 100  # Of a JPEG. Each takes a pass over all pixels. Progressive files have about ten.
_MAX_PARTS = 100_000  # Chunks, segments or frames, which bound the time of a check. Ten minutes have 40,000 frames.
_MIN_RATE, _MAX_RATE = 4000, 192_000
_MAX_CHANNELS = 8
_PIECE = 1 << 20  # The bytes that are inflated at a time, to be counted.

# The formats by their first bytes.
_MAGIC = {
    "PNG": rb"\x89PNG\r\n\x1a\n", "JPEG": rb"\xff\xd8\xff", "GIF": rb"GIF8[79]a", "BMP": rb"BM",
    "WAV": rb"RIFF.{4}WAVE", "FLAC": rb"fLaC", "MP3": rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", "WebP": rb"RIFF.{4}WEBP",
}  # fmt: skip
# Those that libmtmd decodes without ffmpeg. The others are here to be named in the error.
_FORMATS = {IMAGE: ("PNG", "JPEG", "GIF", "BMP"), AUDIO: ("WAV", "MP3", "FLAC")}
# Their names in media types and in `format`, without "x-".
_NAMES = {
    **{name.lower(): name for name in _MAGIC}, "jpg": "JPEG", "pjpeg": "JPEG", "ms-bmp": "BMP", "wave": "WAV",
    "vnd.wave": "WAV", "mpeg": "MP3", "mpga": "MP3",
}  # fmt: skip

# The marker of each attachment has a number that no client knows, so that no text can have a marker.
_SECRET = secrets.token_hex(8)
MARKER = re.compile(f"media{_SECRET}n([0-9]+)n")
"""Matches the markers in texts; the group is the index of the attachment."""


@dataclass(frozen=True)
class Attachment:
    """An image or a sound as a request has it. It is decoded and checked when the model is known."""

    kind: str  # IMAGE or AUDIO.
    path: str  # The path of the part, for errors.
    source: str  # A data URL, or base64.
    format: str = ""  # The media type or the format that the request gives beside the source; "" if none.
    is_replayed: bool = False  # Whether it is a part of an earlier output or of the result of a tool.


@dataclass(frozen=True)
class MediaFile:
    """An image or a sound that has been checked."""

    kind: str  # IMAGE or AUDIO.
    data: bytes  # The file for the decoder.
    path: str = ""  # The path of the part, for errors.


def marker(index: int) -> str:
    """The text that stands for an attachment of a request."""
    return f"media{_SECRET}n{index}n"


def checked(attachment: Attachment) -> MediaFile:
    """Decode and check an attachment. Raises BadRequest with its path."""
    try:
        given, data = _decoded(attachment)
        format = next((name for name, magic in _MAGIC.items() if re.match(magic, data, re.DOTALL)), "")
        known = _FORMATS[attachment.kind]
        named = _NAMES.get(given.lower().rpartition("/")[2].partition(";")[0].removeprefix("x-"), "")
        if format not in known:
            what = format or f"of an unknown format (it begins with {data[:8]!r})"
            raise ValueError(f"it is {what}, and this server reads {', '.join(known)}")
        if named and named != format:
            raise ValueError(f"it is {format}, and the request says that it is {named}")
        try:
            data = _CHECKS[format](data)
        except (struct.error, IndexError):
            raise ValueError(f"the {format} is cut: it has {len(data)} bytes") from None
    except ValueError as error:
        raise field_error(attachment.path, f"cannot be read: {error}") from error
    return MediaFile(attachment.kind, data, attachment.path)


def _decoded(attachment: Attachment) -> tuple[str, bytes]:
    """The format that the request gives, and the bytes."""
    source, format = attachment.source, attachment.format
    if not source:
        raise ValueError("it has no data, and this server fetches nothing: send the file itself, as a data URL")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", source[:20])
    if scheme is not None:
        if scheme[1].lower() != "data":
            raise ValueError("this server fetches nothing: send the file itself, as a data URL with base64")
        head, comma, source = source.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise ValueError("a data URL must have the form data:image/png;base64,...")
        format = head[len("data:") : -len(";base64")]
    try:
        return format, base64.b64decode(re.sub(r"\s+", "", source) if "\n" in source else source, validate=True)
    except ValueError as error:
        raise ValueError(f"it is not valid base64 ({error})") from error


# --- images ---


def _parts(format: str) -> Iterator[int]:
    """Numbers the parts of a file. Raises ValueError if they are too many."""
    yield from range(_MAX_PARTS)
    raise ValueError(f"the {format} has more than {_MAX_PARTS} parts: it is damaged, or of another format")


def _check_size(format: str, width: int, height: int) -> None:
    if not (width > 0 and height > 0):
        raise ValueError(f"the {format} has {width} x {height} pixels")
    if max(width, height) > MAX_SIDE:
        raise ValueError(f"the {format} has {width} x {height} pixels, the limit of a side is {MAX_SIDE}")
    if (n_pixels := width * height) > MAX_PIXELS:
        raise ValueError(f"the {format} has {width} x {height} = {n_pixels} pixels, the limit is {MAX_PIXELS}")


_PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # By the type of colour: the samples of a pixel.
# The passes of an interlaced PNG: the first column and row, and the steps to the next ones.
_PNG_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def _png(data: bytes) -> bytes:
    length, kind, width, height, depth, colour, _, _, interlace = struct.unpack_from(">I4sIIBBBBB", data, 8)
    if length != 13 or kind != b"IHDR" or colour not in _PNG_SAMPLES or depth not in (1, 2, 4, 8, 16) or interlace > 1:
        raise ValueError("the PNG has an invalid header")
    _check_size("PNG", width, height)
    n_bits, n_expected = depth * _PNG_SAMPLES[colour], 0
    for x, y, dx, dy in _PNG_PASSES if interlace else ((0, 0, 1, 1),):
        n_columns, n_rows = -(-(width - x) // dx), -(-(height - y) // dy)
        if n_columns > 0 and n_rows > 0:
            n_expected += n_rows * (1 + (n_columns * n_bits + 7) // 8)
    n_bytes, inflater = 0, zlib.decompressobj()
    try:
        for piece in _png_data(data):
            while piece and not inflater.eof and n_bytes <= n_expected:
                n_bytes += len(inflater.decompress(piece, _PIECE))
                piece = inflater.unconsumed_tail
    except zlib.error as error:
        raise ValueError(f"the data of the PNG is damaged ({error})") from error
    if n_bytes != n_expected:
        raise ValueError(f"the data of the PNG has {n_bytes} bytes or more, and its pixels need {n_expected}")
    return data


def _png_data(data: bytes) -> Iterator[bytes]:
    """The compressed data of the pixels."""
    at = 8
    for _ in _parts("PNG"):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IEND":
            return
        if at + 12 + length > len(data):
            raise ValueError(f"the PNG is cut: it has {len(data)} bytes, and needs at least {at + 24 + length}")
        if kind == b"IDAT":
            yield data[at + 8 : at + 8 + length]
        at += 12 + length


# A marker of a JPEG, other than those inside the data of a scan.
_JPEG_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])", re.DOTALL)


def _jpeg(data: bytes) -> bytes:
    at, n_scans, size, parts = 2, 0, None, _parts("JPEG")
    while found := _JPEG_MARKER.search(data, at):
        next(parts)
        kind, at = found[1][0], found.end()
        if kind == 0xD9:
            if size is None or not n_scans:
                break
            return data
        if kind in (0x01, 0xD8):
            continue
        (length,) = struct.unpack_from(">H", data, at)
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            depth, height, width, n_components = struct.unpack_from(">BHHB", data, at + 2)
            if kind > 0xC2 or depth != 8 or size or n_components not in (1, 3, 4):
                raise ValueError("it is a JPEG of a rare kind: save it as a baseline or progressive JPEG")
            size = width, height
            _check_size("JPEG", width, height)
        n_scans += kind == 0xDA
        if n_scans > _MAX_SCANS:
            raise ValueError(f"the JPEG has {n_scans} scans or more, the limit is {_MAX_SCANS}")
        at += max(length, 2)
    raise ValueError(f"the JPEG is cut: it has {len(data)} bytes")


def _gif(data: bytes) -> bytes:
    _check_size("GIF", *struct.unpack_from("<HH", data, 6))
    if not data.rstrip(b"\0").endswith(b";") or len(data) < 20:
        raise ValueError(f"the GIF is cut: it has {len(data)} bytes")
    return data


def _bmp(data: bytes) -> bytes:
    start, n_header = struct.unpack_from("<II", data, 10)
    # The oldest header has shorter fields.
    width, height, _, n_bits = struct.unpack_from("<HHHH" if n_header == 12 else "<iiHH", data, 18)
    compression = 0 if n_header == 12 else struct.unpack_from("<I", data, 30)[0]
    _check_size("BMP", width, abs(height))
    if n_bits not in (1, 4, 8, 16, 24, 32) or compression not in (0, 3):
        raise ValueError(f"it is a BMP of a rare kind ({n_bits} bits, compression {compression})")
    n_needed = start + (width * n_bits + 31) // 32 * 4 * abs(height)
    if n_needed > len(data):
        raise ValueError(f"the BMP is cut: it has {len(data)} bytes, and needs {n_needed}")
    return data


# --- sounds ---


def _check_sound(format: str, n_samples: int, rate: int, n_channels: int = 1) -> None:
    if not _MIN_RATE <= rate <= _MAX_RATE:
        raise ValueError(f"the {format} has {rate} samples a second, the limits are {_MIN_RATE} and {_MAX_RATE}")
    if not 1 <= n_channels <= _MAX_CHANNELS:
        raise ValueError(f"the {format} has {n_channels} channels, the limit is {_MAX_CHANNELS}")
    seconds = n_samples / rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        limits = f"the limits are {MIN_SECONDS} and {MAX_SECONDS} seconds"
        raise ValueError(f"the {format} has {n_samples} samples, which are {seconds:.4g} seconds, {limits}")


# The tags of numbers and of numbers with a fraction, each with the bits of a sample; the tag of a longer header.
_WAV_KINDS = {1: (8, 16, 24, 32), 3: (32, 64)}
_WAV_EXTENSIBLE = 0xFFFE


def _wav(data: bytes) -> bytes:
    at, form = 12, None
    for _ in _parts("WAV"):
        kind, length = struct.unpack_from("<4sI", data, at)
        if at + 8 + length > len(data):
            raise ValueError(f"the WAV is cut: it has {len(data)} bytes, and needs {at + 8 + length}")
        if kind == b"data":
            break
        if kind == b"fmt ":
            tag, n_channels, rate, _, n_frame, n_bits = struct.unpack_from("<HHIIHH", data, at + 8)
            if tag == _WAV_EXTENSIBLE:
                (tag,) = struct.unpack_from("<H", data, at + 32)
            if form is not None or n_bits not in _WAV_KINDS.get(tag, ()) or n_frame != n_channels * n_bits // 8:
                raise ValueError(f"it is a WAV of a rare kind (tag {tag}, {n_bits} bits): save it with 16 bits")
            form = rate, n_channels, n_frame
        at += 8 + length + length % 2
    if form is None:
        raise ValueError("the WAV has no format before its data")
    rate, n_channels, n_frame = form
    _check_sound("WAV", length // n_frame if n_frame else 0, rate, n_channels)
    return data


def _flac(data: bytes) -> bytes:
    at, is_last, has_info, parts = 4, False, False, _parts("FLAC")
    while not is_last:
        next(parts)
        head, length = data[at], int.from_bytes(data[at + 1 : at + 4], "big")
        is_last, kind = bool(head & 0x80), head & 0x7F
        if kind == 0:
            (packed,) = struct.unpack_from(">Q", data, at + 14)
            _check_sound("FLAC", packed & ((1 << 36) - 1), packed >> 44, (packed >> 41 & 7) + 1)
            has_info = True
        elif not has_info:
            raise ValueError("the FLAC does not begin with its STREAMINFO")
        at += 4 + length
    if at >= len(data):
        raise ValueError(f"the FLAC is cut: it has {len(data)} bytes, and needs more than {at}")
    return data


# By the version of MPEG: the rates, the samples of a frame, and the kilobits a second, all for layer III.
_MP3_LOW = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3 = {
    3: ((44_100, 48_000, 32_000), 1152, (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)),
    2: ((22_050, 24_000, 16_000), 576, _MP3_LOW),
    0: ((11_025, 12_000, 8_000), 576, _MP3_LOW),
}


def _mp3_frame(data: bytes, at: int) -> tuple[tuple[int, int] | None, int, int]:
    """The version and the rate of the frame at a position, None if there is none; its bytes, and its samples."""
    head = data[at : at + 4]
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None, 0, 0
    version, rate, bits = head[1] >> 3 & 3, head[2] >> 2 & 3, head[2] >> 4
    if version not in _MP3 or rate == 3 or not 1 <= bits <= 14:
        return None, 0, 0
    rates, n_samples, kilobits = _MP3[version]
    n_bytes = n_samples * 125 * kilobits[bits] // rates[rate] + (head[2] >> 1 & 1)
    return (version, rates[rate]) if at + n_bytes <= len(data) else None, n_bytes, n_samples


def _mp3(data: bytes) -> bytes:
    """The frames, one directly after another. A decoder also finds frames behind other bytes, which could be more."""
    at = 0
    if data.startswith(b"ID3"):
        at = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0)))
    frames: list[bytes] = []
    kind: tuple[int, int] | None = None
    n_samples, parts = 0, _parts("MP3")
    while (at := data.find(b"\xff", at)) >= 0:
        next(parts)
        found, n_bytes, n_own = _mp3_frame(data, at)
        if kind is None and found == _mp3_frame(data, at + n_bytes)[0]:  # Two frames make a beginning.
            kind = found
        if found is None or found != kind:
            at += 1
            continue
        frames.append(data[at : at + n_bytes])
        at += n_bytes
        n_samples += n_own
        if n_samples > MAX_SECONDS * found[1]:
            break
    if kind is None:
        raise ValueError("the MP3 has no frames of layer III")
    _check_sound("MP3", n_samples, kind[1])
    # These tags give the length of the file.
    frames[0] = re.sub(rb"Xing|Info|VBRI", bytes(4), frames[0])
    return b"".join(frames)


_CHECKS = {"PNG": _png, "JPEG": _jpeg, "GIF": _gif, "BMP": _bmp, "WAV": _wav, "FLAC": _flac, "MP3": _mp3}
