"""The prompts of text completions: texts, token ids, and fill-in-the-middle (FIM)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core import errors
from ...core.mailbox import Mailbox
from ...core.request import CompletionRequest, Input
from ...engine.engine_client import EngineClient
from ...engine.values import ModelFacts, Prompt, TextPart

# Without a length limit, the output of a FIM prompt with other files has at least this share of the context.
_OUTPUT_SHARE = 1 / 4


def completion_prompt(engine: EngineClient, request: CompletionRequest, prompt: Input, mailbox: Mailbox) -> Prompt:
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
    if request.input_extra:
        # Of the other files, only the end that fits is used, and leaves room for the output.
        n_gap = engine.count_tokens((*first, *gap), mailbox, add_bos=request.add_special_tokens)
        max_tokens = request.params.max_tokens
        n_output = int(facts.n_ctx * _OUTPUT_SHARE) if max_tokens is None else max(max_tokens, 1)
        n_left = facts.n_ctx - n_gap - n_output
        files = engine.tokenize_prompt(_file_parts(facts, request.input_extra), mailbox)[-n_left:] if n_left > 0 else ()
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
