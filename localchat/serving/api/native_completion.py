"""POST /completion, the native interface of llama.cpp's server for text completions: request and response."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.errors import ApiError
from ..core.events import ContentDelta, OutputEnd, OutputEvent, OutputToken, PromptProgress, SampledTokens
from ..core.fields import parse_body, unknown_fields
from ..core.inputs import read_inputs
from ..core.interface import Interface, ResponseHead
from ..core.json_text import to_json
from ..core.logprobs import native_entry
from ..core.params import WITHOUT_EFFECT, read_n_probs, read_params
from ..core.request import DEFAULT_OPTIONS, ParseOptions, read_text_request
from ..core.usage import Usage, progress_body
from .completions import MAX_CHOICES, CompletionRequest

# The names of the length limit. `n_predict` is llama.cpp's name and takes precedence.
LENGTHS = ("n_predict", "max_completion_tokens", "max_tokens")


def parse_native(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> CompletionRequest:
    """The request in a body.

    Raises:
        BadRequest: A field is invalid.
    """
    body = parse_body(raw)
    n = body.integer("n_cmpl", 1, MAX_CHOICES) or 1
    return CompletionRequest(
        prompts=read_inputs(body, "prompt", MAX_CHOICES // n),
        params=read_params(body, n=n, top_logprobs=read_n_probs(body), least_tokens=0, lengths=LENGTHS),
        best_of=n,
        **read_text_request(body),
        unknown=unknown_fields(body, WITHOUT_EFFECT, options.strict),
    )


class _Output:
    """Collects one output: its text since the last chunk, and the totals for the last chunk."""

    def __init__(self, head: ResponseHead, request: CompletionRequest, index: int) -> None:
        self.end: OutputEnd | None = None
        self.text: list[str] = []
        self.is_changed = False
        self._head = head
        self._request = request
        self._index = index
        self._tokens: list[OutputToken] = []
        self._n_sampled = 0
        self._has_new_line = False

    def add(self, event: OutputEvent) -> None:
        if isinstance(event, ContentDelta):
            self.text.append(event.text)
            self._has_new_line = self._has_new_line or "\n" in event.text
        elif isinstance(event, SampledTokens):
            self._tokens += event.tokens
            self._n_sampled += len(event.tokens)
        elif isinstance(event, OutputEnd):
            self.end = event
            self._n_sampled += event.last is not None
        self.is_changed = True

    def take(self) -> dict[str, Any]:
        """The fields of a chunk."""
        text, tokens = self.text, self._tokens
        self.text, self._tokens, self.is_changed = [], [], False
        params = self._request.params
        scored = [native_entry(token, after_sampling=params.post_sampling_probs) for token in tokens]
        return {
            "index": self._index,
            "content": "".join(text),
            "tokens": [token.id for token in tokens] if self._request.return_token_ids else [],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._n_sampled,
            "tokens_evaluated": len(self._prompt),
            **({"completion_probabilities": scored} if params.top_logprobs is not None and scored else {}),
        }

    def body(self, usage: Usage) -> dict[str, Any]:
        """The fields of the last chunk or of the body, with the text since the last chunk."""
        end = self.end or OutputEnd("stop")
        given = self._request.prompts[self._index // self._request.best_of]
        stop_type = "limit" if end.reason == "length" else "word" if isinstance(end.stop, str) else "eos"
        return {
            **self.take(),
            "stop": True,
            "model": self._head.model,
            "generation_settings": dict(self._request.params.sampling),
            "prompt": given if isinstance(given, str) else list(given),
            "has_new_line": self._has_new_line,
            "truncated": False,
            "stop_type": stop_type,
            "stopping_word": end.stop if isinstance(end.stop, str) else "",
            "tokens_cached": len(self._prompt) + self._n_sampled,
            "timings": usage.timings(),
        }

    @property
    def _prompt(self) -> tuple[int, ...]:
        return self._head.prompts[self._index // self._request.best_of]


class NativeBody:
    """Encodes a body: one object, or a list if there are several outputs."""

    def __init__(self, head: ResponseHead, request: CompletionRequest) -> None:
        self._outputs = [_Output(head, request, i) for i in range(request.n_choices)]

    def add(self, index: int, event: OutputEvent) -> None:
        self._outputs[index].add(event)

    def body(self, usage: Usage) -> Any:
        bodies = [output.body(usage) for output in self._outputs]
        return bodies[0] if len(bodies) == 1 else bodies


class NativeStream:
    """Encodes chunks of text. The last chunk of each output has the totals and no text."""

    def __init__(self, head: ResponseHead, request: CompletionRequest, usage: Callable[[], Usage]) -> None:
        self._outputs = [_Output(head, request, i) for i in range(request.n_choices)]
        self._usage = usage
        self._chunks: list[str] = []

    def add(self, index: int, event: OutputEvent) -> None:
        output = self._outputs[index]
        if isinstance(event, PromptProgress):
            self._chunks.append(to_json({**output.take(), "prompt_progress": progress_body(event)}))
            return
        if isinstance(event, OutputEnd) and output.is_changed:
            self._chunks.append(to_json(output.take()))
        output.add(event)
        if isinstance(event, OutputEnd):
            self._chunks.append(to_json(output.body(self._usage())))

    def take(self) -> list[str]:
        changed = [output for output in self._outputs if output.is_changed and output.end is None]
        chunks, self._chunks = [*self._chunks, *(to_json(output.take()) for output in changed)], []
        return chunks

    def finish(self) -> list[str]:
        return self.take()

    def failed(self, error: ApiError) -> list[str]:
        return [*self.take(), to_json(error.body())]


INTERFACE = Interface(id_prefix="cmpl-", parse=parse_native, stream=NativeStream, whole=NativeBody)
