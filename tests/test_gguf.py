"""The parser of GGUF headers."""

import struct

import pytest

from localchat.serving.models.gguf import MAX_DECODED_ARRAY, GGUFError, SkippedArray, read_header

CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4850\n"


class Writer:
    """Writes GGUF values in one byte order."""

    def __init__(self, order="<"):
        self.order = order

    def number(self, code, value):
        return struct.pack(self.order + code, value)

    def string(self, text):
        data = text.encode()
        return self.number("Q", len(data)) + data

    def value(self, kind, value):
        if kind == STRING:
            return self.string(value)
        if kind == ARRAY:
            inner, items = value
            body = b"".join(self.value(inner, item) for item in items)
            return self.number("I", inner) + self.number("Q", len(items)) + body
        return self.number(CODES[kind], value)

    def tensor(self, name, shape, kind, offset):
        dims = b"".join(self.number("Q", length) for length in shape)
        end = self.number("I", kind) + self.number("Q", offset)
        return self.string(name) + self.number("I", len(shape)) + dims + end

    def file(self, metadata=(), tensors=(), data=b"", version=3):
        counts = self.number("Q", len(tensors)) + self.number("Q", len(metadata))
        head = b"GGUF" + self.number("I", version) + counts
        for key, kind, value in metadata:
            head += self.string(key) + self.number("I", kind) + self.value(kind, value)
        head += b"".join(self.tensor(*tensor) for tensor in tensors)
        return head + b"\0" * (-len(head) % 32 if data else 0) + data


METADATA = [
    ("general.architecture", STRING, "llama"),
    ("llama.context_length", 4, 4096),
    ("tokenizer.chat_template", STRING, "{{ é }}"),
    ("a.byte", 0, 255),
    ("a.negative", 5, -7),
    ("a.float", 6, 0.5),
    ("a.double", 12, 0.1),
    ("a.bool", 7, True),
    ("a.long", 11, -(2**40)),
    ("a.list", ARRAY, (4, [1, 2, 3])),
    ("a.texts", ARRAY, (STRING, ["x", ""])),
    ("a.lists", ARRAY, (ARRAY, [(4, [1]), (STRING, ["y"])])),
    ("long.texts", ARRAY, (STRING, ["ab"] * (MAX_DECODED_ARRAY + 1))),
    ("long.numbers", ARRAY, (6, [1.0] * 1000)),
    ("long.lists", ARRAY, (ARRAY, [(4, [1])] * (MAX_DECODED_ARRAY + 1))),
    ("a.last", STRING, "end"),
]


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "model.gguf"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
@pytest.mark.parametrize("version", [2, 3])
def test_metadata_is_parsed(write, order, version):
    header = read_header(write(Writer(order).file(METADATA, version=version)))
    assert header.version == version
    assert header.metadata == {
        "general.architecture": "llama",
        "llama.context_length": 4096,
        "tokenizer.chat_template": "{{ é }}",
        "a.byte": 255,
        "a.negative": -7,
        "a.float": 0.5,
        "a.double": 0.1,
        "a.bool": True,
        "a.long": -(2**40),
        "a.list": (1, 2, 3),
        "a.texts": ("x", ""),
        "a.lists": ((1,), ("y",)),
        "long.texts": SkippedArray(MAX_DECODED_ARRAY + 1),
        "long.numbers": SkippedArray(1000),
        "long.lists": SkippedArray(MAX_DECODED_ARRAY + 1),
        "a.last": "end",
    }


def test_header_of_a_file_without_metadata(write):
    assert read_header(write(Writer().file())).metadata == {}


# Two values of 4 bytes at offset 0, and one block of 32 values in 34 bytes at offset 32.
TENSORS = [("a", (2,), 0, 0), ("b", (32, 1), 8, 32)]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(b"x" * 66, None, id="exact"),
        pytest.param(b"x" * 100, None, id="longer"),
        pytest.param(b"x" * 65, "the file has 225 bytes, its tensors need 226: it was cut", id="one byte short"),
    ],
)
def test_file_must_contain_its_tensor_data(write, data, error):
    path = write(Writer().file([("general.alignment", 4, 32)], TENSORS, data))
    if error is None:
        assert read_header(path).n_tensors == 2
    else:
        with pytest.raises(GGUFError, match=error):
            read_header(path)


def test_tensor_of_an_unknown_type_is_checked_by_its_start(write):
    assert read_header(write(Writer().file((), [("a", (1000,), 999, 4)], b"x" * 4))).n_tensors == 1


def test_header_cut_anywhere_is_truncated(write):
    whole = Writer().file(METADATA[:4] + METADATA[9:13], TENSORS)
    for size in range(4, len(whole), 7):
        with pytest.raises(
            GGUFError, match=rf"model\.gguf: the file has {size} bytes, its header needs at least \d+: it was cut"
        ):
            read_header(write(whole[:size]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"ELF\x01", "not a GGUF file: it starts with b'ELF.x01', expected b'GGUF'", id="other format"),
        pytest.param(b"", "an empty file", id="empty"),
        pytest.param(b"PK\x03\x04rest", "a ZIP archive.*PyTorch", id="ZIP"),
        pytest.param(LFS_POINTER, "a Git LFS pointer to a file of 4850 bytes.*git lfs pull", id="LFS pointer"),
        pytest.param(b"\r\n<!DOCTYPE html><html>", "an HTML page, not a model.*browser", id="HTML page"),
        pytest.param(b'{"error": "no access"}\n', 'a download, not a model: {"error": "no access"}', id="error"),
        pytest.param(b'\x10\0\0\0\0\0\0\0{"a":', "the format safetensors", id="safetensors"),
        pytest.param(b"tjgg\x03", "the format GGJT", id="before GGUF"),
        pytest.param(Writer().file(version=1), "GGUF version 1, expected 2 or 3", id="old version"),
        pytest.param(Writer(">").file(version=4), "GGUF version 4", id="newer version, big-endian"),
        pytest.param(Writer().file()[:16] + struct.pack("<Q", 2**60), "header needs at least", id="huge count"),
        pytest.param(Writer().file([("k", STRING, "")])[:-8] + struct.pack("<Q", 2**63), "needs", id="huge length"),
        pytest.param(
            Writer().file([("k", 4, 0)])[:-8] + struct.pack("<II", 77, 0),
            "unknown type 77",
            id="unknown type",
        ),
        pytest.param(
            Writer().file([("k", ARRAY, (ARRAY, [(ARRAY, [(ARRAY, [(ARRAY, [(4, [1])])])])]))]),
            "unknown type 9",
            id="too deep",
        ),
        pytest.param(
            Writer()
            .file([("k", ARRAY, (STRING, ["zzz"] * 300))])
            .replace(struct.pack("<Q", 3) + b"zzz", struct.pack("<Q", 2**63 - 20) + b"zzz", 1),
            "needs at least",
            id="text longer than any file",
        ),
    ],
)
def test_error_of_a_bad_file_names_the_file_and_the_defect(write, data, message):
    with pytest.raises(GGUFError, match=rf"model\.gguf: .*{message}"):
        read_header(write(data))


def test_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "none.gguf")
