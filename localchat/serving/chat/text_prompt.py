"""Starts text completions and fill-in-the-middle (FIM): tokenizes the prompts; the output is plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..api.completions import CompletionRequest, SourceFile
from ..core import errors
from ..core.events import ContentDelta, EchoedTokens, OutputEvent, OutputToken, PromptLogprobs
from ..core.params import GenerationParams
from ..core.request import Input
from ..engine.front import AnyEngine
from ..engine.values import ModelFacts
from .constraint import plain_constraint
from .model import Model, check_tokens
from .run import GenerationRun, Output, PlainText, PromptTokens, copies, wire_errors


def start_text(model: Model, request: CompletionRequest, id_prefix: str) -> GenerationRun:
    """Submit `n` sequences for each prompt.

    Raises:
        ApiError: This model cannot run the request.
    """
    n, n_prompts = request.params.n, len(request.prompts)
    options = {"constraint": plain_constraint(request), "reports_progress": request.stream and request.return_progress}
    with wire_errors("prompt"):
        prompts = [_prompt(model, request, i) for i in range(n_prompts)]
        of_prompts = [model.sequence(prompt, _params(request), **options) for prompt in prompts]
    return GenerationRun(
        model,
        [sequence for of_prompt in of_prompts for sequence in copies(of_prompt, n)],
        [_output(model.engine, request, given) for given in request.prompts for _ in range(n)],
        id_prefix,
        n_each=n,
        prompt_field="prompt",
        count_field="prompt" if n_prompts > 1 else "n",
    )


def _params(request: CompletionRequest) -> GenerationParams:
    """The parameters of the sequences, with log probabilities of the prompt also where only `echo` needs them."""
    params = request.params
    counts = [params.prompt_logprobs, params.top_logprobs if request.scores_prompt else None]
    return replace(params, prompt_logprobs=max((n for n in counts if n is not None), default=None))


def _prompt(model: Model, request: CompletionRequest, i: int) -> tuple[int, ...]:
    name = "prompt" if len(request.prompts) == 1 else f"prompt[{i}]"
    given = request.prompts[i]
    with wire_errors(name):
        if not isinstance(given, str):
            tokens = given
        elif request.suffix is None:
            tokens = model.tokenize_prompt([(given, True)], request.params, add_bos=request.adds_special)
        else:
            tokens = _fim_tokens(model.engine, given, request.suffix, request)
    if not tokens:
        raise errors.BadRequest(f"'{name}' has no tokens: the text is empty and no BOS is added", name)
    check_tokens(tokens, model.engine.facts.n_vocab, name)
    return tokens


def _fim_tokens(engine: AnyEngine, prefix: str, suffix: str, request: CompletionRequest) -> tuple[int, ...]:
    """The prompt for the text between a prefix and a suffix, with the FIM tokens of the model."""
    facts = engine.facts
    if facts.fim_tokens is None:
        field = request.suffix_field
        raise errors.BadRequest(
            f"'{field}' needs a model with fill-in-the-middle tokens, such as a coder model, and this one has none",
            field,
        )

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


def _output(engine: AnyEngine, request: CompletionRequest, given: Input) -> Output:
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
            yield EchoedTokens(_echoed(tokens()[n_added:], text))
        yield ContentDelta(text)

    return Output(PlainText(), stop=request.params.stop, first_events=first_events)


def _echoed(tokens: tuple[OutputToken, ...], text: str) -> tuple[OutputToken, ...]:
    # Many tokenizers add a space before the first token, which is not in the text.
    if b"".join(token.piece for token in tokens) == b" " + text.encode():
        return (replace(tokens[0], piece=tokens[0].piece[1:]), *tokens[1:])
    return tokens
