"""Detects the format of a file that is not a GGUF model: a Git LFS pointer, an HTML page, weights in another format.

A download often saves one of these under the name of the model.
"""

from __future__ import annotations

import re

# The number of bytes at the start of a file that `kind_of` needs.
N_BYTES_READ = 512

_BY_START: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a ZIP archive, perhaps weights of PyTorch: convert the model to GGUF, or unpack it"),
    (b"\x80\x02", "a Python pickle, perhaps weights of PyTorch: convert the model to GGUF"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it first"),
    (b"lmgg", "a model in the format GGML, which GGUF has replaced: download it as GGUF"),
    (b"tjgg", "a model in the format GGJT, which GGUF has replaced: download it as GGUF"),
)


def kind_of(start: bytes) -> str:
    """The kind of a file with these first bytes, and advice for the user; "" if the kind is unknown."""
    if not start:
        return "an empty file: download it again"
    if start.startswith(b"version https://git-lfs"):
        size = re.search(rb"\nsize (\d+)", start)
        of = f" to a file of {int(size[1])} bytes" if size else ""
        return f"a Git LFS pointer{of}, not the model: run `git lfs pull` in its folder"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        return "an HTML page, not a model: open the link in a browser, and download the file from there"
    if text.startswith((b'{"error', b'{"message', b"invalid username", b"access denied", b"not found", b"entry not f")):
        return f"the error of a download, not a model: {text[:80].decode('utf-8', 'replace').splitlines()[0]}"
    if start[8:10] == b'{"':  # A length of 64 bits, then a JSON object.
        return "weights in the format safetensors: convert the model to GGUF, or download it as GGUF"
    return next((kind for beginning, kind in _BY_START if start.startswith(beginning)), "")
