"""The inputs of requests for vectors: from texts or token ids to vectors.

The methods run on any thread.
"""

from __future__ import annotations

from array import array
from collections import abc

from ..core.errors import BadRequest, ContextLengthExceeded, item_path
from .prompts import COUNTED_TOKENS
from .protocols import Backend
from .values import check_tokens

# Vectors are computed in groups of inputs with so many tokens. Between two groups other requests run.
_GROUP_TOKENS = 4096


class VectorInputs:
    """Tokenizes inputs for a backend, and computes their vectors on it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def embed(
        self,
        inputs: abc.Sequence[str | abc.Sequence[int]],
        *,
        field: str,
        query: str | None = None,
        truncates: bool = False,
        check: abc.Callable[[], None] = lambda: None,
    ) -> tuple[list[array[float]], int]:
        """The vector of each input, not normalised, and the number of their tokens.

        The inputs are texts or token ids; with `query`, the documents that are compared with it. `field` is the field
        of the request that has them, for errors. With `truncates`, an input that is longer than the context is cut.
        `check` is called before each step of the computation, also when the call has waited for another one, and may
        raise an error to end the call. Raises BadRequest for an input that is empty, too long, or has a token that the
        vocabulary does not have.
        """
        if query is None:
            # All inputs are checked before the first one is computed.
            tokenized: abc.Iterable[abc.Sequence[int]] = [
                self._input(inputs, i, field, truncates=truncates) for i in range(len(inputs))
            ]
        else:
            # Pairs are made when they are computed: together they may be as large as the query times the documents.
            tokenized = self._pairs(query, inputs, field)
        vectors: list[array[float]] = []
        n_tokens = 0
        limit: int | None = None  # The context for embeddings, once an input did not fit into it.
        for group in _groups(tokenized):
            cut = group if limit is None else [self._cut(tokens, limit) for tokens in group]
            try:
                vectors += self._backend.embed(cut, check)
            except ContextLengthExceeded as error:
                if not (truncates and error.n_ctx) or limit is not None:
                    i = len(vectors) + next(i for i, tokens in enumerate(cut) if len(tokens) > error.n_ctx)
                    error.param = error.param or item_path(field, inputs, i)
                    raise
                limit = error.n_ctx
                cut = [self._cut(tokens, limit) for tokens in group]
                vectors += self._backend.embed(cut, check)
            n_tokens += sum(map(len, cut))
        return vectors, n_tokens

    def _input(
        self, inputs: abc.Sequence[str | abc.Sequence[int]], i: int, field: str, *, truncates: bool
    ) -> abc.Sequence[int]:
        """The tokens of one input."""
        text = inputs[i]
        try:
            if isinstance(text, str):
                limit = None if truncates else self._max_input
                return self._backend.tokenize(text, add_bos=True, parse_special=False, limit=limit)
            check_tokens(text, self._backend.facts.n_vocab)
            return text
        except BadRequest as error:
            error.param = error.param or item_path(field, inputs, i)
            raise

    def _pairs(
        self, query: str, documents: abc.Sequence[str | abc.Sequence[int]], field: str
    ) -> abc.Iterator[abc.Sequence[int]]:
        """The tokens of the query with each document."""
        try:
            pair = self._backend.pair_tokenizer(query, self._max_input)
        except BadRequest as error:
            error.param = error.param or "query"
            raise
        for i, document in enumerate(documents):
            assert isinstance(document, str), "documents are texts"
            try:
                yield pair(document)
            except BadRequest as error:
                error.param = error.param or item_path(field, documents, i)
                raise

    @property
    def _max_input(self) -> int:
        """The limit of tokens of an input. The context for embeddings, which the first request makes, is not larger."""
        return max(self._backend.facts.n_ctx, self._backend.facts.n_ctx_train, COUNTED_TOKENS)

    def _cut(self, tokens: abc.Sequence[int], n: int) -> abc.Sequence[int]:
        """The first `n` tokens. The token that the tokenizer adds at the end stays at the end."""
        ends = self._backend.tokenize("", add_bos=True)
        if len(tokens) <= n or tokens[-1] not in ends[-1:]:
            return tokens[:n]
        return [*tokens[: n - 1], tokens[-1]]


def _groups(inputs: abc.Iterable[abc.Sequence[int]]) -> abc.Iterator[list[abc.Sequence[int]]]:
    """The inputs in groups of about `_GROUP_TOKENS` tokens, in their order."""
    group: list[abc.Sequence[int]] = []
    n_tokens = 0
    for tokens in inputs:
        group.append(tokens)
        n_tokens += len(tokens)
        if n_tokens >= _GROUP_TOKENS:
            yield group
            group, n_tokens = [], 0
    if group:
        yield group
