"""The prompt builder of chat requests: makes the prompt, the constraint, the reasoning limit and the output parsers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..api.chat import ChatRequest
from ..core.events import ContentDelta, OutputEvent, ReasoningDelta
from ..engine import GenerationRequest
from .constraint import constraint_for
from .dialects import Dialect
from .dialects.parser import OutputParser
from .errors import wire_errors
from .model import Model, sequences_of
from .output import Output
from .prompt.marked import parts_of
from .prompt.template import ChatTemplate
from .reasoning import budget_tracker, parser_options
from .run import Prepared


def prepare_chat(model: Model, request: ChatRequest) -> Prepared:
    """Render the prompt, and make the `n` sequences that share it.

    Raises:
        ApiError: This model cannot run the request.
    """
    with wire_errors(model.engine, "messages"):
        template, visible_tokens = model.template_for(request.chat_template)
        rendered = _rendered(model, request, template)
        text = str.__str__(rendered)
        prompt = model.tokenize_prompt(parts_of(rendered, template.special), request.params)
        dialect = template.dialect
        sequence = GenerationRequest(
            *model.prompt_and_params(prompt, request.params),
            visible_tokens=visible_tokens,
            constraint=constraint_for(request, template, text),
            new_budget_tracker=budget_tracker(request, dialect, text, model.tokenize, model.reasoning),
            reports_progress=request.stream and request.return_progress,
        )
        n = request.params.n
        first, *others = sequences_of(sequence, n)
        # All choices have the same prompt, so only the first sequence computes its log probabilities.
        params = replace(first.params, prompt_logprobs=None)
        return Prepared(
            sequences=[first, *(replace(other, params=params) for other in others)],
            outputs=[_output(request, dialect, text, i) for i in range(n)],
            per_prompt=n,
            prompt_field="messages",
        )


def prompt_text(model: Model, request: ChatRequest) -> str:
    """The rendered prompt as plain text, without the distinction between user text and text of the template.

    Raises:
        BadRequest: The template refuses the request.
    """
    with wire_errors(model.engine, "messages"):
        return str.__str__(_rendered(model, request, model.template_for(request.chat_template)[0]))


def prompt_length(model: Model, request: ChatRequest) -> int:
    """The number of tokens of the prompt, which may be larger than the context.

    Raises:
        BadRequest: The template refuses the request.
    """
    with wire_errors(model.engine, "messages"):
        template = model.template_for(request.chat_template)[0]
        parts = parts_of(_rendered(model, request, template), template.special)
        return sum(len(model.tokenize(*part)) for part in parts)


def _rendered(model: Model, request: ChatRequest, template: ChatTemplate) -> str:
    return template.render(
        request.messages,
        tools=request.tools if model.keep_tools or request.tool_choice != "none" else (),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        prefix=request.prefix,
        variables=request.template_vars,
    )


def _output(request: ChatRequest, dialect: Dialect, prompt: str, index: int) -> Output:
    options = parser_options(request, dialect, prompt)
    parser = OutputParser(dialect, **options)
    if request.continue_final_message == "reasoning_content":
        # rstrip(), since the parser would hold back white space at the end, and emit it with the first output text.
        parser.feed(request.prefill[0].rstrip())

    def first_events(tokens: object) -> Iterator[OutputEvent]:
        reasoning, text = request.prefill if request.echo else ("", "")
        if reasoning:
            yield ReasoningDelta(reasoning)
        if text:
            yield ContentDelta(text)

    return Output(
        parser,
        stop=request.params.stop,
        first_events=first_events,
        single_call=not request.parallel_tool_calls,
        reasoning_tags=dialect.reasoning if request.keeps_reasoning or not request.splits_reasoning else None,
        splits_reasoning=request.splits_reasoning,
        reports_prompt=index == 0 and request.params.prompt_logprobs is not None,
    )
