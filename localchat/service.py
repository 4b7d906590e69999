"""The flow of a chat request between the wire's values and the engine's: no HTTP, no JSON.

A `ChatRequest` becomes a prompt and n generations; what they generate passes a parser and is told, event
by event, to a `Reply` of api/reply.py. Errors of the engine and of the template become those of
api/errors.py, except `Cancelled`: who cancelled knows why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Optional

from .api import errors
from .api.chat import ChatRequest
from .api.models import model_body
from .api.reply import Reply, ReplyHead, Usage, finish_reason, logprob_entry
from .chat.errors import TemplateError
from .chat.events import Content, Event, Reasoning, ToolArguments, ToolHead
from .chat.formats import detect
from .chat.output import OutputParser
from .chat.segments import text_of, tokens_of
from .chat.template import ChatTemplate
from .engine import (
    Cancelled,
    Engine,
    EngineError,
    EngineStopped,
    Finish,
    Generation,
    GenerationRequest,
    InvalidToken,
    OutputToken,
    PromptTooLong,
    QueueFull,
)
from .models.catalog import Catalog, ModelNotFound

SHUTTING_DOWN = "the server is shutting down"


class Model:
    """A loaded model under its public name (K29)."""

    def __init__(self, name: str, engine: Engine, *, max_tokens: Optional[int] = None) -> None:
        facts = engine.facts
        self.name = name
        self.engine = engine
        self.max_tokens = max_tokens
        self.created = int(time.time())
        self.template = ChatTemplate(
            facts.chat_template,
            bos_token=facts.bos,
            eos_token=facts.eos,
            add_bos=facts.add_bos,
            special_texts=facts.special_tokens,
        )
        self._format = detect(self.template.source)

    def body(self) -> dict[str, Any]:
        """How it stands in the list of models."""
        facts = self.engine.facts
        meta = {
            "description": facts.description,
            "n_params": facts.n_params,
            "size": facts.n_bytes,
            "n_vocab": facts.n_vocab,
            "n_ctx_train": facts.n_ctx_train,
            "n_ctx": facts.n_ctx,
        }
        return model_body(self.name, self.created, meta)

    def answer(self, request: ChatRequest) -> Answer:
        """Submits the request, n times for n choices.

        Raises:
            ApiError: The request cannot be run; nothing of it is left in the engine.
        """
        tools = request.tools if request.tool_choice != "none" else ()
        try:
            segments = self.template.render(request.messages, tools=tools, variables=request.template_vars)
            prompt = tokens_of(segments, self._tokenize, self.template.special)
            work = self._generation_request(request, tuple(prompt))
            text = text_of(segments)
            parsers = [OutputParser(self._format, tools=tools, prompt_tail=text) for _ in range(request.n)]
            with contextlib.ExitStack() as stack:
                generations = [stack.enter_context(self.engine.submit(_nth(work, i))) for i in range(request.n)]
                choices = [_Choice(i, *pair) for i, pair in enumerate(zip(generations, parsers))]
                return Answer(self, request, choices, stack.pop_all())
        except (TemplateError, EngineError) as error:
            raise api_error(error, self.engine) from error

    def _tokenize(self, text: str, parse_special: bool) -> list[int]:
        return self.engine.tokenize(text, parse_special=parse_special)

    def _generation_request(self, request: ChatRequest, prompt: tuple[int, ...]) -> GenerationRequest:
        """What the request says goes before the command line and the model's own defaults (K9)."""
        self._check_tokens("stop_token_ids", request.stop_token_ids)
        self._check_tokens("logit_bias", [token for token, _ in request.logit_bias])
        said: dict[str, Any] = {**request.sampling, "logit_bias": request.logit_bias}
        return GenerationRequest(
            prompt=prompt,
            max_tokens=self.max_tokens if request.max_tokens is None else request.max_tokens,
            sampling=dataclasses.replace(self.engine.facts.sampling, **said),
            stop=request.stop,
            stop_token_ids=request.stop_token_ids,
            top_logprobs=request.top_logprobs,
        )

    def _check_tokens(self, param: str, tokens: Sequence[int]) -> None:
        n_vocab = self.engine.facts.n_vocab
        if tokens and max(tokens) >= n_vocab:
            message = f"'{param}' has the token {max(tokens)}, and this model's go from 0 to {n_vocab - 1}"
            raise errors.BadRequest(message, param)


