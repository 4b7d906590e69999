"""POST /tokenize and /detokenize: parses the requests, and encodes the responses, in llama.cpp's format.

/apply-template has the request of chat completions (chat.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.fields import Fields, first_given
from ..core.params import is_token
from ..core.request import DEFAULT_OPTIONS, ParseOptions


@dataclass(frozen=True)
class TokenizeRequest:
    """A text to tokenize."""

    model: str
    text: str
    adds_special: bool  # Add the model's BOS.
    parses_special: bool  # Parse the texts of control tokens as control tokens.
    with_pieces: bool  # Return the text of each token, too.


@dataclass(frozen=True)
class DetokenizeRequest:
    """Tokens to convert to text."""

    model: str
    tokens: tuple[int, ...]


def parse_tokenize(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> TokenizeRequest:
    """The request in a body. `prompt` and `text` are other servers' names for `content`."""
    text = first_given([body.text(name) for name in ("content", "prompt", "text")])
    if text is None:
        body.refuse("content", "a string")
    return TokenizeRequest(
        model=body.text("model") or "",
        text=text,
        adds_special=first_given([body.boolean("add_special"), body.boolean("add_special_tokens")]) or False,
        parses_special=body.boolean("parse_special") is not False,
        with_pieces=body.boolean("with_pieces") or False,
    )


def tokens_body(tokens: Sequence[int], request: TokenizeRequest, piece: Callable[[int], bytes]) -> dict[str, Any]:
    if request.with_pieces:
        return {"tokens": [{"id": token, "piece": _text_or_bytes(piece(token))} for token in tokens]}
    return {"tokens": list(tokens)}


def parse_detokenize(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> DetokenizeRequest:
    """The request in a body."""
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(map(is_token, tokens)):
        body.refuse("tokens", "a list of token ids")
    return DetokenizeRequest(body.text("model") or "", tuple(tokens))


def text_body(pieces: Sequence[bytes]) -> dict[str, Any]:
    """The text of the pieces. Bytes that are not valid UTF-8 become U+FFFD."""
    return {"content": b"".join(pieces).decode("utf-8", "replace")}


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
