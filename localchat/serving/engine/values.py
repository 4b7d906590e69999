"""The values that go into the engine and come out of it, and its errors.

Texts are str, token ids are int, times are seconds. This module does not know llama.cpp, threads or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

from ..core.events import OutputToken
from ..core.params import GenerationParams, SamplingParams
from ..core.usage import Usage


@dataclass(frozen=True)
class Constraint:
    """A grammar that the output must follow."""

    grammar: str
    """In the notation of llguidance, with the rule `start`."""
    origin: str = "grammar"
    """The field of the request from which the grammar was made, for errors."""


class BudgetTracker(Protocol):
    """The reasoning budget of one sequence: reads its tokens, and at the budget forces those that end the reasoning.

    `localchat.serving.chat.dialects.reasoning` implements it. The engine does not know the markers of reasoning.
    """

    @property
    def forced_token(self) -> int | None:
        """The token that must come next; None if the sampler may choose."""

    def feed(self, piece: bytes) -> None:
        """Enters the bytes of the next token, which is the forced one if there is one."""


@dataclass(frozen=True)
class GenerationRequest:
    """What the engine needs to generate one sequence."""

    prompt: tuple[int, ...]
    """Token ids, at least one."""
    params: GenerationParams = field(default_factory=GenerationParams)
    """Limits and extra outputs. The sampling values in it are not used. The context limits `max_tokens` as well."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """How tokens are sampled, with all defaults applied."""
    constraint: Constraint | None = None
    visible_tokens: frozenset[int] = frozenset()
    """Control tokens that are part of the text, such as the markers of tool calls."""
    new_budget_tracker: Callable[[], BudgetTracker] | None = None
    """Makes the tracker of the reasoning budget for a sequence without tokens. None: there is no budget."""
    reports_progress: bool = False
    """Whether progress is delivered while the prompt is computed."""


@dataclass(frozen=True)
class Progress:
    """The progress of the prefill, in tokens of the prompt."""

    n_computed: int
    """Computed tokens, with the cached ones."""
    n_prompt: int
    n_cached: int


@dataclass(frozen=True)
class Delta:
    """Generated tokens, at least one."""

    tokens: tuple[OutputToken, ...]


@dataclass(frozen=True)
class Finish:
    """The end of a sequence without an error."""

    reason: str
    """"stop", or "length" for a limit."""
    stop: int | None
    """The token of `stop_token_ids` that ended the sequence; None for another end."""
    usage: Usage
    last: OutputToken | None = None
    """The token that ended the sequence, if one did. It is counted in `usage` and is in no Delta."""


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model."""

    n_ctx: int = 0
    """The limit of tokens of one request; 0: that of the model's training, if memory allows."""
    n_cells: int = 0
    """The capacity of the KV cache in tokens, for all sequences together; 0: chosen by `n_ctx` and the free memory."""
    kv_unified: bool = False
    """Whether all sequences share the cells of the KV cache even if memory holds a whole context for each."""
    n_parallel: int = 8
    """The limit of running sequences."""
    n_gpu_layers: int = -1
    """Layers that are computed on GPUs; -1: all."""
    n_threads: int = 0
    """CPU threads of a step; 0: chosen by the cores and the size of the model."""
    use_extra_bufts: bool = True
    """Whether llama.cpp may repack weights for the CPU's matrix instructions, which crash on some virtual machines."""
    speculates: bool = True
    """Whether tokens are drafted, by prompt lookup or a draft model. The output is the same."""


@dataclass(frozen=True)
class Resources:
    """The device, threads and memory of a loaded model."""

    device: str
    """The device that computes its layers, such as "CPU (AMD EPYC)"."""
    n_gpu_layers: int
    """Layers that are computed on GPUs."""
    n_threads: int
    """CPU threads of a step."""
    n_context_bytes: int
    """Bytes of the KV cache and of the compute buffers, without the weights."""
    free: int | None
    """The bytes of memory that are free after the model was loaded; None if it is not known."""
    use_extra_bufts: bool = True
    """False if the CPU's matrix instructions are off, since llama.cpp crashed at them in the self-test."""


