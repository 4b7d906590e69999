"""Tokenization of long texts in blocks: the same tokens, in linear time, and no more tokens than the limit."""

import ctypes
import random
import re
from pathlib import Path

import gguf
import pytest

from localchat.serving.core.errors import ContextLengthExceeded
from localchat.serving.core.text import pattern_of
from localchat.serving.engine.llama import text_blocks, vocabulary
from localchat.serving.engine.llama.embed import pair_tokenizer
from localchat.serving.engine.llama.text_blocks import TextBlocks
from localchat.serving.engine.llama.vocabulary import Vocabulary
from localchat.serving.models.model_file import DEMO_PATH
from tests.support.demo_model import read_vocabulary
from tests.support.tiny_models import write_bert, write_sentencepiece

TEXTS = ["<think>", "</think>", "<|im_end|>", "[CALL]", "<s>", "<unk>", " ", "\n", "é", "a b", "<thi", "nk>", "\ud800"]


@pytest.fixture(scope="module", params=["BPE", "SentencePiece", "word pieces"])
def any_vocabulary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = tmp_path_factory.mktemp("vocabulary") / "model.gguf"
    if request.param == "BPE":
        path = Path(DEMO_PATH)
    elif request.param == "SentencePiece":
        write_sentencepiece(path)
    else:
        write_bert(path, gguf.PoolingType.MEAN)
    return read_vocabulary(str(path))


@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize("add_bos", [True, False])
def test_text_in_blocks_has_the_tokens_of_the_whole(any_vocabulary, add_bos, parse_special, monkeypatch):
    chance = random.Random(1)
    for i in range(60):
        text = "".join(chance.choice(TEXTS) for _ in range(chance.randrange(40)))
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 100_000)
        whole = any_vocabulary.tokenize(text, add_bos=add_bos, parse_special=parse_special)
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1 + i % 7)
        monkeypatch.setattr(text_blocks, "_WINDOW", 1 + i % 5)
        assert any_vocabulary.tokenize(text, add_bos=add_bos, parse_special=parse_special) == whole, text


@pytest.mark.parametrize("n_row_bytes", [3, 64])
def test_pieces_of_any_length_are_read(any_vocabulary: Vocabulary, n_row_bytes: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vocabulary, "_ROW_BYTES", n_row_bytes)
    pieces = any_vocabulary._read_pieces()
    buffer = ctypes.create_string_buffer(256)
    for id, piece in enumerate(pieces):
        n = vocabulary.L.llama_token_to_piece(any_vocabulary.pointer, id, buffer, 256, 0, True)
        assert piece == buffer.raw[:n]
    assert max(map(len, pieces)) > 3


@pytest.mark.parametrize(
    ("texts", "uncut", "data", "cuts"),
    [
        pytest.param([b"<a>"], [], b"<a>x<a><a>", [b"<a>x", b"<a>", b"<a>"], id="cut before each"),
        pytest.param([b"<a>", b"xyz<a", b"[c]"], [], b"-xyz<a>[c]", [b"-xyz<a>", b"[c]"], id="overlapped before"),
        pytest.param([b"<a>", b"a>xyz", b"[c]"], [], b"-<a>xyz[c]", [b"-<a>xyz", b"[c]"], id="overlapped after"),
        pytest.param([b"\n", b"\n\n"], [], b"\n\n\n\n", [b"\n\n\n\n"], id="no cut in a run"),
        pytest.param([b"<a>", b"<b>"], [b"<a>"], b"x <a>x<b>", [b"x <a>x", b"<b>"], id="white space is stripped"),
        pytest.param([], [], b"x<a>", [b"x<a>"], id="no special tokens"),
    ],
)
def test_cuts(texts: list[bytes], uncut: list[bytes], data: bytes, cuts: list[bytes], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1)
    assert list(TextBlocks(texts, uncut).split(data)) == cuts


@pytest.mark.parametrize("text", ["<think>", "a<think>"])
def test_many_special_tokens_are_tokenized_in_blocks_until_the_limit(text: str, monkeypatch: pytest.MonkeyPatch):
    demo = read_vocabulary()
    n_bytes = []
    real = vocabulary.L.llama_tokenize
    monkeypatch.setattr(vocabulary.L, "llama_tokenize", lambda *call: n_bytes.append(call[2]) or real(*call))
    with pytest.raises(ContextLengthExceeded, match=r"at least \d+ tokens, the limit is 2000"):
        demo.tokenize(text * 4000, limit=2000)
    assert max(n_bytes) < 1.1 * text_blocks.BLOCK_BYTES
    assert sum(n_bytes) < 2500 * len(text)


def test_pair_of_more_than_two_million_tokens_is_refused_with_both_numbers(tmp_path: Path):
    write_bert(tmp_path / "model.gguf", gguf.PoolingType.RANK)
    with pytest.raises(ContextLengthExceeded, match="at least 2100000 tokens, the limit is 2000000"):
        pair_tokenizer(read_vocabulary(str(tmp_path / "model.gguf")), "a", "", 100)("a " * 2_100_000)


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [""],
        ["a"],
        ["<a>", "<b>", "<ab>", "x", "<"],
        ["\n" * n for n in range(1, 60)],
        ["a.b", "a+", "(", "\\", "é", "|"],
        [f"<unused{i}>" for i in range(40)],
    ],
)
def test_pattern_of_texts_matches_like_an_alternation_of_the_longest_first(texts: list[str]):
    plain = re.compile("|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))) or "(?!)")
    joined, chance = re.compile(pattern_of(texts)), random.Random(2)
    for _ in range(50):
        text = "".join(chance.choice([*texts, "<", "a", "\n", ">", "<unused1"]) for _ in range(20))
        assert joined.findall(text) == plain.findall(text)
