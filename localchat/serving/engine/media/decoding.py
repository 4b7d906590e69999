"""Decodes images and sounds: a file becomes pixels or samples, with Pillow or libsndfile.

The files come from strangers. One library reads each file, and its size is checked before its content is decoded; the
decoders of llama.cpp get no file. Both libraries are in the extra `media`, and are imported with the first file, so
that a server of texts neither needs nor loads them. This module knows nothing of models.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from dataclasses import dataclass
from typing import Any, Union

from ...core.errors import NotSupported, field_error
from ...core.media import IMAGE, MediaFile

# The limits of an image. Decoding it takes up to 16 bytes for each pixel: 0.5 GB at the limit.
MAX_PIXELS, MAX_SIDE = 33_000_000, 16_384
# How often the pixels of an image may be decoded. A progressive JPEG has about ten scans, each a pass over the pixels.
_MAX_SCANS = 100
# How often a library may read from the file of an image, which bounds the number of its parts (chunks, segments), since
# these are read one by one in Python. A photo takes some hundred reads.
_MAX_READS = 100_000
# The limits of a sound.
MIN_SECONDS, MAX_SECONDS = 0.1, 600
_MIN_RATE, _MAX_RATE = 4000, 192_000
_MAX_CHANNELS = 8
# The limit of samples in all channels, which take a few seconds to decode: ten minutes of a recording in stereo.
_MAX_SAMPLES = MAX_SECONDS * 48_000 * 2

_IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
# The first bytes of WAV, FLAC and MP3. libsndfile gets no other file, since it has decoders for many rare formats.
_SOUND = re.compile(rb"RIFF.{4}WAVE|fLaC|ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", re.DOTALL)
# The size of a RIFF file that was written to a pipe, before its length was known, is at least this number.
_UNKNOWN_RIFF_SIZE = 0x7FFF0000
# What libsndfile returns as the length of a FLAC of unknown length.
_UNKNOWN_LENGTH = 2**63 - 1

# A sound is resampled in segments, each with the seconds before and after it, of which the result is dropped: the ends
# of a segment are distorted, since a Fourier transform takes it for a period.
_SEGMENT_S, _MARGIN_S = 8, 1

# One file is decoded at a time, which bounds the memory for that.
_decoding = threading.Lock()


@dataclass(frozen=True)
class Pixels:
    """A decoded image: without transparency, and turned as its EXIF orientation says."""

    width: int
    height: int
    data: bytes  # Red, green and blue of each pixel, in rows from the top.


@dataclass(frozen=True)
class Samples:
    """A decoded sound of one channel."""

    count: int
    data: bytes  # 32-bit floats from -1 to 1.


Decoded = Union[Pixels, Samples]


def decode(media: MediaFile, sample_rate: int) -> Decoded:
    """Decode an image, or a sound to this sample rate. Any thread.

    Raises:
        BadRequest: The file is damaged, of another format, or exceeds a limit. The error has the path of the part.
        NotSupported: The library for it is not installed.
    """
    _import_library(media)
    try:
        with _decoding:
            return _pixels(media.data) if media.kind == IMAGE else _samples(media.data, sample_rate)
    except MemoryError:
        raise
    except Exception as error:  # The libraries raise errors of many classes for damaged files.
        raise field_error(media.path, f"cannot be read: {error}") from error


def _import_library(media: MediaFile) -> None:
    try:
        if media.kind == IMAGE:
            import PIL.Image  # noqa: F401
        else:
            import soundfile  # noqa: F401
    except (ImportError, OSError) as error:  # soundfile raises OSError if there is no libsndfile.
        raise NotSupported(
            f"'{media.path}' is {media.kind}, and this server lacks the library to read it ({error}): install the "
            "extra `media`, with pip install 'localchat-llama[media]'",
            media.path,
        ) from error


# --- images ---


class _CountedFile(io.BytesIO):
    """A file in memory that can be read from `_MAX_READS` times."""

    n_reads = 0

    def read(self, size: int | None = -1) -> bytes:
        self.n_reads += 1
        if self.n_reads > _MAX_READS:
            raise ValueError(f"the image has more than {_MAX_READS} parts: it is damaged, or of a rare kind")
        return super().read(size)


def _pixels(data: bytes) -> Pixels:
    import PIL.WebPImagePlugin  # Pillow imports the other plugins by itself.
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # `_check_size` has a lower limit, and an error with both numbers.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of damage that leaves the pixels whole, as in EXIF data.
        try:
            image: Any = Image.open(_CountedFile(data), formats=_IMAGE_FORMATS)
        except PIL.UnidentifiedImageError:
            names = "PNG, JPEG, GIF, BMP or WebP"
            raise ValueError(f"it is damaged, or no {names}: it begins with {data[:12]!r}") from None
        _check_size(image.format, *image.size)
        if image.format in ("JPEG", "MPO"):
            _check_scans(data, *image.size)
        image.load()  # Of several frames, the first one.
        _check_size(image.format, *image.size)
        image = _turned(image)  # The name of each step replaces that of the one before, which frees its memory.
        image = _rgb(image)
    return Pixels(image.width, image.height, image.tobytes())


def _check_size(format: str, width: int, height: int) -> None:
    if not (width > 0 and height > 0):
        raise ValueError(f"the {format} has {width} x {height} pixels")
    if max(width, height) > MAX_SIDE:
        raise ValueError(f"the {format} has {width} x {height} pixels, the limit of a side is {MAX_SIDE}")
    if (n_pixels := width * height) > MAX_PIXELS:
        raise ValueError(f"the {format} has {width} x {height} = {n_pixels} pixels, the limit is {MAX_PIXELS}")


def _check_scans(data: bytes, width: int, height: int) -> None:
    """Limit the scans of a JPEG. The marker of a scan never occurs inside the data of another one."""
    n_scans, n_most = data.count(b"\xff\xda"), _MAX_SCANS * MAX_PIXELS // (width * height)
    if n_scans > n_most:
        raise ValueError(f"the JPEG has {n_scans} scans of {width} x {height} pixels, the limit is {n_most}")


def _turned(image: Any) -> Any:
    """The image as its EXIF orientation says; as it is if the EXIF data is damaged, since its pixels are not."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:
        return image