class Service:
    """The model of this server: on its way, there, or failed."""

    def __init__(self, catalog: Catalog) -> None:
        self.progress = 0.0
        self._catalog = catalog
        # Guards the rest against what begins, or ends to load, while the server ends.
        self._lock = threading.Lock()
        self._model: Optional[Model] = None
        self._answers: set[Answer] = set()
        self._is_stopping = False
        self._is_closed = False

    def ready(self, model: Model) -> None:
        """Serve this model from now on."""
        with self._lock:
            self._model = model
            if self._is_closed:
                model.engine.close()

    def stop(self) -> None:
        """End all answers at work, with an error, and refuse new ones. They still need the model to end."""
        with self._lock:
            self._is_stopping = True
            for answer in self._answers:
                answer.stop()

    def close(self) -> None:
        """Free the model, once nobody uses it any more."""
        with self._lock:
            self._is_closed = True
            if self._model is not None:
                self._model.engine.close()

    def model(self) -> Model:
        """The model that serves.

        Raises:
            ModelLoading: It is not there yet.
            InferenceError: Its engine has failed for good.
            ShuttingDown: `stop` was called.
        """
        if self._is_stopping:
            raise errors.ShuttingDown(SHUTTING_DOWN)
        model = self._model
        if model is None:
            raise errors.ModelLoading(f"the model is being loaded ({self.progress:.0%}): try again soon", "model")
        failure = model.engine.failure
        if failure is not None:
            raise errors.InferenceError(f"the engine has failed, restart the server: {failure}")
        return model

    def resolve(self, name: str) -> Model:
        """The model that a request names (K34).

        Raises:
            ModelNotFound: No model of that name is served; and what `model` raises.
        """
        try:
            self._catalog.find(name)
        except ModelNotFound as error:
            raise errors.ModelNotFound(str(error), "model") from error
        return self.model()

    @contextlib.contextmanager
    def answering(self, request: ChatRequest) -> Iterator[Answer]:
        """The answer to a request, at work; leaving the `with` ends what still runs.

        Raises:
            ApiError: The request cannot be run.
        """
        with self.resolve(request.model).answer(request) as answer:
            with self._lock:
                self._answers.add(answer)
                if self._is_stopping:
                    answer.stop()
            try:
                yield answer
            finally:
                with self._lock:
                    self._answers.discard(answer)


class Answer:
    """One chat request at work. Leaving the `with` ends what still runs."""

    def __init__(
        self, model: Model, request: ChatRequest, choices: list[_Choice], stack: contextlib.ExitStack
    ) -> None:
        self.head = ReplyHead("chatcmpl-" + uuid.uuid4().hex, int(time.time()), model.name)
        self.request = request
        self._engine = model.engine
        self._choices = choices
        self._running = list(choices)
        self._stack = stack
        self._is_stopped = False

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, type: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._stack.close()

    def cancel(self) -> None:
        """Ends all choices within one turn; any thread. Who advances then gets Cancelled."""
        for choice in self._choices:
            choice.generation.cancel()

    def stop(self) -> None:
        """As `cancel`, because the server ends; any thread. Who advances gets ShuttingDown."""
        self._is_stopped = True
        self.cancel()

    def advance(self, reply: Reply) -> bool:
        """Tell `reply` the next thing of each running choice; False when all have ended.

        Taking turns interleaves the choices (T17): the engine runs them in one batch, so none waits long.

        Raises:
            ApiError: The request failed.
            Cancelled: `cancel` was called.
        """
        try:
            self._running = [choice for choice in self._running if choice.advance(reply)]
        except EngineError as error:
            if self._is_stopped:
                raise errors.ShuttingDown(SHUTTING_DOWN) from error
            if isinstance(error, Cancelled):
                raise
            raise api_error(error, self._engine) from error
        return bool(self._running)

    @property
    def usage(self) -> Usage:
        """Over all choices (K14); they have ended."""
        return Usage.total(choice.usage for choice in self._choices if choice.usage is not None)

    @property
    def summary(self) -> str:
        """Tokens, speed and end, for the log."""
        if any(choice.usage is None for choice in self._choices):
            return "cut"
        usage = self.usage
        ends = ",".join(choice.finish_reason or "-" for choice in self._choices)
        speed = f"{usage.completion_rate or 0:.1f} tokens/s"
        return f"in {usage.n_prompt} ({usage.n_cached} cached) out {usage.n_completion}, {speed}, {ends}"


