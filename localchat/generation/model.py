"""From the wire's values to the engine's: a checked request becomes a prompt and generations. No HTTP, no JSON.

What becomes of the generations is in answer.py. Errors of the engine and of the template become those of
api/errors.py, except `Cancelled`: who cancelled knows why.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..engine import (
    Engine,
    EngineError,
    EngineStopped,
    GenerationRequest,
    InvalidGrammar,
    InvalidToken,
    PromptTooLong,
    QueueFull,
    WritesNoText,
)
from ..models.catalog import Catalog, ModelNotFound
from ..prompt.errors import TemplateError
from ..prompt.segments import Segment, text_of, tokens_of
from ..prompt.template import ChatTemplate
from ..protocol import errors
from ..protocol.chat import ChatRequest
from ..protocol.chat_response import ReplyHead
from ..protocol.models import model_body
from ..protocol.params import GenerationParams
from .answer import Answer, choices_of
from .constraints import constraint_for
from .reasoning_limit import ReasoningDefaults, reasoning_limit
from .work import AtWork

# Templates of requests that are kept compiled: finding out what one expects takes some milliseconds.
MAX_TEMPLATES = 8


class _Dialect(NamedTuple):
    """A template, and the tokens of control that its model writes calls and thinking with."""

    template: ChatTemplate
    visible: frozenset[int]


class Model:
    """A loaded model under its public name (K29).

    `defaults` are sampling values that go before the model's own and after those of a request (K9), `thinking`
    says how long it may think where a request does not. With `keep_tools` the model is shown the tools also
    where it must not call any (K22).
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        max_tokens: int | None = None,
        defaults: Mapping[str, Any] | None = None,
        keep_tools: bool = False,
        thinking: ReasoningDefaults | None = None,
    ) -> None:
        self.name = name
        self.engine = engine
        self.max_tokens = max_tokens
        self._keep_tools = keep_tools
        self._thinking = thinking or ReasoningDefaults()
        self.created = int(time.time())
        self.sampling = dataclasses.replace(engine.facts.sampling, **(defaults or {}))
        self._own = self._compiled(engine.facts.chat_template)
        self._given = functools.lru_cache(MAX_TEMPLATES)(self._compiled)

    @property
    def template(self) -> ChatTemplate:
        return self._own.template

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

    def check_number(self, n: int, param: str) -> None:
        """Refuse more answers at once than could ever run and wait, which to try again would not help."""
        if n > self.engine.max_open:
            message = f"'{param}' asks for {n} answers at once, and {self.engine.max_open} can run and wait here"
            raise errors.BadRequest(f"{message}: ask for fewer, or start the server with a larger --queue", param)

    def answer(self, request: ChatRequest) -> Answer:
        """Submits the request, n times for n choices.

        Raises:
            ApiError: The request cannot be run; nothing of it is left in the engine.
        """
        self.check_number(request.params.n, "n")
        dialect = self._dialect(request)
        try:
            segments = self._rendered(request, dialect.template)
            text = text_of(segments)
            prompt = tuple(tokens_of(segments, self._tokenize, dialect.template.special))
            work = self.work(
                request.params,
                prompt,
                visible_tokens=dialect.visible,
                constraint=constraint_for(request, dialect.template, text),
                reasoning_limit=reasoning_limit(request, dialect.template.format, text, self._tokenize, self._thinking),
                reports_progress=request.stream and request.return_progress,
                # What follows the one call is not read, and so not counted, whenever it came.
                one_by_one=not request.parallel_tool_calls,
            )
            # All choices have the same prompt: it is scored once.
            others = dataclasses.replace(work, params=dataclasses.replace(work.params, prompt_logprobs=None))
            works = [work, *(nth(others, i) for i in range(1, request.params.n))]
            told = work.prompt if request.return_token_ids else None
            head = ReplyHead("chatcmpl-" + uuid.uuid4().hex, int(time.time()), self.name, request.role, told)
            run = self.engine.submit(works)
            choices = choices_of(request, run, dialect.template.format, text)
            return Answer(head, request, choices, run, self._fault)
        except (TemplateError, EngineError) as error:
            raise api_error(error, self.engine) from error

    def prompt_text(self, request: ChatRequest) -> str:
        """The prompt, in which a user's text that looks like a control token is not told apart.

        Raises:
            BadRequest: The template refuses the request.
        """
        try:
            return text_of(self._rendered(request, self._dialect(request).template))
        except TemplateError as error:
            raise api_error(error, self.engine) from error

    def _rendered(self, request: ChatRequest, template: ChatTemplate) -> list[Segment]:
        try:
            return template.render(
                request.messages,
                tools=request.tools if self._keep_tools or request.tool_choice != "none" else (),
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                prefix=request.prefix,
                variables=request.template_vars,
            )
        except RecursionError as error:  # arguments of calls are JSON within JSON
            raise errors.BadRequest("'messages' has something nested too deeply", "messages") from error

    def work(self, params: GenerationParams, prompt: tuple[int, ...], **more: Any) -> GenerationRequest:
        """What the engine is to do for one choice. What the request says goes before all defaults (K9).

        Raises:
            BadRequest: It names a token that the model does not have.
        """
        self._check_tokens("stop_token_ids", params.stop_token_ids)
        values = {**params.sampling, "logit_bias": tuple(self._biases(params))}
        max_tokens = self.max_tokens if params.max_tokens is None else params.max_tokens
        return GenerationRequest(
            prompt=prompt[-params.n_prompt_kept :],
            params=dataclasses.replace(params, max_tokens=max_tokens),
            sampling=dataclasses.replace(self.sampling, **values),
            **more,
        )

    def _fault(self, error: EngineError) -> errors.ApiError:
        return api_error(error, self.engine)

    def _dialect(self, request: ChatRequest) -> _Dialect:
        if request.chat_template is None:
            return self._own
        try:
            return self._given(request.chat_template)
        except TemplateError as error:
            raise errors.BadRequest(str(error), "chat_template") from error

    def _compiled(self, source: str | None) -> _Dialect:
        facts = self.engine.facts
        template = ChatTemplate(
            source,
            bos_token=facts.bos,
            eos_token=facts.eos,
            add_bos=facts.add_bos,
            special_texts=facts.special_tokens,
        )
        # A marker may be of several tokens. What is no control token in it is seen anyway.
        markers = (self._tokenize(marker, True) for marker in template.format.preserved)
        return _Dialect(template, frozenset(itertools.chain(*markers)))

    def _tokenize(self, text: str, parse_special: bool) -> list[int]:
        return self.engine.tokenize(text, parse_special=parse_special)

    def _biases(self, params: GenerationParams) -> Iterator[tuple[int, float]]:
        """A text's bias is that of each of its tokens."""
        for token, bias in params.logit_bias:
            tokens = self._tokenize(token, True) if isinstance(token, str) else [token]
            self._check_tokens("logit_bias", tokens)
            yield from ((id, bias) for id in tokens)

    def _check_tokens(self, param: str, tokens: Iterable[int]) -> None:
        n_vocab = self.engine.facts.n_vocab
        highest = max(tokens, default=0)
        if highest >= n_vocab:
            message = f"'{param}' has the token {highest}, and this model's go from 0 to {n_vocab - 1}"
            raise errors.BadRequest(message, param)


