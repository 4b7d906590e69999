"""Starts requests for text: makes the prompts, the constraint, the budget of the reasoning and the parsers.

`start_chat` renders messages. `start_text` takes the prompts of text completions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ...core import errors
from ...core.events import ContentDelta, Event, ReasoningDelta
from ...core.mailbox import Mailbox
from ...core.media import MARKER, MediaFile
from ...core.request import ChatRequest, CompletionRequest, Input
from ...engine.values import Prompt, ReasoningBudget, SequenceRequest, TextPart, TokenTexts
from ..constraints.constraint import constraint_for, plain_constraint
from ..dialects import Dialect
from ..dialects.dialect import PromptEnd, ReasoningStart
from ..dialects.parser import OutputParser
from ..model import Model
from ..prompt.control_tokens import without_markers
from ..prompt.template import ChatTemplate
from .attachments import read_media
from .completion_prompts import completion_prompt
from .generation import GenerationRun
from .output_reader import OutputReader, PlainText


def start_chat(model: Model, request: ChatRequest, id_prefix: str, mailbox: Mailbox) -> GenerationRun:
    """Start the `n` sequences of a prompt. Raises ApiError if they cannot run, and what the mailbox raises."""
    model.check_queue(request.n_choices, "n")
    request, media = read_media(model, request, mailbox)
    rendered = _rendered(model, request)
    template = rendered.template
    prompt_end = _prompt_end(request, rendered)
    with errors.adding_field(request.messages_field):
        sequence = model.sequence(
            tuple(_parts(rendered, media)),
            request.params,
            prompt_field=request.messages_field,
            returns_ids=request.return_token_ids,
            visible_tokens=template.visible_tokens,
            constraint=constraint_for(request, template, prompt_end.reasoning),
            reasoning_budget=reasoning_budget(model, request, template.dialect, prompt_end.reasoning),
            reports_progress=request.stream and request.return_progress,
        )
    # Raw output begins with the prefill as it is in the prompt, with the tags of reasoning.
    reasoning, text = ("", rendered.rendered_prefill) if request.reasoning_format == "none" else request.prefill
    echo = [event for event in (ReasoningDelta(reasoning), ContentDelta(text)) if request.echo and event.text]
    n = request.params.n
    outputs = [
        OutputReader(copy, model.engine.texts, _new_parser(request, template.dialect, prompt_end), echo)
        for copy in _copies(sequence, n)
    ]
    return GenerationRun(model, outputs, id_prefix, mailbox, n_each=n, prompt_field=request.messages_field)


def _prompt_end(request: ChatRequest, rendered: _RenderedPrompt) -> PromptEnd:
    """What the output begins in. One that continues reasoning begins as if the prompt ended with the start tag.

    The parser of that output then gets the reasoning of the prompt first: see `_new_parser`.
    """
    dialect = rendered.template.dialect
    return dialect.prompt_end(
        dialect.reasoning.start if request.continues_reasoning else without_markers(rendered.prompt)
    )


def _new_parser(request: ChatRequest, dialect: Dialect, prompt_end: PromptEnd) -> OutputParser:
    parser = dialect.parser(
        dialect,
        tools=request.callable_tools,
        prompt_end=prompt_end,
        is_constrained=request.response_format is not None,
        is_continued=bool(request.prefill[1]),
        is_raw=request.reasoning_format == "none",
    )
    if request.continues_reasoning:
        # Its events are left out, as `echo` has the prefill. Without rstrip(), the parser would hold white space at the
        # end back, to emit it in the output.
        parser.feed(request.prefill[0].rstrip())
    return parser


def _copies(sequence: SequenceRequest, n: int) -> list[SequenceRequest]:
    """`n` sequences of a prompt, each with the next seed: equal seeds make equal texts. The first reports progress."""
    first_seed = sequence.sampling.seed
    seeds = [None if first_seed is None else first_seed + i for i in range(1, n)]
    samplings = (replace(sequence.sampling, seed=seed) for seed in seeds)
    return [sequence, *(replace(sequence, sampling=sampling, reports_progress=False) for sampling in samplings)]


def prompt_text(model: Model, request: ChatRequest, mailbox: Mailbox) -> str:
    """The rendered prompt as plain text. Raises BadRequest if the template refuses the request."""
    request, _ = read_media(model, request, mailbox)
    return MARKER.sub("<__media__>", without_markers(_rendered(model, request).prompt))


def prompt_length(model: Model, request: ChatRequest, mailbox: Mailbox) -> int:
    """The number of tokens of the prompt, even if it exceeds the context. Raises BadRequest like `prompt_text`."""
    request, media = read_media(model, request, mailbox)
    rendered = _rendered(model, request)
    with errors.adding_field(request.messages_field):
        return model.engine.count_tokens(_parts(rendered, media), mailbox)


class _RenderedPrompt(NamedTuple):
    prompt: str  # With the markers of control tokens, and those of images and sounds.
    template: ChatTemplate
    rendered_prefill: str  # The assistant prefill at the end of the prompt, with the texts that the template adds.


def _rendered(model: Model, request: ChatRequest) -> _RenderedPrompt:
    continues_message = bool(request.continue_final_message)
    with errors.adding_field(request.messages_field):
        tools = request.tools if model.keep_tools or request.tool_choice != "none" else ()
        template = model.template_for(request.chat_template, has_tools=bool(tools))
        prompt = template.render(
            request.messages[:-1] if continues_message else request.messages,
            tools=[_shown(tool) for tool in tools],
            add_generation_prompt=request.add_generation_prompt or continues_message,
            variables=request.chat_template_kwargs,
            paths=request.message_paths,
        )
    n_rendered, (reasoning, text) = len(prompt), request.prefill
    if request.continues_reasoning or reasoning or text:
        prompt = template.prefilled(prompt, reasoning, None if request.continues_reasoning else text)
    return _RenderedPrompt(prompt, template, without_markers(prompt[n_rendered:]))


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    """The tool for the prompt. `strict` is for the server; programs send it through some interfaces and not others."""
    return {**tool, "function": {name: value for name, value in tool["function"].items() if name != "strict"}}


def _parts(rendered: _RenderedPrompt, media: Mapping[int, MediaFile]) -> Iterator[TextPart | MediaFile]:
    """The parts of a prompt to tokenize, and the media between them."""
    prompt, template, _ = rendered
    start = 0
    for marker in MARKER.finditer(prompt) if media else ():
        yield from template.parts(prompt[start : marker.start()])
        yield media[int(marker[1])]
        start = marker.end()
    yield from template.parts(prompt[start:])


def reasoning_budget(
    model: Model, request: ChatRequest, dialect: Dialect, reasoning: ReasoningStart
) -> ReasoningBudget | None:
    """The budget of the reasoning; None: no limit. The budget message yields no control tokens."""
    n_tokens = model.reasoning_budget if request.reasoning_budget is None else request.reasoning_budget
    if n_tokens is None or n_tokens < 0:
        return None
    message = request.reasoning_budget_message
    message = model.reasoning_message if message is None else message
    return ReasoningBudget(
        n_tokens,
        dialect.reasoning_markers(is_open=reasoning == "open", has_tools=bool(request.callable_tools)),
        closing=((message, False), (dialect.reasoning.closing, True)),
    )


def start_text(model: Model, request: CompletionRequest, id_prefix: str, mailbox: Mailbox) -> GenerationRun:
    """Start `n` sequences for each prompt. Raises ApiError if they cannot run, and what the mailbox raises."""
    model.check_queue(request.n_choices, "prompt" if len(request.prompt) > 1 else "n")
    n, constraint = request.params.n, plain_constraint(request)
    with errors.adding_field("prompt"):
        prompts = [completion_prompt(model.engine, request, prompt, mailbox) for prompt in request.prompt]
        echoes = [_echo(model, request, *pair, mailbox) for pair in zip(request.prompt, prompts)]
        sequences = [
            model.sequence(
                prompt,
                request.params,
                prompt_field=errors.item_path("prompt", request.prompt, i),
                add_bos=request.add_special_tokens,
                returns_ids=request.return_token_ids,
                constraint=constraint,
                reports_progress=request.stream and request.return_progress,
            )
            for i, prompt in enumerate(prompts)
        ]
    outputs = [
        OutputReader(copy, model.engine.texts, PlainText(), _echo_events(echo, model.engine.texts))
        for sequence, echo in zip(sequences, echoes)
        for copy in _copies(sequence, n)
    ]
    return GenerationRun(model, outputs, id_prefix, mailbox, n_each=n, prompt_field="prompt")


def _echo(model: Model, request: CompletionRequest, prompt: Input, parts: Prompt, mailbox: Mailbox) -> Input:
    """What the output repeats of a prompt, whose `parts` the engine gets; empty unless the request wants it back.

    The prompt may be cut by `truncate_prompt_tokens`. If so, what is left of a text are token ids.
    """
    n_kept = request.params.truncate_prompt_tokens
    if not request.echo:
        return ""
    if not n_kept:
        return prompt
    if not isinstance(prompt, str):
        return prompt[-n_kept:]
    tokens = model.engine.tokenize_prompt(parts, mailbox, add_bos=request.add_special_tokens)
    return prompt if len(tokens) <= n_kept else tuple(tokens[-n_kept:])


def _echo_events(echo: Input, texts: TokenTexts) -> Iterator[Event]:
    """The event of an echo. It is read when the engine has checked the token ids."""
    if not isinstance(echo, str):
        echo = b"".join(texts.piece(token, True) for token in echo).decode("utf-8", "replace")
    if echo:
        yield ContentDelta(echo)
