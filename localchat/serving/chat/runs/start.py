"""Starts requests for text: makes the prompts, the constraint, the budget of the reasoning and the parsers.

`start_chat` renders messages. `start_text` takes the prompts of text completions and fill-in-the-middle (FIM).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...core import errors
from ...core.events import ContentDelta, Event, ReasoningDelta
from ...core.mailbox import Mailbox
from ...core.media import IMAGE, MARKER, MAX_MEDIA, MediaFile, note_of, read_attachment, refuse_media
from ...core.request import ChatRequest, CompletionRequest, Input
from ...engine.engine_client import EngineClient
from ...engine.values import ModelFacts, Prompt, ReasoningBudget, SequenceRequest, TextPart, TokenTexts
from ..constraints.constraint import constraint_for, plain_constraint
from ..dialects import Dialect
from ..dialects.dialect import ReasoningStart
from ..dialects.parser import OutputParser
from ..model import Model
from ..prompt.control_tokens import without_markers
from ..prompt.template import ChatTemplate
from .generation import GenerationRun, Output, PlainText, naming_field

# Without a length limit, the output of a FIM prompt with other files has at least this share of the context.
_OUTPUT_SHARE = 4


def start_chat(model: Model, request: ChatRequest, id_prefix: str, mailbox: Mailbox) -> GenerationRun:
    """Start the `n` sequences of a prompt. Raises ApiError if they cannot run, and what the mailbox raises."""
    model.check_queue(request.n_choices, "n")
    request, media = _with_media(model, request, mailbox)
    prompt, template, prefill = _rendered(model, request)
    continues_reasoning = request.continue_final_message == "reasoning_content"
    # The output that continues reasoning is parsed as if the prompt ended with the start tag.
    prompt_end = template.dialect.prompt_end(
        template.dialect.reasoning.start if continues_reasoning else without_markers(prompt)
    )
    with naming_field("messages"):
        sequence = model.sequence(
            tuple(_parts(prompt, template, media)),
            request.params,
            prompt_field="messages",
            returns_ids=request.return_token_ids,
            visible_tokens=template.visible_tokens,
            constraint=constraint_for(request, template, prompt_end.reasoning),
            reasoning_budget=reasoning_budget(model, request, template.dialect, prompt_end.reasoning),
            reports_progress=request.stream and request.return_progress,
        )
    n = request.params.n

    def new_parser() -> OutputParser:
        parser = OutputParser(
            template.dialect,
            tools=request.callable_tools,
            prompt_end=prompt_end,
            is_constrained=request.response_format is not None,
            is_continued=bool(request.prefill[1]),
            is_raw=not request.splits_reasoning,
        )
        if continues_reasoning:
            # Without rstrip(), the parser would hold white space at the end back, to emit it in the output.
            parser.feed(request.prefill[0].rstrip())
        return parser

    reasoning, text = request.prefill if request.splits_reasoning else ("", prefill)
    echo = [event for event in (ReasoningDelta(reasoning), ContentDelta(text)) if request.echo and event.text]
    outputs = [Output(copy, model.engine.texts, new_parser(), echo) for copy in _copies(sequence, n)]
    return GenerationRun(model, outputs, id_prefix, mailbox, n_each=n, prompt_field="messages")


def _copies(sequence: SequenceRequest, n: int) -> list[SequenceRequest]:
    """`n` sequences of a prompt, each with the next seed: equal seeds make equal texts. The first reports progress."""
    first_seed = sequence.sampling.seed
    seeds = [None if first_seed is None else first_seed + i for i in range(1, n)]
    samplings = (replace(sequence.sampling, seed=seed) for seed in seeds)
    return [sequence, *(replace(sequence, sampling=sampling, reports_progress=False) for sampling in samplings)]


def prompt_text(model: Model, request: ChatRequest, mailbox: Mailbox) -> str:
    """The rendered prompt as plain text. Raises BadRequest if the template refuses the request."""
    request, _ = _with_media(model, request, mailbox)
    return MARKER.sub("<__media__>", without_markers(_rendered(model, request)[0]))


def prompt_length(model: Model, request: ChatRequest, mailbox: Mailbox) -> int:
    """The number of tokens of the prompt, even if it exceeds the context. Raises BadRequest like `prompt_text`."""
    request, media = _with_media(model, request, mailbox)
    prompt, template, _ = _rendered(model, request)
    with naming_field("messages"):
        return model.engine.count_tokens(_parts(prompt, template, media), mailbox)


def _with_media(model: Model, request: ChatRequest, mailbox: Mailbox) -> tuple[ChatRequest, Mapping[int, MediaFile]]:
    """The request, whose markers stand for images and sounds that the model can take, and these by their numbers.

    Notes replace the markers of the others in replayed messages.

    Raises:
        BadRequest: The model cannot take an image or a sound of a new message, or its file cannot be read.
        NotSupported: The library that reads it is not installed.
    """
    media: dict[int, MediaFile] = {}
    notes: dict[int, str] = {}

    def leave_out(i: int, error: errors.ApiError) -> None:
        attachment = request.attachments[i]
        if not attachment.is_replayed:
            raise error
        notes[i] = note_of(attachment.kind, error.message)

    modalities = model.engine.facts.modalities
    # Agents send a screenshot with each step. If there are too many files, the oldest replayed ones are left out.
    replayed = [i for i, attachment in enumerate(request.attachments) if attachment.is_replayed]
    too_old = set(replayed[: max(len(request.attachments) - MAX_MEDIA, 0)])
    for i, attachment in enumerate(request.attachments):
        if i in too_old:
            notes[i] = note_of(attachment.kind, f"the limit is {MAX_MEDIA} images and sounds, and newer ones follow")
        elif ("image" if attachment.kind == IMAGE else "audio") in modalities:
            try:
                media[i] = read_attachment(attachment)
            except errors.BadRequest as error:
                leave_out(i, error)
        elif attachment.is_replayed:
            notes[i] = note_of(attachment.kind)
        else:
            refuse_media(attachment.path, attachment.kind, modalities)
        if len(media) > MAX_MEDIA:
            text = f"the request has more than {MAX_MEDIA} images and sounds: '{attachment.path}' is number {i + 1}"
            raise errors.BadRequest(text, attachment.path)
    problems = model.engine.media_errors(media.values(), mailbox) if media else ()
    for i, problem in zip(list(media), problems):
        if problem is not None:
            leave_out(i, problem)
            del media[i]
    if not notes:
        return request, media

    def with_notes(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return MARKER.sub(lambda marker: notes.get(int(marker[1]), marker[0]), value)

    messages = ({name: with_notes(value) for name, value in message.items()} for message in request.messages)
    return replace(request, messages=tuple(messages)), media


def _parts(prompt: str, template: ChatTemplate, media: Mapping[int, MediaFile]) -> Iterator[TextPart | MediaFile]:
    """The parts of a prompt to tokenize, and the media between them."""
    start = 0
    for marker in MARKER.finditer(prompt) if media else ():
        yield from template.parts(prompt[start : marker.start()])
        yield media[int(marker[1])]
        start = marker.end()
    yield from template.parts(prompt[start:])


def _rendered(model: Model, request: ChatRequest) -> tuple[str, ChatTemplate, str]:
    """The prompt with its markers, its template, and the assistant prefill at its end."""
    continues_message = bool(request.continue_final_message)
    with naming_field("messages"):
        tools = request.tools if model.keep_tools or request.tool_choice != "none" else ()
        template = model.template_for(request.chat_template, has_tools=bool(tools))
        prompt = template.render(
            request.messages[:-1] if continues_message else request.messages,
            tools=tools,
            add_generation_prompt=request.add_generation_prompt or continues_message,
            variables=request.template_vars,
        )
    n_rendered, (reasoning, text) = len(prompt), request.prefill
    continues_reasoning = request.continue_final_message == "reasoning_content"
    if continues_reasoning or reasoning or text:
        prompt = template.prefilled(prompt, reasoning, None if continues_reasoning else text)
    return prompt, template, without_markers(prompt[n_rendered:])


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
        dialect.reasoning.start,
        tuple(end for end in dialect.reasoning_ends if request.callable_tools or end not in dialect.openers),
        closing=((message, False), (dialect.reasoning.end, True)),
        is_open=reasoning == "open",
        opens_anywhere=dialect.reasons_anywhere,
    )


def start_text(model: Model, request: CompletionRequest, id_prefix: str, mailbox: Mailbox) -> GenerationRun:
    """Start `n` sequences for each prompt. Raises ApiError if they cannot run, and what the mailbox raises."""
    model.check_queue(request.n_choices, "prompt" if len(request.prompts) > 1 else "n")
    n, params = request.params.n, request.params
    options = {
        "add_bos": request.adds_special,
        "returns_ids": request.return_token_ids,
        "constraint": plain_constraint(request),
        "reports_progress": request.stream and request.return_progress,
    }
    with naming_field("prompt"):
        prompts = (_prompt(model.engine, request, prompt, mailbox) for prompt in request.prompts)
        sequences = [
            model.sequence(prompt, params, prompt_field=errors.item_path("prompt", request.prompts, i), **options)
            for i, prompt in enumerate(prompts)
        ]
    outputs = [
        Output(copy, model.engine.texts, PlainText(), _echo(request, prompt, model.engine.texts))
        for sequence, prompt in zip(sequences, request.prompts)
        for copy in _copies(sequence, n)
    ]
    return GenerationRun(model, outputs, id_prefix, mailbox, n_each=n, prompt_field="prompt")


def _prompt(engine: EngineClient, request: CompletionRequest, prompt: Input, mailbox: Mailbox) -> Prompt:
    """The prompt of a completion as the engine takes it. With a suffix, it has the FIM tokens of the model."""
    if not isinstance(prompt, str):
        return prompt
    if request.suffix is None:
        return ((prompt, True),)
    facts = engine.facts
    if facts.fim_tokens is None:
        problem = "needs a model with fill-in-the-middle tokens, such as a coder model, and this one has none"
        raise errors.field_error(request.suffix_field, problem)
    before, after, middle = facts.fim_tokens
    gap: Prompt = (before, (prompt, False), after, (request.suffix, False), middle, (request.begun, False))
    first: Prompt = (("", False),)  # yields the tokens that the tokenizer adds, such as BOS
    files: Sequence[int] = ()
    if request.files:
        # Of the other files, only the end that fits is used, and leaves room for the output.
        n_gap = engine.count_tokens((*first, *gap), mailbox, add_bos=request.adds_special)
        max_tokens = request.params.max_tokens
        n_output = facts.n_ctx // _OUTPUT_SHARE if max_tokens is None else max(max_tokens, 1)
        n_left = facts.n_ctx - n_gap - n_output
        files = engine.tokenize_prompt(_file_parts(facts, request.files), mailbox)[-n_left:] if n_left > 0 else ()
    return (*first, *files, *gap)


def _file_parts(facts: ModelFacts, files: Sequence[tuple[str, str]]) -> Iterator[int | TextPart]:
    """The other files, each after its separator token and name. The header of the file to complete comes last."""
    if facts.fim_file is None:
        yield from ((f"{name}\n{text}\n\n", False) for name, text in files)
        return
    if facts.fim_repository is not None:
        yield from (facts.fim_repository, ("project\n", False))
    for name, text in files:
        yield from (facts.fim_file, (f"{name}\n{text}\n", False))
    yield from (facts.fim_file, ("file\n", False))


def _echo(request: CompletionRequest, prompt: Input, texts: TokenTexts) -> Iterator[Event]:
    """The prompt as content, if the request wants it back."""
    if request.echo:
        if not isinstance(prompt, str):
            prompt = b"".join(texts.piece(token, True) for token in prompt).decode("utf-8", "replace")
        yield ContentDelta(prompt)
