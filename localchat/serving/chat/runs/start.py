"""Starts requests for text: makes the prompts, the constraint, the budget of the reasoning and the parsers.

`start_chat` renders the messages. `start_text` tokenizes the prompts of text completions and of fill-in-the-middle
(FIM), whose output is plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...api.chat import ChatRequest
from ...api.completions import CompletionRequest, SourceFile
from ...api.parts import note_of, refuse_media
from ...core import errors
from ...core.events import ContentDelta, OutputEvent, OutputToken, PromptLogprobs, ReasoningDelta
from ...core.media import IMAGE, MARKER, MAX_MEDIA, MediaFile, checked
from ...core.params import GenerationParams
from ...core.request import Input, TextRequest
from ...engine.process import AnyEngine
from ...engine.values import GenerationRequest, ModelFacts, Prompt, ReasoningBudget, TextPart
from ..constraints.constraint import constraint_for, plain_constraint
from ..dialects import Dialect
from ..dialects.parser import OutputParser
from ..model import Model
from ..prompt.marked import text_parts
from ..prompt.template import ChatTemplate, prefilled
from .generation import GenerationRun, Output, PlainText, PromptTokens, wire_errors


def start_chat(
    model: Model, request: ChatRequest, id_prefix: str, check: Callable[[], None] = lambda: None
) -> GenerationRun:
    """Submit the `n` sequences of a prompt. Raises ApiError if they cannot run; see `Engine.submit` for `check`."""
    model.check_queue(request.n_choices, "n")
    request, media = _with_media(model, request)
    prompt, template, prefill = _rendered(model, request)
    is_continued = request.continue_final_message == "reasoning_content"
    # The output that continues reasoning is parsed as if the prompt ended with the start tag.
    parser_prompt = template.dialect.reasoning.start if is_continued else str.__str__(prompt)
    with wire_errors("messages"):
        sequence = model.sequence(
            tuple(_parts(prompt, template, media)),
            request.params,
            prompt_field="messages",
            returns_prompt=request.return_token_ids or request.params.prompt_logprobs is not None,
            visible_tokens=template.visible_tokens,
            constraint=constraint_for(request, template, parser_prompt),
            reasoning_budget=reasoning_budget(model, request, template.dialect, parser_prompt),
            reports_progress=request.stream and request.return_progress,
        )
    n = request.params.n
    # All choices have the same prompt, so only the first sequence computes its log probabilities.
    sequences = _copies(sequence, n, params=replace(sequence.params, prompt_logprobs=None))
    new_parser = partial(
        OutputParser,
        template.dialect,
        tools=request.callable_tools,
        prompt=parser_prompt,
        is_constrained=request.response_format is not None,
        is_continued=bool(request.prefill[1]),
        is_raw=not request.splits_reasoning,
    )
    outputs = [_output(model, own, request, new_parser(), prefill) for own in sequences]
    return GenerationRun(model, outputs, id_prefix, check, n_each=n, prompt_field="messages")


def _copies(sequence: GenerationRequest, n: int, **options: Any) -> list[GenerationRequest]:
    """`n` sequences of one prompt. Each has the next seed, since equal seeds generate equal texts. `options` replace
    fields of all sequences but the first. Only the first reports the progress of the prompt."""
    sampling = sequence.sampling
    seeds = [None if sampling.seed is None else sampling.seed + i for i in range(1, n)]
    samplings = (replace(sampling, seed=seed) for seed in seeds)
    return [sequence, *(replace(sequence, sampling=own, reports_progress=False, **options) for own in samplings)]


def prompt_text(model: Model, request: ChatRequest) -> str:
    """The rendered prompt as plain text. Raises BadRequest if the template refuses the request."""
    request, _ = _with_media(model, request)
    return MARKER.sub("<__media__>", str.__str__(_rendered(model, request)[0]))


def prompt_length(model: Model, request: ChatRequest) -> int:
    """The number of tokens of the prompt, even if it exceeds the context. Raises BadRequest like `prompt_text`."""
    request, media = _with_media(model, request)
    prompt, template, _ = _rendered(model, request)
    with wire_errors("messages"):
        return len(model.engine.tokenize_prompt(_parts(prompt, template, media)))


def _with_media(model: Model, request: ChatRequest) -> tuple[ChatRequest, Sequence[MediaFile | None]]:
    """The request, whose markers stand for images and sounds that the model can take, and these by their numbers.

    Notes replace the markers of others in replayed messages. Raises BadRequest for others in new messages.
    """
    media: list[MediaFile | None] = []
    notes: dict[int, str] = {}
    modalities = model.engine.facts.modalities
    for i, attachment in enumerate(request.attachments):
        is_supported = ("image" if attachment.kind == IMAGE else "audio") in modalities
        if not is_supported and not attachment.is_replayed:
            refuse_media(attachment.path, attachment.kind, modalities)
        medium = None
        try:
            medium = checked(attachment) if is_supported else None
        except errors.BadRequest as error:
            if not attachment.is_replayed:
                raise
            notes[i] = note_of(attachment.kind, error.message)
        if medium is None:
            notes.setdefault(i, note_of(attachment.kind))
        media.append(medium)
        if len(media) - len(notes) > MAX_MEDIA:
            text = f"the request has more than {MAX_MEDIA} images and sounds: '{attachment.path}' is number {i + 1}"
            raise errors.BadRequest(text, attachment.path)

    def with_notes(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return MARKER.sub(lambda found: notes.get(int(found[1]), found[0]), value)

    if notes:
        messages = ({name: with_notes(value) for name, value in message.items()} for message in request.messages)
        request = replace(request, messages=tuple(messages))
    return request, media


def _parts(prompt: str, template: ChatTemplate, media: Sequence[MediaFile | None]) -> Iterator[TextPart | MediaFile]:
    """The parts of a prompt to tokenize, and the media between them."""
    start = 0
    for found in MARKER.finditer(prompt) if media else ():
        medium = media[int(found[1])]
        if medium is not None:
            yield from text_parts(prompt[start : found.start()], template.special)
            yield medium
            start = found.end()
    yield from text_parts(prompt[start:] if start else prompt, template.special)


def _rendered(model: Model, request: ChatRequest) -> tuple[str, ChatTemplate, str]:
    """The prompt, whose user text is marked, its template, and the assistant prefill at its end."""
    is_continued = bool(request.continue_final_message)
    with wire_errors("messages"):
        template = model.template_for(request.chat_template)
        prompt = template.render(
            request.messages[:-1] if is_continued else request.messages,
            tools=request.tools if model.keep_tools or request.tool_choice != "none" else (),
            add_generation_prompt=request.add_generation_prompt or is_continued,
            variables=request.template_vars,
        )
    n_rendered, (reasoning, text) = len(prompt), request.prefill
    is_reasoning = request.continue_final_message == "reasoning_content"
    if is_reasoning or reasoning or text:
        prompt = prefilled(template.dialect, prompt, reasoning, None if is_reasoning else text)
    return prompt, template, str.__str__(prompt)[n_rendered:]


def reasoning_budget(model: Model, request: ChatRequest, dialect: Dialect, prompt: str) -> ReasoningBudget | None:
    """The budget of the reasoning after this prompt; None: no limit. The budget message yields no control tokens."""
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
        is_open=dialect.reasoning_start(prompt) == "open",
        opens_anywhere=dialect.reasons_anywhere,
    )


def _shows_tokens(request: TextRequest) -> bool:
    return request.return_token_ids or request.params.top_logprobs is not None


def _output(
    model: Model, sequence: GenerationRequest, request: ChatRequest, parser: OutputParser, prefill: str
) -> Output:
    if request.continue_final_message == "reasoning_content":
        # Without rstrip(), the parser would hold white space at the end back, and emit it as the start of the output.
        parser.feed(request.prefill[0].rstrip())

    def first_events(tokens: PromptTokens) -> Iterator[OutputEvent]:
        if sequence.params.prompt_logprobs is not None:
            yield PromptLogprobs(tokens())
        reasoning, text = request.prefill if request.splits_reasoning else ("", prefill)
        if request.echo and reasoning:
            yield ReasoningDelta(reasoning)
        if request.echo and text:
            yield ContentDelta(text)

    return Output(sequence, model.engine.texts, parser, first_events=first_events, shows_tokens=_shows_tokens(request))


# Text completions


def start_text(
    model: Model, request: CompletionRequest, id_prefix: str, check: Callable[[], None] = lambda: None
) -> GenerationRun:
    """Submit `n` sequences for each prompt. Raises ApiError if they cannot run; see `Engine.submit` for `check`."""
    model.check_queue(request.n_choices, "prompt" if len(request.prompts) > 1 else "n")
    n, params = request.params.n, _text_params(request)
    options = {
        "add_bos": request.adds_special,
        "returns_prompt": request.return_token_ids or params.prompt_logprobs is not None,
        "constraint": plain_constraint(request),
        "reports_progress": request.stream and request.return_progress,
    }
    with wire_errors("prompt"):
        of_prompts = [
            model.sequence(prompt, params, prompt_field=errors.item_path("prompt", request.prompts, i), **options)
            for i, prompt in enumerate(_prompt(model.engine, request, given) for given in request.prompts)
        ]
    outputs = [
        _text_output(model.engine, sequence, request, given)
        for of_prompt, given in zip(of_prompts, request.prompts)
        for sequence in _copies(of_prompt, n)
    ]
    return GenerationRun(model, outputs, id_prefix, check, n_each=n, prompt_field="prompt")


def _text_params(request: CompletionRequest) -> GenerationParams:
    """The parameters with `prompt_logprobs` set as that field, or `echo` with `logprobs`, asks for."""
    params = request.params
    counts = [params.prompt_logprobs, params.top_logprobs if request.scores_prompt else None]
    return replace(params, prompt_logprobs=max((n for n in counts if n is not None), default=None))


def _prompt(engine: AnyEngine, request: CompletionRequest, given: Input) -> Prompt:
    """The prompt of a completion. With a suffix, it has the FIM tokens of the model."""
    if not isinstance(given, str):
        return given
    if request.suffix is None:
        return ((given, True),)
    facts = engine.facts
    if facts.fim_tokens is None:
        field = request.suffix_field
        text = f"'{field}' needs a model with fill-in-the-middle tokens, such as a coder model, and this one has none"
        raise errors.BadRequest(text, field)
    before, after, middle = facts.fim_tokens
    gap: Prompt = (before, (given, False), after, (request.suffix, False), middle, (request.begun, False))
    first: Prompt = (("", False),)  # yields the tokens that the tokenizer adds, such as BOS
    files: Sequence[int] = ()
    if request.files:
        # Of the other files, only the end that fits is used.
        n_gap = len(engine.tokenize_prompt((*first, *gap), add_bos=request.adds_special))
        n_left = facts.n_ctx - n_gap - max(request.params.max_tokens or 0, 1)
        files = engine.tokenize_prompt(_file_parts(facts, request.files))[-n_left:] if n_left > 0 else ()
    return (*first, *files, *gap)


def _file_parts(facts: ModelFacts, files: Sequence[SourceFile]) -> Iterator[int | TextPart]:
    """The other files, each after its separator token and name. The header of the file to complete comes last."""
    if facts.fim_file is None:
        yield from ((f"{file.name}\n{file.text}\n\n", False) for file in files)
        return
    if facts.fim_repository is not None:
        yield from (facts.fim_repository, ("project\n", False))
    for file in files:
        yield from (facts.fim_file, (f"{file.name}\n{file.text}\n", False))
    yield from (facts.fim_file, ("file\n", False))


def _text_output(engine: AnyEngine, sequence: GenerationRequest, request: CompletionRequest, given: Input) -> Output:
    def first_events(tokens: PromptTokens) -> Iterator[OutputEvent]:
        if request.params.prompt_logprobs is not None:
            yield PromptLogprobs(tokens())
        if not request.echo:
            return
        if isinstance(given, str):
            text = given
        else:
            text = b"".join(engine.texts.piece(token, True) for token in given).decode("utf-8", "replace")
        if request.scores_prompt:
            # The echo leaves out tokens that the tokenizer adds, such as BOS.
            n_added = len(engine.tokenize("", add_bos=request.adds_special)) if isinstance(given, str) else 0
            yield PromptLogprobs(tokens(), _echoed(tokens()[n_added:], text))
        yield ContentDelta(text)

    return Output(sequence, engine.texts, PlainText(), first_events=first_events, shows_tokens=_shows_tokens(request))


def _echoed(tokens: tuple[OutputToken, ...], text: str) -> tuple[OutputToken, ...]:
    # Many tokenizers add a space before the first token, which is not in the text.
    if b"".join(token.piece for token in tokens) == b" " + text.encode():
        return (replace(tokens[0], piece=tokens[0].piece[1:]), *tokens[1:])
    return tokens
