"""llama.cpp's own interfaces for text completions: POST /completion, and /infill for editors (fill-in-the-middle)."""

from __future__ import annotations

from typing import Any

from ..core.events import OutputEnd, PromptProgress
from ..core.fields import Fields
from ..core.params import read_n_probs, read_params
from ..core.request import DEFAULT_OPTIONS, ParseOptions
from .chat import read_text_request
from .completions import MAX_CHOICES, CompletionRequest, SourceFile
from .content import read_inputs
from .encoder import Block, Choice, Encoder, Interface, progress_body
from .logprobs import native_entry

# The names of the length limit. `n_predict` is llama.cpp's name and takes precedence.
LENGTHS = ("n_predict", "max_completion_tokens", "max_tokens")


def parse_native(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> CompletionRequest:
    """The request in a body of /completion."""
    n = body.integer("n_cmpl", 1, MAX_CHOICES) or 1
    return CompletionRequest(
        prompts=read_inputs(body, "prompt", MAX_CHOICES // n),
        params=read_params(body, n=n, top_logprobs=read_n_probs(body), least_tokens=0, lengths=LENGTHS),
        **read_text_request(body),
    )


def parse_infill(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> CompletionRequest:
    """The request in a body of /infill."""
    before, after = body.text("input_prefix"), body.text("input_suffix")
    if before is None and after is None:
        body.refuse("input_prefix", "the text before the gap")
    return CompletionRequest(
        prompts=(before or "",),
        suffix=after or "",
        suffix_field="input_suffix",
        files=tuple(_file(entry) for entry in body.objects("input_extra")),
        begun=body.text("prompt") or "",
        params=read_params(body, n=1, top_logprobs=read_n_probs(body), least_tokens=0, lengths=LENGTHS),
        **read_text_request(body),
    )


def _file(entry: Fields) -> SourceFile:
    text = entry.text("text")
    if text is None:  # An empty text is valid.
        entry.refuse("text", "a string")
    return SourceFile(entry.text("filename") or "file", text)


class NativeEncoder(Encoder[CompletionRequest]):
    """Encodes chunks of text, of which the last one of each output has the totals and no text, or one body."""

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        if self.request.stream:
            self.emit(self._chunk(choice, text))

    def progress(self, choice: Choice, progress: PromptProgress) -> None:
        self.emit({**self._chunk(choice, ""), "prompt_progress": progress_body(progress)})

    def ended(self, choice: Choice) -> None:
        if self.request.stream:
            self.emit(self._last(choice, ""))

    def body(self) -> Any:
        bodies = [self._last(choice, choice.text()) for choice in self.choices]
        return bodies[0] if len(bodies) == 1 else bodies

    def _chunk(self, choice: Choice, text: str) -> dict[str, Any]:
        """A chunk with this text, and the tokens since the last chunk."""
        params = self.request.params
        _, tokens = choice.take_tokens()
        scored = [native_entry(token, after_sampling=params.post_sampling_probs) for token in tokens]
        return {
            "index": choice.index,
            "content": text,
            "tokens": [token.id for token in tokens] if self.request.return_token_ids else [],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": choice.n_sampled,
            "tokens_evaluated": len(self._prompt(choice)),
            **({"completion_probabilities": scored} if params.top_logprobs is not None and scored else {}),
        }

    def _last(self, choice: Choice, text: str) -> dict[str, Any]:
        end = choice.end or OutputEnd("stop")
        given = self.request.prompts[choice.index // self.request.params.n]
        n_sampled = choice.n_sampled + (end.last is not None)
        return {
            **self._chunk(choice, text),
            "stop": True,
            "model": self.head.model,
            "tokens_predicted": n_sampled,
            "generation_settings": dict(self.request.params.sampling),
            "prompt": given if isinstance(given, str) else list(given),
            "has_new_line": "\n" in choice.text(),
            "truncated": False,
            "stop_type": "limit" if end.reason == "length" else "word" if isinstance(end.stop, str) else "eos",
            "stopping_word": end.stop if isinstance(end.stop, str) else "",
            "tokens_cached": len(self._prompt(choice)) + n_sampled,
            "timings": self.usage().timings(),
        }

    def _prompt(self, choice: Choice) -> tuple[int, ...]:
        return self.head.prompts[choice.index // self.request.params.n]


NATIVE = Interface("cmpl-", parse_native, NativeEncoder)
INFILL = Interface("cmpl-", parse_infill, NativeEncoder)
