"""Text completions: POST /v1/completions (OpenAI), /completion and /infill (llama.cpp).

Prompts are plain text or token ids, not messages. The index of a choice counts over all prompts of a request.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import BadRequest, field_error
from ..core.events import OutputEnd, OutputToken, ResponseHead
from ..core.fields import Fields, first_given, refuse_unsupported
from ..core.params import MAX_TOP_LOGPROBS, GenerationParams, read_n_probs, read_params
from ..core.request import CompletionRequest
from .chat import TextFields, read_text_request
from .content import read_inputs
from .encoder import Block, Choice, ChoicesEncoder, Encoder, UsageOf, floored, logprob_entry

MAX_CHOICES = 128  # The limit of sequences per request, over all prompts.


def parse_completion(body: Fields) -> CompletionRequest:
    n = body.integer("n", 1, MAX_CHOICES) or 1
    refuse_unsupported(body, {"best_of": (n,), "post_sampling_probs": (False,)})
    body.accept(("include_reasoning",))  # The output of a plain prompt is not parsed.
    top_logprobs = first_given([body.integer("logprobs", 0, MAX_TOP_LOGPROBS), read_n_probs(body)])
    request = CompletionRequest(
        prompt=read_inputs(body, "prompt", MAX_CHOICES // n),
        suffix=body.text("suffix") or None,
        params=read_params(body, n=n, top_logprobs=top_logprobs, least_tokens=0),
        **read_text_request(body),
        add_special_tokens=body.boolean("add_special_tokens") is not False,
    )
    if request.echo and top_logprobs is not None:
        name = "n_probs" if body.get("logprobs") is None else "logprobs"
        message = f"log probabilities of the prompt are not supported: leave out 'echo' or '{name}'"
        raise BadRequest(message, name)
    if request.suffix is not None and not all(isinstance(prompt, str) for prompt in request.prompt):
        raise field_error("suffix", "needs a 'prompt' that is text, not token ids")
    return request


def parse_native(body: Fields) -> CompletionRequest:
    """The request in a body of llama.cpp's /completion."""
    n = first_given([body.integer(name, 1, MAX_CHOICES) for name in ("n_cmpl", "n")]) or 1
    return CompletionRequest(prompt=read_inputs(body, "prompt", MAX_CHOICES // n), **_read_native(body, n))


def parse_infill(body: Fields) -> CompletionRequest:
    """The request in a body of /infill, which editors send for fill-in-the-middle."""
    before, after = body.text("input_prefix"), body.text("input_suffix")
    if before is None and after is None:
        body.refuse("input_prefix", "the text before the gap")
    files = body.objects("input_extra")
    return CompletionRequest(
        prompt=(before or "",),
        suffix=after or "",
        suffix_field="input_suffix",
        input_extra=tuple((file.text("filename") or "file", file.required_text("text")) for file in files),
        begun=body.text("prompt") or "",
        **_read_native(body, 1),
    )


class _NativeFields(TextFields):
    params: GenerationParams


def _read_native(body: Fields, n: int) -> _NativeFields:
    body.accept(("include_reasoning",))  # The output of a plain prompt is not parsed.
    lengths = ("n_predict", "max_completion_tokens", "max_tokens")
    params = read_params(body, n=n, top_logprobs=read_n_probs(body), least_tokens=0, lengths=lengths)
    return {"params": params, **read_text_request(body)}


class CompletionEncoder(ChoicesEncoder[CompletionRequest]):
    """Encodes a text completion. In a stream, a separate chunk has the end of each choice."""

    id_prefix = "cmpl-"
    kind = chunk_kind = "text_completion"
    empty: Mapping[str, Any] = {"text": ""}

    def __init__(self, head: ResponseHead, request: CompletionRequest, usage: UsageOf) -> None:
        super().__init__(head, request, usage)
        # For each choice the offset of the next token. One that completes a character has the offset of the character.
        self._offsets = [0] * len(self.choices)
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self.choices]
        # The choices without a chunk so far. The first chunk of each has the token ids of the prompt.
        self._new = set(range(request.n_choices)) if request.return_token_ids else set()

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        self.emit_text(choice, block.kind, text, lambda text: {"text": text})

    def ended(self, choice: Choice) -> None:
        self.emit_choice(choice, self.empty)

    def whole(self, choice: Choice) -> dict[str, Any]:
        return {"text": choice.text()}

    def choice_body(self, choice: Choice, text: Mapping[str, Any]) -> dict[str, Any]:
        body = super().choice_body(choice, text)
        if choice.index in self._new:
            self._new.remove(choice.index)
            body["prompt_token_ids"] = self.head.prompts[choice.index // self.request.params.n]
        return body

    def logprobs(self, choice: Choice, sampled: Sequence[OutputToken]) -> dict[str, Any] | None:
        """Four lists with an entry for each token."""
        tokens = list(sampled)
        if choice.end is not None and choice.end.last is not None:
            # The token that ended the output is in the lists, but its text is not part of the output.
            tokens.append(replace(choice.end.last, piece=b""))
        lists: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            name, value, top = self._name(token), floored(token.logprob), dict[str, float]()
            # For tokens with equal text, keep the likeliest. As in OpenAI's API, the sampled token is included.
            for other in token.top:
                top.setdefault(self._name(other), floored(other.logprob))
            top[name] = value
            for entries, entry in zip(lists.values(), (name, value, top, self._offsets[choice.index])):
                entries.append(entry)
            self._offsets[choice.index] += len(self._decoders[choice.index].decode(token.piece))
        return lists if tokens else None

    def _name(self, token: OutputToken) -> str:
        """The text of a token. As in OpenAI's API, a token that is not valid UTF-8 is shown as "bytes:\\x.."."""
        if self.request.return_tokens_as_token_ids:
            return f"token_id:{token.id}"
        try:
            return token.piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.piece)


class NativeEncoder(Encoder[CompletionRequest]):
    """Encodes chunks of text, of which the last one of each output has the totals and no text, or one body."""

    id_prefix = "cmpl-"

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        if self.request.stream:
            self.emit(self._chunk(choice, text))

    def progress(self, choice: Choice, progress: Mapping[str, Any]) -> None:
        self.emit({**self._chunk(choice, ""), **progress})

    def ended(self, choice: Choice) -> None:
        if self.request.stream:
            self.emit(self._last(choice, ""))

    def body(self) -> Any:
        bodies = [self._last(choice, choice.text()) for choice in self.choices]
        return bodies[0] if len(bodies) == 1 else bodies

    def _chunk(self, choice: Choice, text: str) -> dict[str, Any]:
        """A chunk with this text, and the tokens since the last chunk."""
        params, usage = self.request.params, self.usage(choice.index)
        tokens = choice.take_tokens()
        scored = [logprob_entry(token, after_sampling=params.post_sampling_probs, with_id=True) for token in tokens]
        return {
            "index": choice.index, "content": text, "stop": False, "id_slot": -1,
            "tokens": [token.id for token in tokens] if self.request.return_token_ids else [],
            "tokens_predicted": usage.n_completion, "tokens_evaluated": usage.n_prompt,
            **({"completion_probabilities": scored} if params.top_logprobs is not None and scored else {}),
        }  # fmt: skip

    def _last(self, choice: Choice, text: str) -> dict[str, Any]:
        end, usage = choice.end or OutputEnd("stop"), self.usage(choice.index)
        prompt = self.request.prompt[choice.index // self.request.params.n]
        return {
            **self._chunk(choice, text),
            "stop": True, "model": self.head.model, "generation_settings": self.head.sampling.fields(),
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "has_new_line": "\n" in choice.text(), "truncated": False,
            "stop_type": "limit" if end.reason == "length" else "word" if isinstance(end.stop, str) else "eos",
            "stopping_word": end.stop if isinstance(end.stop, str) else "",
            "tokens_cached": usage.n_prompt + usage.n_completion, "timings": self.usage().timings(),
        }  # fmt: skip