class _Choice:
    """One generation on its way to the reply."""

    def __init__(self, i: int, generation: Generation, parser: OutputParser) -> None:
        self.generation = generation
        self.usage: Optional[Usage] = None
        self.finish_reason: Optional[str] = None
        self._i = i
        self._parser = parser
        self._n_reasoning = 0

    def advance(self, reply: Reply) -> bool:
        """Tell the next item; False when it was the last."""
        item = next(self.generation)
        if isinstance(item, Finish):
            self._finish(reply, item)
            return False
        if item.tokens and item.tokens[0].logprob is not None:
            reply.logprobs(self._i, [_entry(token) for token in item.tokens])
        events = self._parser.feed(item.text)
        if events and isinstance(events[0], Reasoning):
            self._n_reasoning += len(item.tokens)
        self._tell(reply, events)
        return True

    def _finish(self, reply: Reply, end: Finish) -> None:
        self._tell(reply, self._parser.finish())
        is_cut = end.reason == "length" and self._parser.inside_tool_call
        self.finish_reason = finish_reason(end.reason, has_calls=self._parser.has_tool_calls, is_cut=is_cut)
        self.usage = Usage(
            n_prompt=end.prompt_tokens,
            n_cached=end.cached_tokens,
            n_completion=end.completion_tokens,
            n_reasoning=self._n_reasoning,
            prompt_s=end.prompt_s,
            completion_s=end.completion_s,
        )
        reply.finish(self._i, self.finish_reason, end.stop)

    def _tell(self, reply: Reply, events: Iterable[Event]) -> None:
        for event in events:
            _TELL[type(event)](reply, self._i, event)


_TELL: dict[type, Callable[[Reply, int, Any], None]] = {
    Content: lambda reply, i, event: reply.content(i, event.text),
    Reasoning: lambda reply, i, event: reply.reasoning(i, event.text),
    ToolHead: lambda reply, i, event: reply.tool_head(i, event.index, event.id, event.name),
    ToolArguments: lambda reply, i, event: reply.tool_arguments(i, event.index, event.text),
}


def _entry(token: OutputToken) -> dict[str, Any]:
    top = ((other.piece, other.logprob) for other in token.top)
    return logprob_entry(token.piece, token.logprob or 0.0, top)


def _nth(work: GenerationRequest, i: int) -> GenerationRequest:
    """The work for choice i: with a seed each choice gets its own, or all would say the same."""
    if i == 0 or work.sampling.seed is None:
        return work
    return dataclasses.replace(work, sampling=dataclasses.replace(work.sampling, seed=work.sampling.seed + i))


# The first class that fits; what fits none is an InferenceError.
_ANSWERS: tuple[tuple[type[EngineError], type[errors.ApiError], Optional[str]], ...] = (
    (PromptTooLong, errors.ContextLengthExceeded, "messages"),
    (InvalidToken, errors.BadRequest, "messages"),
    (QueueFull, errors.QueueFull, None),
)


def api_error(error: Exception, engine: Engine) -> errors.ApiError:
    """What an error of the engine or of the template is on the wire (appendix B, K28)."""
    if isinstance(error, TemplateError):
        return errors.BadRequest(str(error), error.param or "messages")
    if isinstance(error, EngineStopped) and engine.failure is None:
        return errors.ShuttingDown(SHUTTING_DOWN)
    for kind, api_kind, param in _ANSWERS:
        if isinstance(error, kind):
            return api_kind(str(error), param)
    return errors.InferenceError(str(error))
