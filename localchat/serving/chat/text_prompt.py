"""The prompt builder of text completions and fill-in-the-middle (FIM): tokenizes prompts; the output is plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..api.completions import CompletionRequest, SourceFile
from ..core import errors
from ..core.events import ContentDelta, EchoedTokens, OutputEvent, OutputToken
from ..core.inputs import Input, check_tokens
from ..core.params import GenerationParams
from ..engine import AnyEngine, GenerationRequest, ModelFacts
from .constraint import plain_constraint
from .errors import wire_errors
from .model import Model, sequences_of
from .output import Output, PlainText, PromptTokens
from .run import Prepared


def prepare_text(model: Model, request: CompletionRequest) -> Prepared:
    """Make `n` sequences for each prompt.

    Raises:
        ApiError: This model cannot run the request.
    """
    n, params, constraint = request.params.n, _params(request), plain_constraint(request)
    sequences: list[GenerationRequest] = []
    for i in range(len(request.prompts)):
        prompt = _prompt(model, request, i)
        sequence = GenerationRequest(
            *model.prompt_and_params(prompt, params),
            constraint=constraint,
            reports_progress=request.stream and request.return_progress,
        )
        sequences += sequences_of(sequence, n)
    outputs = [_output(model.engine, request, given) for given in request.prompts for _ in range(n)]
    count_field = "prompt" if len(request.prompts) > 1 else "n"
    return Prepared(sequences, outputs, n, prompt_field="prompt", count_field=count_field)


def _params(request: CompletionRequest) -> GenerationParams:
    """The parameters of the sequences, with log probabilities of the prompt also where `echo` needs them."""
    params = request.params
    counts = [params.prompt_logprobs, params.top_logprobs if request.scores_prompt else None]
    return replace(params, prompt_logprobs=max((n for n in counts if n is not None), default=None))


def _prompt(model: Model, request: CompletionRequest, i: int) -> tuple[int, ...]:
    name = "prompt" if len(request.prompts) == 1 else f"prompt[{i}]"
    with wire_errors(model.engine, name):
        tokens = _tokens(model, request.prompts[i], request)
    if not tokens:
        raise errors.BadRequest(f"'{name}' has no tokens: the text is empty and no BOS is added", name)
    check_tokens(tokens, model.engine.facts.n_vocab, name)
    return tokens


def _tokens(model: Model, given: Input, request: CompletionRequest) -> tuple[int, ...]:
    if not isinstance(given, str):
        return given
    if request.suffix is None:
        return model.tokenize_prompt([(given, True)], request.params, add_bos=request.adds_special)
    return _fim_tokens(model.engine, given, request.suffix, request)


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
        if not request.echo:
            return
        text = _text_of(engine, given)
        if request.scores_prompt:
            # The echo leaves out tokens that the tokenizer adds, such as BOS.
            n_added = len(engine.tokenize("", add_bos=request.adds_special)) if isinstance(given, str) else 0
            yield EchoedTokens(_echoed(tokens()[n_added:], text))
        yield ContentDelta(text)

    return Output(
        PlainText(),
        stop=request.params.stop,
        first_events=first_events,
        reports_prompt=request.params.prompt_logprobs is not None,
    )


def _text_of(engine: AnyEngine, given: Input) -> str:
    if isinstance(given, str):
        return given
    return b"".join(engine.piece(token, True) for token in given).decode("utf-8", "replace")


def _echoed(tokens: tuple[OutputToken, ...], text: str) -> tuple[OutputToken, ...]:
    # Many tokenizers add a space before the first token, which is not in the text.
    if b"".join(token.piece for token in tokens) == b" " + text.encode():
        return (replace(tokens[0], piece=tokens[0].piece[1:]), *tokens[1:])
    return tokens
