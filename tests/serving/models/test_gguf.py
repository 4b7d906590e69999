"""The parser of GGUF headers."""

import os
import struct

import pytest

from localchat.serving.models.gguf import GGUFError, read_header, read_start

CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4850\n"


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, item):
    if kind == STRING:
        return string(item)
    if kind == ARRAY:
        inner, items = item
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack("<" + CODES[kind], item)


def tensor(name, shape, kind, offset):
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file_of(metadata=(), tensors=(), data=b"", version=3):
    """A GGUF file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(string(key) + struct.pack("<I", kind) + value(kind, item) for key, kind, item in metadata)
    head += b"".join(tensor(*given) for given in tensors)
    return head + b"\0" * (-len(head) % 32 if data else 0) + data


METADATA = [
    ("general.architecture", STRING, "llama"), ("llama.context_length", 4, 4096),
    ("tokenizer.chat_template", STRING, "{{ é }}"), ("a.byte", 0, 255), ("a.negative", 5, -7), ("a.float", 6, 0.5),
    ("a.double", 12, 0.1), ("a.bool", 7, True), ("a.long", 11, -(2**40)), ("a.list", ARRAY, (4, [1, 2, 3])),
    ("a.texts", ARRAY, (STRING, ["ab", ""] * 1000)), ("a.last", STRING, "end"),
]  # fmt: skip


@pytest.fixture
def header_of(tmp_path):
    """Writes a file, and reads its header."""

    def read(data):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return read_header(path)

    return read


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_is_parsed_without_its_arrays(header_of, version):
    expected = {key: None if kind == ARRAY else item for key, kind, item in METADATA}
    assert header_of(file_of(METADATA, version=version)) == expected


TENSORS = [("a", (2,), 0, 0), ("b", (32, 1), 8, 32)]


def test_file_cut_anywhere_before_its_last_tensor_is_refused(header_of):
    """The data of the second tensor begins 32 bytes after that of the first one."""
    whole = file_of(METADATA[:4] + METADATA[9:13], TENSORS, b"x" * 33)
    assert header_of(whole)
    n_header = len(file_of(METADATA[:4] + METADATA[9:13], TENSORS))
    for size in (*range(4, 300, 7), *range(300, n_header, 499), n_header, n_header + 32):
        message = rf"model\.gguf: the file has {size} bytes, and needs at least \d+: it was cut"
        with pytest.raises(GGUFError, match=message):
            header_of(whole[:size])


NESTED = (ARRAY, [(ARRAY, [(ARRAY, [(ARRAY, [(4, [1])])])])])
LONG_TEXT = file_of([("k", ARRAY, (STRING, ["zzz"] * 300))]).replace(string("zzz"), struct.pack("<Q", 2**63 - 20), 1)
BAD = {
    "other format": (
        b"ELF\x01",
        "not a GGUF file: it starts with b'ELF.x01', expected b'GGUF'; download it as GGUF",
    ),
    "empty": (b"", "an empty file"),
    "ZIP": (b"PK\x03\x04rest", "weights in another format: convert"),
    "LFS pointer": (LFS_POINTER, "a Git LFS pointer.*git lfs pull"),
    "HTML page": (b"\r\n<!DOCTYPE html><html>", "an HTML page.*browser"),
    "error": (b'{"error": "no access"}\n', "the error of a download"),
    "safetensors": (b'\x10\0\0\0\0\0\0\0{"a":', "weights in another format"),
    "old version": (file_of(version=1), "GGUF version 1, expected 2 or 3"),
    "huge count": (file_of()[:16] + struct.pack("<Q", 2**60), "needs at least"),
    "huge length": (file_of([("k", STRING, "")])[:-8] + struct.pack("<Q", 2**63), "needs"),
    "unknown type": (file_of([("k", 4, 0)])[:-8] + struct.pack("<II", 77, 0), "unknown type 77.*: the file is damaged"),
    "nested arrays": (file_of([("k", ARRAY, NESTED)]), "unknown type 9"),
    "text longer than any file": (LONG_TEXT, "needs at least"),
}


@pytest.mark.parametrize(("data", "message"), BAD.values(), ids=BAD)
def test_error_of_a_bad_file_names_the_file_and_the_defect(header_of, data, message):
    with pytest.raises(GGUFError, match=rf"model\.gguf: .*{message}"):
        header_of(data)


def counts(n_tensors, n_values):
    return struct.pack("<IQQ", 3, n_tensors, n_values)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (counts(1 << 20, 0), "1048576 tensors and 0 values, the limit is 65536 of each"),
        (counts(0, 1 << 20), "0 tensors and 1048576 values"),
        (counts(0, 1) + string("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 23), "8388608 texts"),
        (counts(0, 1) + string("k") + struct.pack("<IQ", STRING, 1 << 30), "header of 1073741869 bytes"),
        (counts(1, 0) + string("t") + struct.pack("<I", 1 << 31), "the limit is 134217728"),
    ],
    ids=["tensors", "values", "texts", "text", "shape"],
)
def test_work_that_a_header_asks_for_is_limited_before_it_is_done(tmp_path, head, message):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + head)
    os.truncate(path, 1 << 36)  # The file takes no place on the disk.
    with pytest.raises(GGUFError, match=message):
        read_header(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipe_is_refused_without_waiting_for_its_other_end(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")
    for read in (read_header, read_start):
        with pytest.raises(GGUFError, match="not a regular file"):
            read(tmp_path / "model.gguf")
