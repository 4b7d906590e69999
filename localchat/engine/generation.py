"""What a submitter holds: the drawn tokens of one request, turned into text on the reader's own thread.

The engine thread only puts token ids into the outbox. Searching stop texts here keeps its turns short;
the engine then computes a token or two too many, which are neither shown nor counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Union

from .backend import Backend
from .text import TextStream
from .values import Delta, EngineError, Finish, GenerationRequest, OutputToken, Progress, TokenLogprob


@dataclass(frozen=True)
class Ended:
    """The engine thread's last word on a generation that ended by itself."""

    reason: str
    stop: int | None


# A drawn token; with log probabilities a tuple of the token, its own and the likeliest ones.
Drawn = Union[int, "tuple[int, float, list[tuple[int, float]]]"]
Item = Union[Drawn, Progress, Ended, EngineError]


class Generation:
    """The tokens of one request as they are drawn: an iterator of Delta, then one Finish.

    Where the request asks for it, Progress comes first. Iterating raises EngineError when the
    generation ends otherwise, once. Leaving the `with` cancels what is still running. One thread
    iterates; `cancel` may be called from any.
    """

    def __init__(self, request: GenerationRequest, backend: Backend, cancel: Callable[[], None]):
        self.request = request
        self.n_prompt = len(request.prompt)
        self._backend = backend
        self._cancel = cancel
        self._outbox: SimpleQueue[Item] = SimpleQueue()
        # Taken out of the outbox and not read yet.
        self._taken: list[Item] = []
        self._text = TextStream(request.stop)
        self._n_drawn = 0
        self._last: OutputToken | None = None
        # The end, from when it is known until it is handed out; `_is_over` from then on.
        self._end: Finish | EngineError | None = None
        self._is_over = False
        # Written by the engine thread before the token they belong to is delivered.
        self.n_cached = 0
        # Of each token of the prompt but the first, where the request asks for it.
        self.prompt_scores: list[tuple[float, list[tuple[int, float]]]] = []
        self.n_drafted = 0
        self.n_draft_accepted = 0
        self._n_delivered = 0
        self._submitted_at = self._first_at = self._last_at = time.perf_counter()

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end is None and not self._is_over:
            self.cancel()

    def __iter__(self) -> Iterator[Progress | Delta | Finish]:
        return self

    def __next__(self) -> Progress | Delta | Finish:
        if self._is_over:
            raise StopIteration
        if self._end is None:
            items = self._ready()
            progress = self._progress(items)
            if progress is not None:
                return progress
            delta = self._read(items)
            if self._end is None or delta.text or delta.tokens:
                return delta
        self._is_over = True
        if isinstance(self._end, EngineError):
            raise self._end
        assert self._end is not None
        return self._end

    def cancel(self) -> None:
        """Ends the generation within one turn; who iterates then gets Cancelled."""
        self._cancel()

    def wait(self, timeout_s: float | None) -> bool:
        """Waits until there is something to iterate; False if nothing came by then. For the thread that iterates."""
        if not self._taken and self._end is None and not self._is_over:
            try:
                self._taken.append(self._outbox.get(timeout=timeout_s))
            except Empty:
                return False
        return True

    def so_far(self) -> Finish:
        """The end as it would be if what was read by now were all."""
        return self._finish("stop", None)

    def prompt_tokens(self) -> tuple[OutputToken, ...]:
        """The prompt with log probabilities, where the request asks for them; complete from the first Delta on.

        The first token has none, since nothing goes before it.
        """
        first, *rest = self.request.prompt
        scored = (
            OutputToken(token, self._shown(token), logprob, self._likeliest(top, self._shown))
            for token, (logprob, top) in zip(rest, self.prompt_scores)
        )
        return (OutputToken(first, self._shown(first)), *scored)

    def deliver(self, item: Item) -> None:
        """Hands over progress, a token or the end. Runs on the engine thread, or where there is none any more."""
        if not isinstance(item, (Progress, Ended, EngineError)):
            self._last_at = time.perf_counter()
            if self._n_delivered == 0:
                self._first_at = self._last_at
            self._n_delivered += 1
        self._outbox.put(item)

    def _ready(self) -> list[Item]:
        # Waits for one item and takes what else is there: a slow reader gets fewer, larger deltas.
        items, self._taken = self._taken or [self._outbox.get()], []
        try:
            while not self.request.one_by_one:
                items.append(self._outbox.get_nowait())
        except Empty:
            pass
        return items

    def _progress(self, items: list[Item]) -> Progress | None:
        """The newest progress, if the items begin with any; what follows it is left for later."""
        n = next((i for i, item in enumerate(items) if not isinstance(item, Progress)), len(items))
        if n == 0:
            return None
        newest, self._taken = items[n - 1], items[n:]
        assert isinstance(newest, Progress)
        return newest

    def _read(self, items: list[Item]) -> Delta:
        """The items up to the first one that ends the generation, as one delta."""
        texts, tokens = [], []
        for item in items:
            assert not isinstance(item, Progress), "there is none after the first token"
            if isinstance(item, EngineError):
                texts.append(self._text.finish())
                self._end = item
                break
            if isinstance(item, Ended):
                texts.append(self._text.finish())
                stopped_by = self._text.stopped_by
                self._end = (
                    self._finish(item.reason, item.stop) if stopped_by is None else self._finish("stop", stopped_by)
                )
                break
            if self.request.max_tokens == 0:
                continue  # drawn all the same, and neither counted nor shown
            token = self._output_token(item)
            self._n_drawn += 1
            if self._backend.is_end(token.id) or token.id in self.request.stop_token_ids:
                self._last = token
                continue  # counted, not shown; the end follows
            texts.append(self._text.feed(token.piece))
            tokens.append(token)
            if self._text.stopped_by is not None:
                self.cancel()
                self._end = self._finish("stop", self._text.stopped_by)
                break
        return Delta("".join(texts), tuple(tokens))

    def _output_token(self, drawn: Drawn) -> OutputToken:
        if isinstance(drawn, int):
            return OutputToken(drawn, self._piece(drawn))
        token, logprob, top = drawn
        return OutputToken(token, self._piece(token), logprob, self._likeliest(top, self._piece))

    def _likeliest(self, top: list[tuple[int, float]], piece: Callable[[int], bytes]) -> tuple[TokenLogprob, ...]:
        return tuple(TokenLogprob(id, piece(id), logprob) for id, logprob in top)

    def _piece(self, token: int) -> bytes:
        return self._backend.piece(token, token in self.request.visible_tokens)

    def _shown(self, token: int) -> bytes:
        """Of a prompt, all is shown."""
        return self._backend.piece(token, True)

    def _finish(self, reason: str, stop: str | int | None) -> Finish:
        return Finish(
            reason=reason,
            stop=stop,
            prompt_tokens=self.n_prompt,
            cached_tokens=self.n_cached,
            completion_tokens=self._n_drawn,
            prompt_s=self._first_at - self._submitted_at,
            completion_s=self._last_at - self._first_at,
            n_drafted=self.n_drafted,
            n_draft_accepted=self.n_draft_accepted,
            last=self._last,
        )
