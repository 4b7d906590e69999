"""Starts requests for text: makes the prompts, the constraint, the budget of the reasoning and the parsers.

`start_chat` renders the messages. `start_text` tokenizes the prompts of text completions and of fill-in-the-middle
(FIM), whose output is plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..api.chat import ChatRequest
from ..api.completions import CompletionRequest, SourceFile
from ..core import errors
from ..core.events import ContentDelta, OutputEvent, OutputToken, PromptLogprobs, ReasoningDelta
from ..core.params import GenerationParams
from ..core.request import Input
from ..engine.front import AnyEngine
from ..engine.values import GenerationRequest, ModelFacts, check_tokens
from .constraint import constraint_for, plain_constraint
from .dialects import Dialect
from .dialects.parser import OutputParser, ReasoningTracker
from .model import Model
from .prompt.marked import parts_of
from .prompt.template import ChatTemplate, prefilled
from .run import GenerationRun, Output, PlainText, PromptTokens, item_path, wire_errors


def start_chat(model: Model, request: ChatRequest, id_prefix: str) -> GenerationRun:
    """Render the prompt, and submit the `n` sequences that share it. Raises ApiError if they cannot run."""
    model.check_queue(request.n_choices)
    prompt, template = _rendered(model, request)
    is_continued = request.continue_final_message == "reasoning_content"
    # The output that continues reasoning is parsed as if the prompt ended with the start tag.
    parser_prompt = template.dialect.reasoning.start if is_continued else str.__str__(prompt)
    parsing = {
        "tools": request.callable_tools,
        "prompt": parser_prompt,
        "is_constrained": request.response_format is not None,
    }
    with wire_errors("messages"):
        sequence = model.sequence(
            model.tokenize_prompt(parts_of(prompt, template.special), request.params),
            request.params,
            visible_tokens=template.visible_tokens,
            constraint=constraint_for(request, template, parser_prompt),
            new_budget_tracker=budget_tracker(model, request, template.dialect, parsing),
            reports_progress=request.stream and request.return_progress,
        )
    n = request.params.n
    # All choices have the same prompt, so only the first sequence computes its log probabilities.
    sequences = _copies(sequence, n, params=replace(sequence.params, prompt_logprobs=None))
    outputs = [_output(model, own, request, template.dialect, parsing) for own in sequences]
    return GenerationRun(model, outputs, id_prefix, n_each=n, prompt_field="messages")


def _copies(sequence: GenerationRequest, n: int, **options: Any) -> list[GenerationRequest]:
    """`n` sequences of one prompt. Each has the next seed, since equal seeds generate equal texts.

    `options` replace fields of all sequences but the first. Only the first reports the progress of the prompt.
    """
    sampling = sequence.sampling
    seeds = [None if sampling.seed is None else sampling.seed + i for i in range(1, n)]
    samplings = (replace(sampling, seed=seed) for seed in seeds)
    return [sequence, *(replace(sequence, sampling=own, reports_progress=False, **options) for own in samplings)]


def prompt_text(model: Model, request: ChatRequest) -> str:
    """The rendered prompt as plain text. Raises BadRequest if the template refuses the request."""
    return str.__str__(_rendered(model, request)[0])


def prompt_length(model: Model, request: ChatRequest) -> int:
    """The number of tokens of the prompt, even if it exceeds the context. Raises BadRequest like `prompt_text`."""
    prompt, template = _rendered(model, request)
    with wire_errors("messages"):
        parts = parts_of(prompt, template.special)
        return sum(len(model.engine.tokenize(text, parse_special=is_markup)) for text, is_markup in parts)


def _rendered(model: Model, request: ChatRequest) -> tuple[str, ChatTemplate]:
    """The prompt, whose user text is marked, and its template."""
    is_continued = bool(request.continue_final_message)
    with wire_errors("messages"):
        template = model.template_for(request.chat_template)
        prompt = template.render(
            request.messages[:-1] if is_continued else request.messages,
            tools=request.tools if model.keep_tools or request.tool_choice != "none" else (),
            add_generation_prompt=request.add_generation_prompt or is_continued,
            variables=request.template_vars,
        )
    reasoning, text = request.prefill
    if request.continue_final_message == "reasoning_content":
        prompt = prefilled(template.dialect, prompt, reasoning, None)
    elif reasoning or text:
        prompt = prefilled(template.dialect, prompt, reasoning, text)
    return prompt, template


def budget_tracker(
    model: Model, request: ChatRequest, dialect: Dialect, parsing: Mapping[str, Any]
) -> Callable[[], ReasoningTracker] | None:
    """A function, for the engine process, that makes the tracker of the reasoning budget; None: no limit.

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


def _output(
    model: Model, sequence: GenerationRequest, request: ChatRequest, dialect: Dialect, parsing: Mapping[str, Any]
) -> Output:
    parser = OutputParser(dialect, **parsing)
    if request.continue_final_message == "reasoning_content":
        # Without rstrip(), the parser would hold white space at the end back, and emit it as the start of the output.
        parser.feed(request.prefill[0].rstrip())

    def first_events(tokens: PromptTokens) -> Iterator[OutputEvent]:
        if sequence.params.prompt_logprobs is not None:
            yield PromptLogprobs(tokens())
        reasoning, text = request.prefill if request.echo else ("", "")
        if reasoning:
            yield ReasoningDelta(reasoning)
        if text:
            yield ContentDelta(text)

    # If the request does not split reasoning from the content, it is sent as content, with its tags around it.
    tags = None if request.splits_reasoning else dialect.reasoning
    return Output(sequence, model.engine.texts, parser, first_events=first_events, reasoning_tags=tags)


