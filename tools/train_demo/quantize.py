"""Matrices in llama.cpp's small number formats, by llama.cpp itself: the `gguf` package can only read some of them."""

from __future__ import annotations

import ctypes

import gguf
import numpy as np
from llama_cpp._ggml import libggml

_quantize_chunk = libggml.ggml_quantize_chunk
_quantize_chunk.restype = ctypes.c_size_t
_quantize_chunk.argtypes = (
    ctypes.c_int,  # type
    ctypes.c_void_p,  # from
    ctypes.c_void_p,  # to
    *(ctypes.c_int64,) * 3,  # first value, rows, values in a row
    ctypes.c_void_p,  # how much each column matters, or null
)


def best_type(columns: int) -> gguf.GGMLQuantizationType:
    """The type in which most weights fit a small file: 6.6 bits each, or 6 where rows are no whole blocks of those.

    Rounding to the first is off by 2 % of the weights' size, to the second by 4 %.
    """
    six_bits = gguf.GGMLQuantizationType.Q6_K
    block, _ = gguf.GGML_QUANT_SIZES[six_bits]
    return gguf.GGMLQuantizationType.Q5_1 if columns % block else six_bits


def quantize(matrix: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The bytes [rows, bytes per row] of a matrix [rows, columns] of float32.

    Raises:
        ValueError: a row is not a whole number of the type's blocks.
    """
    rows, columns = matrix.shape
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if columns % block:
        raise ValueError(f"{kind.name} has blocks of {block} values; rows of {columns} are not a multiple of that")
    matrix = np.ascontiguousarray(matrix, np.float32)
    data = np.empty((rows, columns // block * block_bytes), np.uint8)
    _quantize_chunk(int(kind), matrix.ctypes.data, data.ctypes.data, 0, rows, columns, None)
    return data
