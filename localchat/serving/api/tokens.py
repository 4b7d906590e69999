"""POST /tokenize and /detokenize, of llama.cpp: parses JSON bodies, and encodes tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.fields import Fields, first_given
from ..core.params import is_token


@dataclass(frozen=True)
class TokenizeRequest:
    model: str
    content: str
    add_special: bool  # Add the model's BOS.
    parse_special: bool  # Parse the texts of control tokens as control tokens.
    with_pieces: bool  # Return the text of each token, too.


@dataclass(frozen=True)
class DetokenizeRequest:
    model: str
    tokens: tuple[int, ...]


def parse_tokenize(body: Fields) -> TokenizeRequest:
    """The request in a body. `prompt` and `text` are other servers' names for `content`."""
    content = first_given([body.text(name) for name in ("content", "prompt", "text")])
    return TokenizeRequest(
        model=body.text("model") or "",
        content=body.required_text("content") if content is None else content,
        add_special=first_given([body.boolean("add_special"), body.boolean("add_special_tokens")]) or False,
        parse_special=body.boolean("parse_special") is not False,
        with_pieces=body.boolean("with_pieces") or False,
    )


def tokens_body(tokens: Sequence[int], request: TokenizeRequest, piece: Callable[[int], bytes]) -> dict[str, Any]:
    with_pieces = ({"id": token, "piece": _text_or_bytes(piece(token))} for token in tokens)
    return {"tokens": list(with_pieces if request.with_pieces else tokens)}


def parse_detokenize(body: Fields) -> DetokenizeRequest:
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(map(is_token, tokens)):
        body.refuse("tokens", "a list of token ids")
    return DetokenizeRequest(body.text("model") or "", tuple(tokens))


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
