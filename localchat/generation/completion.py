"""The flow of a text completion between the wire's values and the engine's: prompts in, choices out."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..engine import (
    Cancelled,
    Delta,
    Engine,
    EngineError,
    Finish,
    GenerationRequest,
    OutputToken,
    Progress,
    RequestRun,
    WritesNoText,
)
from ..protocol import errors
from ..protocol.chat_response import ReplyHead, id_text
from ..protocol.completions import Choice, CompletionRequest, ScoredToken
from ..protocol.inputs import Input, check_tokens
from ..protocol.streaming import progress_body
from ..protocol.usage import Usage
from .answer import prompt_logprobs
from .constraints import plain_constraint
from .model import Model, api_error, nth


class Completion:
    """One request at work. Leaving the `with` ends what still runs.

    Raises (on making):
        ApiError: The request cannot be run; nothing of it is left in the engine.
    """

    def __init__(self, model: Model, request: CompletionRequest) -> None:
        self.head = ReplyHead("cmpl-" + uuid.uuid4().hex, int(time.time()), model.name)
        self.request = request
        self._engine = model.engine
        self._is_stopped = False
        param = "prompt" if len(request.prompts) > 1 else "best_of" if request.best_of > request.params.n else "n"
        model.check_number(len(request.prompts) * request.best_of, param)
        prompts = [_prompt(model.engine, request, i) for i in range(len(request.prompts))]
        # Which of several answers is best is known by their probabilities.
        params = request.params
        wants = 0 if request.best_of > params.n and params.top_logprobs is None else params.top_logprobs
        scored = [params.prompt_logprobs, params.top_logprobs if request.scores_prompt else None]
        most = max((n for n in scored if n is not None), default=None)
        drawn = replace(params, top_logprobs=wants, prompt_logprobs=most)
        constraint = plain_constraint(request)
        works = [model.work(drawn, prompt, constraint=constraint) for prompt in prompts]
        with translated(model.engine, "prompt"):
            self._run = model.engine.submit([self._nth(work, k) for work in works for k in range(request.best_of)])
        self._runs = [
            _Run(
                self._run,
                i,
                works[i // request.best_of].prompt,
                request,
                self._echo(request.prompts[i // request.best_of]),
            )
            for i in range(len(works) * request.best_of)
        ]

    def __enter__(self) -> Completion:
        return self

    def __exit__(self, *args: object) -> None:
        self._run.cancel()

    def cancel(self) -> None:
        """Ends all choices within one turn; any thread. Who advances then gets Cancelled."""
        self._run.cancel()

    def stop(self) -> None:
        """As `cancel`, because the server ends. Who advances gets ShuttingDown."""
        self._is_stopped = True
        self.cancel()

    @property
    def is_running(self) -> bool:
        return self._run.is_running

    def advance(self, patience_s: float | None = None) -> None:
        """Waits for news of the running choices, at most so long, and takes them.

        Raises:
            ApiError: The request failed.
            Cancelled: `cancel` was called.
        """
        with self._translated():
            for i, item in self._run.take(patience_s):
                self._runs[i].take(item)

    def news(self) -> Iterator[tuple[int, Choice]]:
        """What the choices got since the last time, and in a piece of its own how each ended."""
        for i, run in enumerate(self._runs):
            choice, run.choice = run.choice, Choice()
            if choice.progress is not None:
                yield i, Choice(progress=choice.progress)
                choice.progress = None
            if choice.has_news:
                yield i, replace(choice, reason=None)
            if choice.reason is not None:
                yield i, Choice(reason=choice.reason, stop=choice.stop)

    def choices(self) -> list[Choice]:
        """The whole choices, all ended: of each prompt the likeliest answers, in the order of their drawing."""
        n, best_of = self.request.params.n, self.request.best_of
        by_prompt = [self._runs[start : start + best_of] for start in range(0, len(self._runs), best_of)]
        return [run.choice for runs in by_prompt for run in _best(runs, n)]

    @property
    def usage(self) -> Usage:
        """By now: each prompt counts once, and every answer that was drawn."""
        return Usage.total([self._run.usage(i) for i in range(len(self._runs))], self.request.best_of)

    @property
    def summary(self) -> str:
        """Tokens, speeds and ends, for the log."""
        usage = self.usage
        counted = Counter(run.finish_reason or "cut" for run in self._runs)
        ends = ", ".join(f"{n} {reason}" for reason, n in counted.items())
        return (
            f"in {usage.n_prompt} ({usage.n_cached} cached) at {usage.prompt_rate or 0:.1f}/s, "
            f"out {usage.n_completion} at {usage.completion_rate or 0:.1f}/s, {ends}"
        )

    def _nth(self, work: GenerationRequest, k: int) -> GenerationRequest:
        """One of the answers to a prompt; the first tells how far it has been read."""
        reports = k == 0 and self.request.stream and self.request.return_progress
        return replace(nth(work, k), reports_progress=reports)

    def _echo(self, given: Input) -> _Echo | None:
        if not self.request.echo:
            return None
        return _Echo(_echoed(self._engine, given), self._n_begin(given) if self.request.scores_prompt else None)

    def _n_begin(self, given: Input) -> int:
        """Tokens of a prompt that are not of its text."""
        return len(self._engine.tokenize("", add_bos=self.request.adds_special)) if isinstance(given, str) else 0

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with translated(self._engine, "prompt"):
                yield
        except Cancelled as error:
            if self._is_stopped:
                raise errors.ShuttingDown(errors.SHUTTING_DOWN) from error
            raise


@dataclass(frozen=True)
class _Echo:
    """A prompt that is repeated; with log probabilities where `n_begin` says how many tokens come before its text."""

    text: str
    n_begin: int | None

    def tokens(self, run: RequestRun, index: int) -> list[OutputToken]:
        if self.n_begin is None:
            return []
        tokens = list(run.prompt_tokens(index)[self.n_begin :])
        # Many vocabularies begin every text with a space that is not in it.
        if b"".join(token.piece for token in tokens) == b" " + self.text.encode():
            tokens[0] = replace(tokens[0], piece=tokens[0].piece[1:])
        return tokens


class _Run:
    """One answer on its way, with what has not been handed out yet."""

    def __init__(
        self, run: RequestRun, index: int, prompt: tuple[int, ...], request: CompletionRequest, echo: _Echo | None
    ) -> None:
        self._run = run
        self._index = index
        self._prompt = prompt
        self.choice = Choice()
        self.finish_reason: str | None = None
        self._request = request
        # What comes before the first token, as the prompt is known by then.
        self._is_begun = False
        self._echo = echo
        self._began_at = time.monotonic()
        self._logprob = 0.0
        self._n_tokens = 0

    @property
    def likelihood(self) -> float:
        """The mean log probability of its tokens."""
        return self._logprob / max(self._n_tokens, 1)

    def take(self, item: Progress | Delta | Finish) -> bool:
        """Takes the next news; True when it was the end."""
        if isinstance(item, Progress):
            seconds = time.monotonic() - self._began_at
            self.choice.progress = progress_body(item.n_done, item.n_prompt, item.n_cached, seconds)
            return False
        if not self._is_begun:
            self._begin()
        if isinstance(item, Finish):
            if item.last is not None:
                # It was drawn, and its text is no part of the answer.
                self._score(replace(item.last, piece=b""))
            self.finish_reason = item.reason
            self.choice.reason, self.choice.stop = item.reason, item.stop
            return True
        self.choice.text += [item.text] if item.text else []
        for token in item.tokens:
            self._score(token)
        self.choice.token_ids += [token.id for token in item.tokens] if self._request.return_token_ids else []
        return False

    def _score(self, token: OutputToken) -> None:
        if token.logprob is not None:
            self.choice.tokens.append(_scored(token, self._request))
            self._logprob += token.logprob
            self._n_tokens += 1

    def _begin(self) -> None:
        self._is_begun = True
        if self._request.return_token_ids:
            self.choice.prompt_token_ids = self._prompt
        if self._request.params.prompt_logprobs is not None:
            tokens = self._run.prompt_tokens(self._index)
            self.choice.prompt_logprobs = prompt_logprobs(tokens, self._request.params.prompt_logprobs)
        if self._echo is not None:
            self.choice.text.append(self._echo.text)
            self.choice.tokens += [_scored(token, self._request) for token in self._echo.tokens(self._run, self._index)]


@contextlib.contextmanager
def translated(engine: Engine, param: str) -> Iterator[None]:
    """Within the `with`, the engine's errors become those of the wire, but for Cancelled.

    `param` is what the request calls what the engine calls its prompt.
    """
    try:
        yield
    except Cancelled:
        raise
    except WritesNoText as error:
        raise errors.NotSupported(str(error), "model") from error
    except EngineError as error:
        answer = api_error(error, engine)
        answer.param = param if answer.param == "messages" else answer.param
        raise answer from error


def _prompt(engine: Engine, request: CompletionRequest, i: int) -> tuple[int, ...]:
    given = request.prompts[i]
    name = "prompt" if len(request.prompts) == 1 else f"prompt[{i}]"
    tokens = _tokens(engine, given, request)
    if not tokens:
        raise errors.BadRequest(f"'{name}' is empty, and no token of the model begins it: one is needed", name)
    check_tokens(tokens, engine.facts.n_vocab, name)
    return tokens


def _tokens(engine: Engine, given: Input, request: CompletionRequest) -> tuple[int, ...]:
    if not isinstance(given, str):
        return given
    if request.suffix is None:
        return tuple(engine.tokenize(given, add_bos=request.adds_special))
    fill_in = engine.facts.fill_in
    if fill_in is None:
        raise errors.BadRequest(
            "'suffix' needs a model with fill-in-the-middle tokens, and this one has none", "suffix"
        )
    before, after, here = fill_in
    begin = engine.tokenize("", add_bos=request.adds_special)
    texts = [engine.tokenize(text, parse_special=False) for text in (given, request.suffix)]
    return (*begin, before, *texts[0], after, *texts[1], here)


def _echoed(engine: Engine, given: Input) -> str:
    if isinstance(given, str):
        return given
    return b"".join(engine.backend.piece(token, True) for token in given).decode("utf-8", "replace")


def _best(runs: Sequence[_Run], n: int) -> list[_Run]:
    best = sorted(runs, key=lambda run: -run.likelihood)[:n]
    return [run for run in runs if run in best]


def _scored(token: OutputToken, request: CompletionRequest) -> ScoredToken:
    # Of the prompt's tokens more may be known, for `prompt_logprobs`.
    likeliest = token.top[: request.params.top_logprobs]
    if not request.tokens_as_ids:
        return ScoredToken(token.piece, token.logprob, tuple((other.piece, other.logprob) for other in likeliest))
    top = tuple((id_text(other.token).encode(), other.logprob) for other in likeliest)
    return ScoredToken(token.piece, token.logprob, top, id_text(token.id))
