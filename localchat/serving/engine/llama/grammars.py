"""Grammars: which tokens the grammar of a request allows next. llguidance follows the grammar.

The grammar constrains the visible text, so a control token is allowed only if it ends the text or is visible.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..values import Constraint, EngineError, invalid_grammar

if TYPE_CHECKING:
    from .vocabulary import Vocabulary

log = logging.getLogger("localchat.server")

# The limit of compiled grammars that are kept: the choices and later requests with the same grammar share them.
_MAX_GRAMMARS = 32
# Why a matcher stopped, in the state that follows the message of an error of llguidance. A malformed grammar has none.
_STOP = re.compile(r"^Stop: (\w+)$", re.MULTILINE)
# The stop reasons of the limits of llguidance.
_TOO_COMPLEX = ("LexerTooComplex", "ParserTooComplex")


class Grammars:
    """Compiles the grammars of requests, and is the tokenizer that llguidance calls. Any thread may use it.

    A request waits in `matcher` while its grammar is compiled: its error comes before the prompt is computed.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # The vocabulary as llguidance reads it. End-of-generation tokens have no text for a grammar.
        self.tokens, self.special_token_ids = vocabulary.all_pieces, sorted(vocabulary.eog_tokens)
        self.eos_token_id = next(iter(self.special_token_ids), None)
        # For each thread: which tokens are visible in the output that it works on.
        self._local = threading.local()
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._compiled = lru_cache(_MAX_GRAMMARS)(self._compile)

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text that a grammar forces, with control tokens for its markers if these are visible.

        llguidance calls this, on a thread that has set `_local.is_visible`.
        """
        is_visible: Any = getattr(self._local, "is_visible", None)
        tokens = [] if is_visible is None else self._vocabulary.tokenize_bytes(text, False, True)
        # The text of an end-of-generation token is text, unless the grammar names the token itself.
        if tokens and is_visible[tokens].all() and not set(tokens).intersection(self.special_token_ids):
            return tokens
        return self._vocabulary.tokenize_bytes(text, False, False)

    def prepare(self) -> None:
        """Read the vocabulary, once. For 152,000 tokens this holds the GIL for two tenths of a second."""
        with self._lock:
            if self._tokenizer is None:
                try:
                    from llguidance import LLTokenizer, TokenizerWrapper
                except ImportError as error:
                    raise EngineError("constraints need llguidance: pip install llguidance (Python 3.10)") from error
                if self.eos_token_id is None:
                    raise EngineError("constraints need a model with an end-of-generation token, and this one has none")
                n_vocab, ends = self._vocabulary.n_tokens, self.special_token_ids
                self._tokenizer = LLTokenizer(TokenizerWrapper(self), n_vocab=n_vocab, eos_token=ends)

    def matcher(self, constraint: Constraint, visible: Iterable[int]) -> Matcher:
        """A matcher at the start of an output, in which the control tokens `visible` belong to the text.

        Raises BadRequest if the grammar is malformed, needs text that the model has no tokens for, or takes too much
        work.
        """
        self.prepare()
        tokens = frozenset(visible)
        is_visible = ~self._vocabulary.is_control
        is_visible[[*tokens, *self.special_token_ids]] = True
        self._local.is_visible = is_visible
        base = self._compiled(constraint, tokens)
        with self._lock:
            copy = base.deep_copy()
        return Matcher(copy, is_visible, self._local, constraint.origin)

    def _compile(self, constraint: Constraint, visible: frozenset[int]) -> Any:
        """The cached matcher of a grammar. It depends on `visible`, which decides the tokens of forced text."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, constraint.grammar, log_level=0)
        matcher.compute_bitmask()  # The first token would wait for it.
        if matcher.is_error():
            raise invalid_grammar(_reason(matcher), constraint.origin)
        return matcher


class Matcher:
    """The position in a grammar while the tokens of one output are sampled.

    One thread at a time. All methods raise BadRequest if the work is too much.
    """

    def __init__(self, matcher: Any, is_visible: Any, local: Any, origin: str) -> None:
        self._matcher = matcher
        self._is_visible = is_visible
        self._local = local
        self._origin = origin
        # The last mask; None: not computed since the last token.
        self._allowed: Any = None

    def accept(self, token: int) -> None:
        """Advance by the token that was sampled."""
        self._allowed = None
        if not self._matcher_on_this_thread().consume_token(token):
            raise invalid_grammar(_reason(self._matcher), self._origin)

    def allowed_tokens(self) -> Any:
        """The tokens that may come next. Raises BadRequest if there are none."""
        tokens = np.flatnonzero(self.mask())
        if not len(tokens):
            raise invalid_grammar("it requires text for which this model has no tokens", self._origin)
        return tokens

    def forced_tokens(self) -> list[int]:
        """The next tokens, as long as the grammar allows no others."""
        tokens: list[int] = self._matcher_on_this_thread().compute_ff_tokens()
        n_visible = next((i for i, token in enumerate(tokens) if not self._is_visible[token]), len(tokens))
        return tokens[:n_visible]

    def mask(self) -> Any:
        """Whether each token may come next [vocabulary]."""
        if self._allowed is None:
            bits = np.frombuffer(self._matcher_on_this_thread().compute_bitmask(), np.uint8)
            if self._matcher.is_error():
                raise invalid_grammar(_reason(self._matcher), self._origin)
            mask = np.unpackbits(bits, bitorder="little", count=len(self._is_visible)).view(bool)
            self._allowed = mask & self._is_visible
        return self._allowed

    def _matcher_on_this_thread(self) -> Any:
        """The matcher, which may now call its tokenizer on this thread: that knows which tokens are visible."""
        self._local.is_visible = self._is_visible
        return self._matcher


def _reason(matcher: Any) -> str:
    """Why a matcher stopped, for the request; the log has the library's own words."""
    error: str = matcher.get_error()
    log.warning("a constraint stopped: %s", ascii(error.split("\n")[0][:300]))
    stop = _STOP.search(error)
    if stop is None:
        return "it cannot be read as a grammar"
    return (
        "following it takes too much work: make it simpler" if stop[1] in _TOO_COMPLEX else "it allows no further token"
    )
