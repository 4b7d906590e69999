"""A loaded model: its engine, chat template and sampling defaults, which complete the parameters of a request."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..core import errors
from ..core.params import GenerationParams
from ..engine.engine_client import EngineClient
from ..engine.values import Adapters, Prompt, SequenceRequest, check_queue
from .prompt.jinja import TemplateError
from .prompt.template import CHATML, ChatTemplate

log = logging.getLogger("localchat.server")

MAX_TEMPLATES = 8  # Cached templates of requests (`chat_template`). Compiling and testing one takes milliseconds.


class Model:
    def __init__(
        self,
        name: str,
        engine: EngineClient,
        *,
        max_tokens: int | None = None,
        defaults: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        keep_tools: bool = False,
        reasoning_budget: int | None = None,
        reasoning_message: str = "",
    ) -> None:
        """`defaults` are sampling values that override those of the model file. `chat_template` replaces its templates.

        A template that cannot be used is an error of chat requests alone: see `template_for`.
        """
        self.name = name
        self.engine = engine
        self.adapters: Adapters = ()  # Those of requests without `lora`.
        self.keep_tools = keep_tools  # Whether the prompt shows the tools even if `tool_choice` is "none".
        # For requests that set none: the limit of reasoning tokens, the text that is appended to it, and the length
        # limit. None: no limit.
        self.reasoning_budget = reasoning_budget
        self.reasoning_message = reasoning_message
        self.max_tokens = max_tokens
        self.sampling = replace(engine.facts.sampling, **(defaults or {}))
        self.has_template = bool(chat_template or engine.facts.chat_template)
        self.template_source = chat_template or engine.facts.chat_template or CHATML
        self._template = self._template_or_error(self.template_source)
        # Some files have a second template, for requests with tools.
        tool_source = None if chat_template else engine.facts.metadata.get("tokenizer.chat_template.tool_use")
        self._tool_template = self._template_or_error(tool_source) if tool_source else self._template
        self._template_of_request = functools.lru_cache(MAX_TEMPLATES)(
            functools.partial(self._compiled, is_trusted=False)
        )

    def named(self, name: str) -> Model:
        """This model, or one that has its engine and an adapter, if the name is that of the adapter."""
        for i, adapter in enumerate(self.engine.facts.adapters):
            if adapter.name.casefold() == name.strip().casefold():
                model = copy.copy(self)  # It has the templates of this one, also those of requests.
                model.name, model.adapters = adapter.name, self._checked_adapters([(i, adapter.scale)], "model")
                return model
        return self

    def _checked_adapters(self, scales: Iterable[tuple[int, float]], field: str) -> Adapters:
        """A set of adapters, by their ids and scales. Raises BadRequest if they are not there or cannot be used."""
        adapters = self.engine.facts.adapters
        for id, _ in scales:
            if id >= len(adapters):
                raise errors.field_error(field, f"has the id {id}, and the model has {len(adapters)} adapters")
            if problem := adapters[id].problem:
                raise errors.UnusableAdapter(f"the adapter {adapters[id].name!r} cannot be used: {problem}", field)
        return tuple(sorted((id, scale) for id, scale in scales if scale))

    def check_queue(self, n_sequences: int, field: str) -> None:
        """Refuse a request for so many sequences, which `field` asks for, if the engine would refuse it now."""
        max_open = self.engine.max_open
        if n_sequences > max_open:
            problem = f"requests {n_sequences} sequences, and this server accepts {max_open} at once, running or queued"
            hint = "request fewer, or start the server with a larger --queue"
            raise errors.field_error(field, f"{problem}: {hint}")
        check_queue(n_sequences, self.engine.n_open, max_open)

    def template_for(self, chat_template: str | None, *, has_tools: bool = False) -> ChatTemplate:
        """The template of a request, or that of the model if `chat_template` is None.

        `has_tools` is whether the prompt shows tools. Raises TemplateError, a BadRequest, if the template is invalid.
        """
        if chat_template is not None:
            try:
                return self._template_of_request(chat_template)
            except TemplateError as error:
                error.param = "chat_template"
                raise
        template = self._tool_template if has_tools else self._template
        if isinstance(template, TemplateError):
            raise TemplateError(f"{template.message}; completions and embeddings of this model work")
        return template

    @property
    def usable_templates(self) -> list[ChatTemplate]:
        """The templates of the model that can be used: one, two or none."""
        templates = dict.fromkeys((self._template, self._tool_template))
        return [template for template in templates if isinstance(template, ChatTemplate)]

    def sequence(self, prompt: Prompt, params: GenerationParams, **options: Any) -> SequenceRequest:
        """A sequence for the engine, with defaults for the values that the request does not set.

        `options` are other fields of it. Raises BadRequest for token ids that are not in the vocabulary.
        """
        n_vocab = self.engine.facts.n_vocab
        check_in_vocabulary(params.stop_token_ids, n_vocab, params.at("stop_token_ids"))
        check_in_vocabulary(
            (key for key, _ in params.logit_bias if isinstance(key, int)), n_vocab, params.at("logit_bias")
        )
        sampling = replace(self.sampling, **{**params.sampling, "logit_bias": params.logit_bias})
        max_tokens = self.max_tokens if params.max_tokens is None else params.max_tokens
        options["adapters"] = (
            self.adapters if params.lora is None else self._checked_adapters(params.lora, params.at("lora"))
        )
        return SequenceRequest(prompt, replace(params, max_tokens=max_tokens), sampling, **options)

    def _template_or_error(self, source: str) -> ChatTemplate | TemplateError:
        """The template with this source, or why it cannot be used."""
        try:
            return self._compiled(source)
        except TemplateError as error:
            log.warning("%s has no chat: %s", self.name, ascii(error.message)[1:-1])
            return error

    def _compiled(self, source: str, *, is_trusted: bool = True) -> ChatTemplate:
        facts = self.engine.facts
        return ChatTemplate(
            source,
            bos_token=facts.bos,
            eos_token=facts.eos,
            add_bos=facts.add_bos,
            special_texts=facts.special_tokens,
            tokenize=self.engine.tokenize,
            is_trusted=is_trusted,
        )


def check_in_vocabulary(token_ids: Iterable[int], n_vocab: int, name: str) -> None:
    """Raise BadRequest for the field `name` if any token id is not in the vocabulary."""
    highest = max(token_ids, default=0)
    if highest >= n_vocab:
        problem = f"has the token id {highest}; the token ids of this model are 0 to {n_vocab - 1}"
        raise errors.field_error(name, problem)
