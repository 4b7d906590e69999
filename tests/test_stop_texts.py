"""Token bytes to text: characters and stop texts, with the bytes divided into pieces in every way."""

from __future__ import annotations

import random

import pytest

from localchat.serving.engine.stop_texts import StopTextDecoder


def read(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[str, str | None]:
    """The text of the pieces up to a stop text, and this stop text."""
    decoder, out = StopTextDecoder(stop), []
    for piece in pieces:
        out.append(decoder.feed(piece))
        if decoder.stopped_by is not None:
            break
    else:
        out.append(decoder.finish())
    return "".join(out), decoder.stopped_by


def cuts(data: bytes) -> list[list[bytes]]:
    """The data whole, byte by byte, split in two at every position, and split at random positions."""
    random_ = random.Random(len(data))
    result = [[data], [data[i : i + 1] for i in range(len(data))]]
    result += [[data[:i], data[i:]] for i in range(1, len(data))]
    for _ in range(20):
        places = sorted(random_.choices(range(len(data) + 1), k=4))
        result.append([data[a:b] for a, b in zip([0, *places], [*places, len(data)])])
    return result


CASES = {
    "plain": (b"hello world", (), "hello world", None),
    "characters of 1 to 4 bytes": ("aé€😀z".encode(), (), "aé€😀z", None),
    "invalid byte": (b"a\xffb", (), "a\ufffdb", None),
    "cut character at the end": ("a😀".encode()[:-1], (), "a\ufffd", None),
    "stop in the middle": (b"one STOP two", ("STOP",), "one ", "STOP"),
    "stop at the start": (b"STOP two", ("STOP",), "", "STOP"),
    "stop at the very end": (b"one STOP", ("STOP",), "one ", "STOP"),
    "unfinished stop is text": (b"one STO", ("STOP",), "one STO", None),
    "false start inside a stop": (b"xaab", ("ab",), "xa", "ab"),
    "repeated start": (b"aaaaab!", ("aab",), "aaa", "aab"),
    "non-ASCII stop": ("gut. Schluß jetzt".encode(), ("Schluß",), "gut. ", "Schluß"),
    "first complete stop counts": (b"abcd", ("abcd", "b"), "a", "b"),
    "longer of two that end together": (b"xabc", ("bc", "abc"), "x", "abc"),
    "several stops": (b"q\n\nUser: x", ("User:", "\n\n"), "q", "\n\n"),
    "newline stop": (b"line\nnext", ("\n",), "line", "\n"),
}


@pytest.mark.parametrize(("data", "stop", "text", "stopped_by"), CASES.values(), ids=CASES.keys())
def test_every_cut_gives_the_same_text(data: bytes, stop: tuple[str, ...], text: str, stopped_by: str | None):
    for pieces in cuts(data):
        assert read(pieces, stop) == (text, stopped_by), pieces


def test_text_is_returned_as_soon_as_it_cannot_be_a_stop_text():
    decoder = StopTextDecoder(("<end>",))
    assert [decoder.feed(piece) for piece in (b"a", b"<", b"e", b"x", b"y")] == ["a", "", "", "<ex", "y"]


def test_character_is_returned_with_its_last_byte():
    decoder = StopTextDecoder()
    assert [decoder.feed(bytes([byte])) for byte in "é€".encode()] == ["", "é", "", "", "€"]


def test_nothing_is_returned_after_a_stop_text():
    decoder = StopTextDecoder(("!",))
    assert decoder.feed(b"a!b") == "a"
    assert decoder.feed(b"c") == ""
    assert decoder.finish() == ""


def test_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty stop"):
        StopTextDecoder(("a", ""))


@pytest.mark.parametrize("seed", range(50))
def test_random_texts_match_a_search_in_the_whole_text(seed: int):
    random_ = random.Random(seed)
    text = "".join(random_.choices("ab€", k=30))
    stop = tuple({"".join(random_.choices("ab€", k=random_.randint(1, 4))) for _ in range(2)})
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stop if s in text]
    expected = (text[: min(ends)[1]], min(ends)[2]) if ends else (text, None)
    for pieces in cuts(text.encode()):
        assert read(pieces, stop) == expected