def _rgb(image: Any) -> Any:
    """The image in red, green and blue. Transparent pixels are composed on white: their own colours are arbitrary."""
    from PIL import Image

    if image.mode.startswith("I"):  # Grey of 16 bits, which Pillow would cut off at 255.
        return image.convert("I").point(lambda value: value * (1 / 256)).convert("L").convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


# --- sounds ---


class _SoundReader:
    """Reads the samples of an open sound from its start to its end, and counts them."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.format = str(file.format)
        self.rate = int(file.samplerate)
        self.n_channels = int(file.channels)
        self.n_read = 0
        # The number of samples by the header of the file; None if it is not there.
        self.n_stated = None if file.frames == _UNKNOWN_LENGTH else int(file.frames)

    def check(self) -> None:
        """Refuse a sound by what its header says, before its samples are decoded."""
        if not _MIN_RATE <= self.rate <= _MAX_RATE:
            limits = f"the limits are {_MIN_RATE} and {_MAX_RATE}"
            raise ValueError(f"the {self.format} has {self.rate} samples a second, {limits}")
        if not 1 <= self.n_channels <= _MAX_CHANNELS:
            raise ValueError(f"the {self.format} has {self.n_channels} channels, the limit is {_MAX_CHANNELS}")
        if self.n_stated is not None:
            self.check_length(self.n_stated)

    def check_length(self, n_samples: int) -> None:
        seconds = n_samples / self.rate
        if not MIN_SECONDS <= seconds <= MAX_SECONDS:
            limits = f"the limits are {MIN_SECONDS} and {MAX_SECONDS} seconds"
            raise ValueError(f"the {self.format} has {n_samples} samples, which are {seconds:.4g} seconds, {limits}")
        if n_samples * self.n_channels > _MAX_SAMPLES:
            size = f"{self.n_channels} x {n_samples} = {self.n_channels * n_samples}"
            raise ValueError(f"the {self.format} has {size} samples in its channels, the limit is {_MAX_SAMPLES}")

    def read(self, n: int) -> Any:
        """The next samples, each the mean of the channels; fewer than `n` at the end, and then none."""
        import numpy as np

        samples = self._file.read(n, dtype="float32", always_2d=True).mean(axis=1)
        self.n_read += len(samples)
        if self.n_read > MIN_SECONDS * self.rate:
            self.check_length(self.n_read)
        if not np.isfinite(samples).all():
            raise ValueError(f"the {self.format} has samples that are not finite")
        return samples.clip(-1, 1)


def _samples(data: bytes, rate: int) -> Samples:
    import soundfile

    class Stream(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types.
        def seekable(self) -> bool:
            """False: soundfile would seek after each read, which fails in files of unknown length."""
            return False

    if not _SOUND.match(data):
        raise ValueError(f"it is no WAV, MP3 or FLAC: it begins with {data[:12]!r}")
    try:
        with Stream(io.BytesIO(data)) as file:
            reader = _SoundReader(file)
            reader.check()
            samples = _resampled(reader, rate)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"it is damaged, or of a rare kind ({error.error_string})") from error
    reader.check_length(reader.n_read)
    _check_whole(data, reader)
    return Samples(len(samples), samples.tobytes())


def _check_whole(data: bytes, reader: _SoundReader) -> None:
    """Refuse a sound that was cut, since libsndfile returns what is left of it."""
    if reader.format == "FLAC" and reader.n_stated is not None and reader.n_read < reader.n_stated:
        raise ValueError(f"the FLAC is cut: it has {reader.n_read} samples, and its header says {reader.n_stated}")
    n_bytes = 8 + int.from_bytes(data[4:8], "little")
    if data.startswith(b"RIFF") and len(data) < n_bytes < _UNKNOWN_RIFF_SIZE:
        raise ValueError(f"the WAV is cut: it has {len(data)} bytes, and its header says {n_bytes}")


def _resampled(reader: _SoundReader, rate: int) -> Any:
    """The samples of a sound at another rate, by the spectrum of each segment, cut off or extended with zeros."""
    import numpy as np

    n_segment, n_margin = _SEGMENT_S * reader.rate, _MARGIN_S * reader.rate
    # The margin before a segment, the segment, and the margin after it. There is silence before and after the sound.
    window = np.zeros(n_margin + n_segment + n_margin, np.float32)
    # How many samples at the start of the window are there already: first silence, later the end of the window before.
    n_kept = n_margin
    segments: list[Any] = []
    while len(segments) * n_segment < reader.n_read or not segments:
        new = reader.read(len(window) - n_kept)
        window[n_kept : n_kept + len(new)] = new
        window[n_kept + len(new) :] = 0
        n_resampled = len(window) // reader.rate * rate
        resampled = np.fft.irfft(np.fft.rfft(window), n_resampled) * (rate / reader.rate)
        segments.append(resampled[_MARGIN_S * rate : -_MARGIN_S * rate].astype(np.float32))
        n_kept = 2 * n_margin
        window[:n_kept] = window[n_segment:]
    return np.concatenate(segments)[: max(round(reader.n_read * rate / reader.rate), 1)]