@dataclass(frozen=True)
class ModelFacts:
    """The properties of a loaded model and its context."""

    description: str
    n_params: int
    n_bytes: int
    n_vocab: int
    n_ctx_train: int
    n_ctx: int
    """The limit of tokens of one request."""
    n_cells: int
    """The capacity of the KV cache, for all sequences together."""
    n_parallel: int
    """The limit of running sequences."""
    chat_template: str | None
    bos: str
    """The text of the beginning-of-sequence token."""
    eos: str
    """The text of the end-of-sequence token."""
    add_bos: bool
    """Whether prompts begin with the BOS token."""
    special_tokens: frozenset[str]
    """The texts of control tokens and user-defined tokens."""
    sampling: SamplingParams
    """The default sampling parameters: those of localchat, with the recommendations in the metadata."""
    metadata: Mapping[str, str]
    fim_tokens: tuple[int, int, int] | None = None
    """The tokens before the prefix, the suffix and the middle of a FIM prompt; None if the model has none."""
    resources: Resources | None = None
    fim_file: int | None = None
    """The token before the name of a file in a FIM prompt with several files."""
    fim_repository: int | None = None
    """The token before the name of the repository in such a prompt."""


class EngineError(Exception):
    """The base class of errors of the engine. The message has the cause and a remedy."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors of an engine process are pickled. The constructors of some take other arguments than the message.
        return _restored, (type(self), self.args, vars(self))


def _restored(kind: type[EngineError], args: tuple[object, ...], attributes: dict[str, object]) -> EngineError:
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


class InvalidToken(EngineError):
    """A token id that the model's vocabulary does not have."""


class InvalidGrammar(EngineError):
    """A grammar that cannot be parsed, or allows no token of the model; `origin` is that of its constraint."""

    def __init__(self, reason: str, origin: str):
        super().__init__(f"'{origin}' cannot be enforced: {reason}")
        self.origin = origin


class WrongDraftModel(EngineError):
    """A model that cannot draft for another one."""


class WritesNoText(EngineError):
    """The model computes embeddings or scores, and generates no text."""


class PromptTooLong(EngineError):
    """The prompt leaves no space for output in the context."""

    def __init__(self, n_prompt: int, n_ctx: int, *, is_least: bool = False):
        least = "at least " if is_least else ""
        super().__init__(
            f"This model's maximum context length is {n_ctx} tokens, of which the output needs at least one. However, "
            f"your request has {least}{n_prompt} tokens: shorten it or start the server with a larger --ctx"
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class TextTooLong(EngineError):
    """A text of more tokens than any context holds."""

    def __init__(self, n_tokens: int, n_max: int):
        super().__init__(f"a text has at least {n_tokens} tokens, the limit is {n_max}: shorten it")
        self.n_tokens = n_tokens


class QueueFull(EngineError):
    """More requests wait than the queue holds: try again later."""


class Cancelled(EngineError):
    """The generation was cancelled before its end."""


class EngineStopped(EngineError):
    """The engine has been closed, or has failed for good."""


class EngineDied(EngineError):
    """The engine process ended with requests in flight, or before it had loaded the model."""

    def __init__(self, message: str, killed_by: str | None = None):
        super().__init__(message)
        self.killed_by = killed_by
        """The name of the signal that killed it; None if it ended by itself."""


@dataclass(frozen=True)
class Ended:
    """The end of a sequence that neither failed nor was cancelled."""

    reason: str
    """"stop" or "length"."""
    stop: int | None
    """The token of `stop_token_ids` that ended it; None for another end."""


# A sampled token; or, with log probabilities, the token, its log probability, and the likeliest tokens with theirs.
Sampled = Union[int, "tuple[int, float, list[tuple[int, float]]]"]
Item = Union[Sampled, Progress, Ended, EngineError]