# Text completions


def start_text(model: Model, request: CompletionRequest, id_prefix: str) -> GenerationRun:
    """Submit `n` sequences for each prompt. Raises ApiError if they cannot run."""
    n = request.params.n
    model.check_queue(request.n_choices)
    options = {"constraint": plain_constraint(request), "reports_progress": request.stream and request.return_progress}
    with wire_errors("prompt"):
        prompts = [_prompt(model, request, i) for i in range(len(request.prompts))]
        of_prompts = [model.sequence(prompt, _text_params(request), **options) for prompt in prompts]
    outputs = [
        _text_output(model.engine, sequence, request, given)
        for of_prompt, given in zip(of_prompts, request.prompts)
        for sequence in _copies(of_prompt, n)
    ]
    return GenerationRun(model, outputs, id_prefix, n_each=n, prompt_field="prompt")


def _text_params(request: CompletionRequest) -> GenerationParams:
    """The parameters with `prompt_logprobs` set as that field, or `echo` with `logprobs`, asks for."""
    params = request.params
    counts = [params.prompt_logprobs, params.top_logprobs if request.scores_prompt else None]
    return replace(params, prompt_logprobs=max((n for n in counts if n is not None), default=None))


def _prompt(model: Model, request: CompletionRequest, i: int) -> tuple[int, ...]:
    name = item_path("prompt", request.prompts, i)
    given = request.prompts[i]
    with wire_errors(name):
        if not isinstance(given, str):
            tokens = given
        elif request.suffix is None:
            tokens = model.tokenize_prompt([(given, True)], request.params, add_bos=request.adds_special)
        else:
            tokens = _fim_tokens(model.engine, given, request.suffix, request)
        check_tokens(tokens, model.engine.facts.n_vocab)
    return tokens


def _fim_tokens(engine: AnyEngine, prefix: str, suffix: str, request: CompletionRequest) -> tuple[int, ...]:
    """The prompt for the text between a prefix and a suffix, with the FIM tokens of the model."""
    facts = engine.facts
    if facts.fim_tokens is None:
        field = request.suffix_field
        text = f"'{field}' needs a model with fill-in-the-middle tokens, such as a coder model, and this one has none"
        raise errors.BadRequest(text, field)

    def tokens(text: str) -> list[int]:
        return engine.tokenize(text, parse_special=False)

    prefix_token, suffix_token, middle_token = facts.fim_tokens
    bos = engine.tokenize("", add_bos=request.adds_special)
    fim = [prefix_token, *tokens(prefix), suffix_token, *tokens(suffix), middle_token, *tokens(request.begun)]
    n_left = facts.n_ctx - len(bos) - len(fim) - max(request.params.max_tokens or 0, 1)
    files = _file_tokens(facts, tokens, request.files)
    return (*bos, *(files[-n_left:] if n_left > 0 else ()), *fim)


def _file_tokens(facts: ModelFacts, tokens: Callable[[str], list[int]], files: Sequence[SourceFile]) -> list[int]:
    """The tokens of the other files, each after the file-separator token and the name of the file.

    The header of the file to complete comes last.
    """
    if not files:
        return []
    if facts.fim_file is None:
        return [token for file in files for token in tokens(f"{file.name}\n{file.text}\n\n")]
    result = [] if facts.fim_repository is None else [facts.fim_repository, *tokens("project\n")]
    for file in files:
        result += [facts.fim_file, *tokens(f"{file.name}\n{file.text}\n")]
    return [*result, facts.fim_file, *tokens("file\n")]


def _text_output(engine: AnyEngine, sequence: GenerationRequest, request: CompletionRequest, given: Input) -> Output:
    def first_events(tokens: PromptTokens) -> Iterator[OutputEvent]:
        if request.params.prompt_logprobs is not None:
            yield PromptLogprobs(tokens())
        if not request.echo:
            return
        n_added = 0
        if isinstance(given, str):
            text = given
            # The echo leaves out tokens that the tokenizer adds, such as BOS.
            n_added = len(engine.tokenize("", add_bos=request.adds_special))
        else:
            text = b"".join(engine.texts.piece(token, True) for token in given).decode("utf-8", "replace")
        if request.scores_prompt:
            yield PromptLogprobs(tokens(), _echoed(tokens()[n_added:], text))
        yield ContentDelta(text)

    return Output(sequence, engine.texts, PlainText(), first_events=first_events)


def _echoed(tokens: tuple[OutputToken, ...], text: str) -> tuple[OutputToken, ...]:
    # Many tokenizers add a space before the first token, which is not in the text.
    if b"".join(token.piece for token in tokens) == b" " + text.encode():
        return (replace(tokens[0], piece=tokens[0].piece[1:]), *tokens[1:])
    return tokens