class Service:
    """The model of this server: on its way since this was made, there, or failed. `clock` is in seconds."""

    def __init__(self, catalog: Catalog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = 0.0
        self.at_work = AtWork()
        self._catalog = catalog
        self._clock = clock
        self._began_at = clock()
        # Guards the rest against what ends to load while the server ends.
        self._lock = threading.Lock()
        self._model: Model | None = None
        self._is_closed = False

    def ready(self, model: Model) -> None:
        """Serve this model from now on."""
        with self._lock:
            self._model = model
            if self._is_closed:
                model.engine.close()

    def stop(self) -> None:
        """End all that is at work, with an error, and refuse new requests. What ends still needs the model."""
        self.at_work.stop()

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
        if self.at_work.is_stopping:
            raise errors.ShuttingDown(errors.SHUTTING_DOWN)
        model = self._model
        if model is None:
            message = f"the model is being loaded ({self.progress:.0%}): try again soon"
            raise errors.ModelLoading(message, self._loading_left_s())
        failure = model.engine.failure
        if failure is not None:
            raise errors.InferenceError(f"the engine has failed, restart the server: {failure}")
        return model

    def _loading_left_s(self) -> float:
        """If it goes on as it went until now; as long again while there is no progress to tell it from."""
        passed_s = self._clock() - self._began_at
        return passed_s * (1 - self.progress) / self.progress if self.progress else passed_s

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


def nth(work: GenerationRequest, i: int) -> GenerationRequest:
    """The work for choice i of one request: with a seed each choice gets its own, or all would say the same."""
    if i == 0 or work.sampling.seed is None:
        return work
    return dataclasses.replace(work, sampling=dataclasses.replace(work.sampling, seed=work.sampling.seed + i))


# The first class that fits; what fits none is an InferenceError.
_ANSWERS: tuple[tuple[type[EngineError], type[errors.ApiError], str | None], ...] = (
    (PromptTooLong, errors.ContextLengthExceeded, "messages"),
    (InvalidToken, errors.BadRequest, "messages"),
    (QueueFull, errors.QueueFull, None),
    (WritesNoText, errors.NotSupported, "model"),
)


def api_error(error: Exception, engine: Engine) -> errors.ApiError:
    """What an error of the engine or of the template is on the wire (appendix B, K28)."""
    if isinstance(error, TemplateError):
        return errors.BadRequest(str(error), error.param or "messages")
    if isinstance(error, EngineStopped) and engine.failure is None:
        return errors.ShuttingDown(errors.SHUTTING_DOWN)
    if isinstance(error, InvalidGrammar):
        return errors.BadRequest(str(error), error.origin)
    for kind, api_kind, param in _ANSWERS:
        if isinstance(error, kind):
            return api_kind(str(error), param)
    return errors.InferenceError(str(error))
