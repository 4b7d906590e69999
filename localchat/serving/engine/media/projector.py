"""A projector: libmtmd through llama-cpp-python's bindings.

It turns an image or a sound into tokens and chunks, and a chunk into rows that the text model computes in place of the
vectors of tokens. A chunk of libmtmd (`mtmd_input_chunk`) becomes a `MediaChunk`, or tokens if it has text.

libmtmd gets pixels and samples (decoding.py), and never a file: its decoders end the process for some files, and start
ffmpeg for others.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...core.errors import BadRequest
from ...core.media import MediaFile
from ..llama.library import L, LlamaModel, last_errors, mtmd
from ..sequence import MediaChunk, SectionPositions
from ..values import EngineError
from .decoding import Decoded, Pixels, decode

# Placeholders of these sizes show the largest number of cells of an image: large ones, wide and high ones, and one of
# the usual size, since some projectors scale all images to it, and others divide large ones into more tiles.
_SIZES = ((4096, 4096), (16384, 1024), (1024, 16384), (448, 448))
# The side of the image that is encoded as a trial.
_TRIAL_SIDE = 64


class LlamaProjector:
    """A loaded projector."""

    def __init__(self, path: str, model: LlamaModel, *, n_threads: int, use_gpu: bool) -> None:
        """Raises EngineError if the file is no projector for this model, or cannot encode an image and a sound."""
        if not os.path.isfile(path):
            raise EngineError(f"there is no projector {path!r}: check --mmproj")
        library = self._library = mtmd()
        self._model = model  # The context needs it.
        params = library.mtmd_context_params_default()
        params.use_gpu, params.n_threads = use_gpu, n_threads
        params.print_timings = params.warmup = False
        self._context = library.mtmd_init_from_file(os.fsencode(path), model.pointer, params)
        if self._context is None:
            raise _unfit(path, last_errors())
        has = {"image": library.mtmd_support_vision(self._context), "audio": library.mtmd_support_audio(self._context)}
        self.modalities = tuple(name for name, is_supported in has.items() if is_supported)
        self._is_mrope = bool(library.mtmd_decode_use_mrope(self._context))
        self._width: int = L.llama_model_n_embd_inp(model.pointer)
        # The samples of a second of sound that the model hears.
        self._sample_rate: int = library.mtmd_get_audio_sample_rate(self._context) if has["audio"] else 0
        self.is_encoding = False  # Whether `encode` runs.
        self._max_pass = 1 << 30  # The limit of cells of a chunk that one pass computes.
        # On a thread that ends, since OpenMP keeps a team of threads for each thread that has computed.
        with ThreadPoolExecutor(1) as thread:
            error = thread.submit(self._try, path).exception()
        if error is not None:
            self.close()
            raise error

    def close(self) -> None:
        self._library.mtmd_free(self._context)

    def limit_pass(self, n_cells: int) -> None:
        """Refuse images that one pass must compute if they have more cells than this, the limit of the context."""
        self._max_pass = n_cells

    @property
    def max_cells_in_one_pass(self) -> int:
        """The most cells of an image that are computed in one pass; 0 if all may be computed in parts."""
        if "image" not in self.modalities or not self._library.mtmd_decode_use_non_causal(self._context, None):
            return 0
        most = 0
        for width, height in _SIZES:
            with self._tokenized(self._library.mtmd_bitmap_init(width, height, None)) as pairs:
                most = max([most, *(item.n_cells for item, _ in pairs if isinstance(item, MediaChunk))])
        return most

    def prompt_items(self, file: MediaFile) -> list[int | MediaChunk]:
        """What stands for an image or a sound in a prompt. Any thread.

        These are tokens that the model wants around it, and its chunks, which are not encoded.

        Raises:
            BadRequest: The file cannot be decoded, or takes more tokens than one pass computes.
            NotSupported: The library that decodes it is not installed.
        """
        with self._tokenized(self._bitmap(decode(file, self._sample_rate), without_content=True)) as pairs:
            items = [item for item, _ in pairs]
        for item in items:
            if isinstance(item, MediaChunk) and not item.is_causal and item.n_cells > self._max_pass:
                raise BadRequest(
                    f"{file.kind} takes {item.n_cells} tokens, the limit of this server is {self._max_pass}"
                )
        return items

    def encode(self, file: MediaFile) -> list[Any]:
        """The rows of each chunk, in a buffer. Runs on one thread."""
        self.is_encoding = True
        try:
            with self._tokenized(self._bitmap(decode(file, self._sample_rate))) as pairs:
                return [self._rows(item, mtmd_chunk) for item, mtmd_chunk in pairs if isinstance(item, MediaChunk)]
        finally:
            self.is_encoding = False

    def _bitmap(self, decoded: Decoded, without_content: bool = False) -> Any:
        """libmtmd's copy of an image or a sound; without its content it has the size alone, for counting."""
        library, data = self._library, ctypes.c_char_p(decoded.data)
        if isinstance(decoded, Pixels):
            pixels = None if without_content else ctypes.cast(data, ctypes.POINTER(ctypes.c_uint8))
            return library.mtmd_bitmap_init(decoded.width, decoded.height, pixels)
        samples = None if without_content else ctypes.cast(data, ctypes.POINTER(ctypes.c_float))
        return library.mtmd_bitmap_init_from_audio(decoded.count, samples)

    @contextlib.contextmanager
    def _tokenized(self, bitmap: Any) -> Iterator[list[tuple[int | MediaChunk, Any]]]:
        """The tokens and chunks of a bitmap, each with the chunk of libmtmd that it is of, for the `with` block.

        Frees the bitmap and the chunks of libmtmd.
        """
        library = self._library
        mtmd_chunks = library.mtmd_input_chunks_init()
        try:
            part = library.mtmd_input_part(text=None, bitmap=bitmap)
            parts = (ctypes.POINTER(library.mtmd_input_part) * 1)(ctypes.pointer(part))
            if library.mtmd_tokenize_from_parts(self._context, mtmd_chunks, parts, 1, False):
                raise BadRequest(f"the model cannot take it: {last_errors()}")
            indexes = range(library.mtmd_input_chunks_size(mtmd_chunks))
            pointers = [library.mtmd_input_chunks_get(mtmd_chunks, i) for i in indexes]
            yield [(item, mtmd_chunk) for mtmd_chunk in pointers for item in self._items_of(mtmd_chunk)]
        finally:
            library.mtmd_input_chunks_free(mtmd_chunks)
            library.mtmd_bitmap_free(bitmap)

    def _items_of(self, mtmd_chunk: Any) -> Sequence[int | MediaChunk]:
        """The tokens of a chunk of text, or the one chunk of media."""
        library = self._library
        if library.mtmd_input_chunk_get_type(mtmd_chunk) == library.MTMD_INPUT_CHUNK_TYPE_TEXT:
            n = ctypes.c_size_t()
            tokens: Sequence[int] = library.mtmd_input_chunk_get_tokens_text(mtmd_chunk, ctypes.byref(n))
            return tokens[: n.value]
        n_cells = library.mtmd_input_chunk_get_n_tokens(mtmd_chunk)
        n_positions = library.mtmd_input_chunk_get_n_pos(mtmd_chunk)
        is_causal = not library.mtmd_decode_use_non_causal(self._context, mtmd_chunk)
        return [MediaChunk(n_cells, n_positions, is_causal, self._section_positions(mtmd_chunk, n_cells))]

    def _section_positions(self, mtmd_chunk: Any, n_cells: int) -> SectionPositions | None:
        """See `MediaChunk.positions`."""
        if not self._is_mrope:
            return None
        image = self._library.mtmd_input_chunk_get_tokens_image(mtmd_chunk)
        if image is None:  # Sound has one position for all sections.
            return SectionPositions(array("i", range(n_cells)) * 4, array("i", [1]) * (4 * n_cells))
        at_starts = []
        for start in (0, 1):
            positions = (self._library.mtmd_decoder_pos * n_cells)()
            self._library.mtmd_helper_image_get_decoder_pos(image, start, positions)
            at_starts.append(array("i", (getattr(at, name) for name in "tyxz" for at in positions)))
        return SectionPositions(at_starts[0], array("i", map(operator.sub, at_starts[1], at_starts[0])))

    def _rows(self, chunk: MediaChunk, mtmd_chunk: Any) -> Any:
        """Encode a chunk: its rows, in a buffer."""
        code = self._library.mtmd_encode_chunk(self._context, mtmd_chunk)
        if code != 0:
            raise EngineError(f"libmtmd could not encode it (code {code}): {last_errors()}")
        rows = (ctypes.c_float * self._width * chunk.n_cells)()
        vectors = self._library.mtmd_get_output_embd(self._context)  # valid until the next call
        ctypes.memmove(rows, vectors, ctypes.sizeof(rows))
        return rows

    def _try(self, path: str) -> None:
        """Encode an image and a sound: a projector that does not fit the model can end the process at the first one."""
        library, trials = self._library, []
        if "image" in self.modalities:
            trials.append(library.mtmd_bitmap_init(_TRIAL_SIDE, _TRIAL_SIDE, (ctypes.c_uint8 * (3 * _TRIAL_SIDE**2))()))
        if "audio" in self.modalities:
            second = (ctypes.c_float * self._sample_rate)()
            trials.append(library.mtmd_bitmap_init_from_audio(self._sample_rate, second))
        for bitmap in trials:
            try:
                with self._tokenized(bitmap) as pairs:
                    for item, mtmd_chunk in pairs:
                        if isinstance(item, MediaChunk):
                            self._rows(item, mtmd_chunk)
                        elif item < 0:
                            raise EngineError("its special tokens are not in the vocabulary of the model")
            except (BadRequest, EngineError) as error:
                raise _unfit(path, error.message) from error


def _unfit(path: str, reason: str) -> EngineError:
    return EngineError(f"{path!r} is no projector for this model: {reason}; --no-mmproj loads the model alone")
