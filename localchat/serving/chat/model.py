"""A loaded model: its engine, chat template and sampling defaults, which complete the parameters of a request."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..api.models import model_body
from ..core import errors
from ..core.params import GenerationParams, SamplingParams
from ..engine import AnyEngine, GenerationRequest
from .prompt.sandbox import TemplateError
from .prompt.template import ChatTemplate
from .reasoning import ReasoningDefaults

# The number of cached templates from requests (`chat_template`). Compiling and testing one takes some milliseconds.
MAX_TEMPLATES = 8


class TemplateTokens(NamedTuple):
    """A chat template, and the tokens that the model generates around tool calls and reasoning."""

    template: ChatTemplate
    visible: frozenset[int]
    """The tokens of the markers, among them control tokens, which the output text would otherwise leave out."""


class Model:
    """A loaded model under its public name."""

    def __init__(
        self,
        name: str,
        engine: AnyEngine,
        *,
        max_tokens: int | None = None,
        defaults: Mapping[str, Any] | None = None,
        keep_tools: bool = False,
        reasoning: ReasoningDefaults | None = None,
    ) -> None:
        """Compile the chat template of the model.

        Args:
            max_tokens: The length limit of requests that set none; None: what is left of the context.
            defaults: Sampling values that override those of the model file. Values of a request override both.
            keep_tools: Whether the prompt shows the tools even if `tool_choice` is "none".
            reasoning: The reasoning budget of requests that set none; None: no budget.
        """
        self.name = name
        self.engine = engine
        self.keep_tools = keep_tools
        self.reasoning = reasoning or ReasoningDefaults()
        self.created = int(time.time())
        self.sampling = replace(engine.facts.sampling, **(defaults or {}))
        self.max_tokens = max_tokens
        self._own_template = self._compiled(engine.facts.chat_template)
        self._compiled_once = functools.lru_cache(MAX_TEMPLATES)(self._compiled)

    @property
    def template(self) -> ChatTemplate:
        """The model's own template."""
        return self._own_template.template

    def body(self) -> dict[str, Any]:
        """The model's entry in the list of models."""
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

    def template_caps(self) -> dict[str, bool]:
        """What the chat template supports, with llama.cpp's names."""
        found = self.template.capabilities
        return {
            "supports_string_content": not found.typed_content,
            "supports_typed_content": found.typed_content,
            "supports_system_role": found.has_system_role,
            "supports_tools": found.shows_tools,
            "supports_tool_calls": found.shows_calls,
            "supports_parallel_tool_calls": found.shows_calls and not found.one_call,
            "supports_object_arguments": not found.text_arguments,
            "supports_preserve_reasoning": found.shows_reasoning,
        }

    def template_for(self, chat_template: str | None) -> TemplateTokens:
        """The template of a request, or the model's own template if `chat_template` is None.

        Raises:
            BadRequest: The template is invalid.
        """
        if chat_template is None:
            return self._own_template
        try:
            return self._compiled_once(chat_template)
        except TemplateError as error:
            raise errors.BadRequest(str(error), "chat_template") from error

    def tokenize(self, text: str, parse_special: bool) -> list[int]:
        return self.engine.tokenize(text, parse_special=parse_special)

    def tokenize_prompt(
        self, parts: Iterable[tuple[str, bool]], params: GenerationParams, *, add_bos: bool = False
    ) -> tuple[int, ...]:
        """The tokens of a prompt in parts, each with its `parse_special`.

        Raises:
            PromptTooLong: The prompt has many more tokens than the context holds.
        """
        if params.n_prompt_kept:  # There is no limit, since `prompt_and_params` keeps only the end of the prompt.
            bos = self.engine.tokenize("", add_bos=True) if add_bos else []
            return (*bos, *(token for part in parts for token in self.tokenize(*part)))
        return tuple(self.engine.tokenize_prompt(parts, add_bos=add_bos))

    def prompt_and_params(
        self, prompt: tuple[int, ...], params: GenerationParams
    ) -> tuple[tuple[int, ...], GenerationParams, SamplingParams]:
        """The prompt, parameters and sampling of a GenerationRequest, with defaults for values that are not set.

        Raises:
            BadRequest: The request has a token id that is not in the model's vocabulary.
        """
        self._check_tokens("stop_token_ids", params.stop_token_ids)
        sampling = {**params.sampling, "logit_bias": tuple(self._biases(params))}
        max_tokens = self.max_tokens if params.max_tokens is None else params.max_tokens
        kept = prompt[-params.n_prompt_kept :]
        return kept, replace(params, max_tokens=max_tokens), replace(self.sampling, **sampling)

    def _compiled(self, source: str | None) -> TemplateTokens:
        facts = self.engine.facts
        template = ChatTemplate(
            source,
            bos_token=facts.bos,
            eos_token=facts.eos,
            add_bos=facts.add_bos,
            special_texts=facts.special_tokens,
        )
        # Only control tokens need an entry here. The other tokens of a marker are ordinary text.
        markers = (self.tokenize(marker, True) for marker in template.dialect.preserved)
        return TemplateTokens(template, frozenset(itertools.chain(*markers)))

    def _biases(self, params: GenerationParams) -> Iterator[tuple[int, float]]:
        """The biases by token id. The bias of a text applies to each token of the text."""
        for token, bias in params.logit_bias:
            tokens = self.tokenize(token, True) if isinstance(token, str) else [token]
            self._check_tokens("logit_bias", tokens)
            yield from ((id, bias) for id in tokens)

    def _check_tokens(self, param: str, tokens: Iterable[int]) -> None:
        n_vocab = self.engine.facts.n_vocab
        highest = max(tokens, default=0)
        if highest >= n_vocab:
            message = f"'{param}' has the token id {highest}; the token ids of this model are 0 to {n_vocab - 1}"
            raise errors.BadRequest(message, param)


def sequences_of(request: GenerationRequest, n: int) -> list[GenerationRequest]:
    """The `n` sequences of one prompt. Each has the next seed, since equal seeds generate equal texts."""
    seed = request.sampling.seed
    sequences = [request]
    for i in range(1, n):
        sampling = request.sampling if seed is None else replace(request.sampling, seed=seed + i)
        # The first sequence reports the progress of the prompt for all.
        sequences.append(replace(request, sampling=sampling, reports_progress=False))
    return sequences
