"""Starts chat requests: makes the prompt, the constraint, the budget of the reasoning and the output parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..api.chat import ChatRequest
from ..core.events import ContentDelta, OutputEvent, PromptLogprobs, ReasoningDelta
from .constraint import constraint_for
from .dialects import Dialect
from .dialects.parser import OutputParser, ReasoningTracker
from .model import Model
from .prompt.marked import parts_of
from .prompt.template import ChatTemplate
from .run import GenerationRun, Output, PromptTokens, copies, wire_errors


def start_chat(model: Model, request: ChatRequest, id_prefix: str) -> GenerationRun:
    """Render the prompt, and submit the `n` sequences that share it.

    Raises:
        ApiError: This model cannot run the request.
    """
    with wire_errors("messages"):
        template = model.template_for(request.chat_template)
        prompt = _rendered(model, request, template)
        is_continued = request.continue_final_message == "reasoning_content"
        # The output that continues reasoning is parsed as if the prompt ended with the start tag.
        parser_prompt = template.dialect.reasoning.start if is_continued else str.__str__(prompt)
        parsing = {
            "tools": request.callable_tools,
            "prompt": parser_prompt,
            "is_constrained": request.response_format is not None,
        }
        sequence = model.sequence(
            model.tokenize_prompt(parts_of(prompt, template.special), request.params),
            request.params,
            visible_tokens=template.visible_tokens,
            constraint=constraint_for(request, template, parser_prompt),
            new_budget_tracker=budget_tracker(model, request, template.dialect, parsing),
            reports_progress=request.stream and request.return_progress,
        )
    first, *others = copies(sequence, request.params.n)
    # All choices have the same prompt, so only the first sequence computes its log probabilities.
    params = replace(first.params, prompt_logprobs=None)
    sequences = [first, *(replace(other, params=params) for other in others)]
    outputs = [_output(request, template.dialect, parsing, i) for i in range(len(sequences))]
    return GenerationRun(model, sequences, outputs, id_prefix, n_each=len(sequences), prompt_field="messages")


def prompt_text(model: Model, request: ChatRequest) -> str:
    """The rendered prompt as plain text. Raises BadRequest if the template refuses the request."""
    with wire_errors("messages"):
        return str.__str__(_rendered(model, request, model.template_for(request.chat_template)))


def prompt_length(model: Model, request: ChatRequest) -> int:
    """The number of tokens of the prompt, also beyond the context. Raises BadRequest as `prompt_text` does."""
    with wire_errors("messages"):
        template = model.template_for(request.chat_template)
        parts = parts_of(_rendered(model, request, template), template.special)
        return sum(len(model.engine.tokenize(text, parse_special=is_markup)) for text, is_markup in parts)


def _rendered(model: Model, request: ChatRequest, template: ChatTemplate) -> str:
    return template.render(
        request.messages,
        tools=request.tools if model.keep_tools or request.tool_choice != "none" else (),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        prefix=request.prefix,
        variables=request.template_vars,
    )


def budget_tracker(
    model: Model, request: ChatRequest, dialect: Dialect, parsing: Mapping[str, Any]
) -> Callable[[], ReasoningTracker] | None:
    """Makes the tracker of the reasoning budget of a request, in the engine process; None: no limit.

    `parsing` has the options of the parser. The budget message is tokenized without control tokens, and its tokens
    count as completion tokens.
    """
    max_tokens = model.reasoning_budget if request.reasoning_budget is None else request.reasoning_budget
    if max_tokens is None or max_tokens < 0:
        return None
    message = request.reasoning_budget_message
    message = model.reasoning_message if message is None else message
    closing = (*model.engine.tokenize(message, parse_special=False), *model.engine.tokenize(dialect.reasoning.end))
    return partial(ReasoningTracker, dialect, parsing, max_tokens, closing)


def _output(request: ChatRequest, dialect: Dialect, parsing: Mapping[str, Any], index: int) -> Output:
    parser = OutputParser(dialect, **parsing)
    if request.continue_final_message == "reasoning_content":
        # rstrip(), since the parser would hold back white space at the end, and emit it with the first output text.
        parser.feed(request.prefill[0].rstrip())

    def first_events(tokens: PromptTokens) -> Iterator[OutputEvent]:
        if index == 0 and request.params.prompt_logprobs is not None:
            yield PromptLogprobs(tokens())
        reasoning, text = request.prefill if request.echo else ("", "")
        if reasoning:
            yield ReasoningDelta(reasoning)
        if text:
            yield ContentDelta(text)

    # Reasoning that is not split from the content is content, between its tags.
    tags = None if request.splits_reasoning else dialect.reasoning
    return Output(parser, stop=request.params.stop, first_events=first_events, reasoning_tags=tags)
