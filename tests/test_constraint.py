"""The trigger of a lazy grammar, with the text divided into pieces in every way."""

from __future__ import annotations

import pytest

from localchat.serving.engine.constraint import TriggerWatch


def found(triggers: tuple[str, ...], pieces: list[bytes]) -> bytes | None:
    """The text from the trigger on; None if there is no trigger."""
    watch = TriggerWatch(triggers)
    for i, piece in enumerate(pieces):
        start = watch.feed(piece)
        if start is not None:
            return start + b"".join(pieces[i + 1 :])
    return None


@pytest.mark.parametrize(
    ("triggers", "text", "expected"),
    [
        (("<call>",), b"hi <call>{}", b"<call>{}"),
        (("<call>",), b"<call>", b"<call>"),
        (("<call>",), b"hi <cal", None),
        (("<a>", "<b>"), b"x<b>y<a>", b"<b>y<a>"),
        (("x",), b"abx", b"x"),
        (("\u00e9nd",), "caf\u00e9 \u00e9nd!".encode(), "\u00e9nd!".encode()),
        (("<<a",), b"<<<a", b"<<a"),
    ],
    ids=["middle", "whole", "cut", "first of two", "one byte", "not ascii", "repeated start"],
)
def test_trigger_is_found_at_every_cut(triggers: tuple[str, ...], text: bytes, expected: bytes | None):
    for cut in range(len(text) + 1):
        assert found(triggers, [text[:cut], text[cut:]]) == expected
    assert found(triggers, [text[i : i + 1] for i in range(len(text))]) == expected


def test_empty_trigger_is_refused():
    with pytest.raises(ValueError, match="empty trigger"):
        TriggerWatch(("a", ""))
