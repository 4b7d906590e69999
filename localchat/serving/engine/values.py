"""The values that go into the engine and come out of it, and its errors.

All of them can be sent to another process. Texts are str, token ids are int, times are seconds. This module does not
know llama.cpp, threads or HTTP.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, Union

from ..core.errors import BadRequest, ContextLengthExceeded, InferenceError, QueueFull, ShuttingDown
from ..core.events import PromptProgress
from ..core.media import MediaFile
from ..core.model_options import Adapter, ModelOptions
from ..core.params import GenerationParams, SamplingParams
from ..core.reasoning import ReasoningMarkers
from ..models.memory import OtherModels

# The numbers of `pooling_type` in a model's metadata. Without pooling (0) the mean is used.
_POOLINGS = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}
# Names of architectures without causal attention. Their metadata may lack `attention.causal`.
_NON_CAUSAL = ("bert", "embedding", "t5encoder")
# The tokens of a likely request, prompt and output together.
LIKELY_TOKENS = 4096


@dataclass(frozen=True)
class Constraint:
    """A grammar that the output must follow."""

    grammar: str  # In the notation of llguidance, with the rule `start`.
    origin: str = "grammar"  # The field of the request from which the grammar was made, for errors.


TextPart = tuple[str, bool]
"""A text of a prompt, and whether the texts of control tokens in it become control tokens."""
PromptPart = Union[int, TextPart, MediaFile]
Adapters = tuple[tuple[int, float], ...]
"""A set of adapters: the index of each in `ModelFacts.adapters`, in order, and its scale, which is not 0."""
Prompt = tuple[PromptPart, ...]
"""Token ids, texts that the engine tokenizes, and images and sounds that it encodes."""


@dataclass(frozen=True)
class ReasoningBudget:
    """The limit of reasoning tokens of a sequence."""

    n_tokens: int
    markers: ReasoningMarkers  # Where reasoning begins and ends.
    closing: tuple[TextPart, ...]  # The texts that end reasoning at the limit.


@dataclass(frozen=True)
class SequenceRequest:
    """What the engine needs to generate one sequence."""

    prompt: Prompt  # One token at least.
    # Limits and extra outputs. The sampling values in it are not used. The context limits `max_tokens` as well.
    params: GenerationParams = field(default_factory=GenerationParams)
    sampling: SamplingParams = field(default_factory=SamplingParams)  # With all defaults applied.
    constraint: Constraint | None = None
    visible_tokens: frozenset[int] = frozenset()  # Control tokens that belong to the text, such as markers of calls.
    reasoning_budget: ReasoningBudget | None = None  # The limit of reasoning; None: there is none.
    adapters: Adapters = ()  # The adapters with which all of its tokens are computed.
    add_bos: bool = False  # Whether the first text begins with the tokens that the tokenizer adds, such as BOS.
    prompt_field: str = "prompt"  # The field of the request that has the prompt, for errors.
    returns_ids: bool = False  # Whether the response has token ids, and `TokenizedPrompts` those of the prompt.
    reports_progress: bool = False  # Whether the reader of the output gets the progress while the prompt is computed.


class TokenizedPrompts(NamedTuple):
    """The tokenized prompts of a request, by its sequences."""

    n_tokens: Sequence[int]
    tokens: Sequence[Sequence[int]]  # The token ids; empty without `returns_ids`. Those of media are -1.


Sampled = Union[int, tuple[int, float, list[tuple[int, float]]]]
"""A sampled token; or, with log probabilities, the token, its own, and the likeliest tokens with theirs."""


class End(NamedTuple):
    """The end of a sequence that has not failed."""

    reason: str  # The finish reason, "stop" or "length".
    # The token that ended it, an end-of-generation token or one of `stop_token_ids`. It is not in `StepOutput.tokens`.
    last: Sampled | None = None


class StepOutput(NamedTuple):
    """What one or several steps of the engine produced for one sequence."""

    sequence: int  # The index of the sequence in its request.
    at: float  # The time by `time.perf_counter`, whose clock all processes share.
    tokens: Sequence[Sampled] = ()
    end: End | None = None
    progress: PromptProgress | None = None
    n_drafted: int = 0
    n_draft_accepted: int = 0

    @property
    def is_urgent(self) -> bool:
        """Whether a client waits for it: it has an end, or progress, with which the first token also comes."""
        return self.progress is not None or self.end is not None


class TokenTexts:
    """The bytes of all tokens of a model, and which tokens are special."""

    def __init__(self, pieces: Sequence[bytes], hidden: frozenset[int], ends: frozenset[int]) -> None:
        """`pieces` are the bytes of each token, `hidden` the control tokens, `ends` the end-of-generation tokens."""
        # Not a list, which the server's process would take long to receive.
        self._bytes = b"".join(pieces)
        self._stops = array("I", accumulate(map(len, pieces), initial=0))
        self._hidden = hidden
        self._ends = ends

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; those of a control token only with `special`."""
        if not 0 <= token < len(self._stops) - 1:
            raise ValueError(f"token ids go from 0 to {len(self._stops) - 2}, not {token}")
        if token in self._hidden and not special:
            return b""
        return self._bytes[self._stops[token] : self._stops[token + 1]]

    def is_end(self, token: int) -> bool:
        """Whether this is an end-of-generation token."""
        return token in self._ends


class Histogram:
    """Counts values. One thread adds them, without a lock; any thread reads, perhaps between the count and the sum."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds = tuple(bounds)
        # The number of values between two bounds, and of those above the last one.
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def counts(self) -> list[int]:
        """The number of values up to each bound, and of all values."""
        return list(accumulate(self._counts))


# In seconds, from a cached prompt on a GPU to a long prompt on a laptop.
_FIRST_TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class SequenceStats(NamedTuple):
    """A running sequence as GET /slots shows it, without its text. All counts are in tokens."""

    id: int
    n_prompt: int
    n_cached: int  # Tokens of the prompt that were in the KV cache before.
    n_computed: int  # Tokens that are in the KV cache.
    n_sampled: int
    max_length: int  # The limit of prompt and output together.


@dataclass
class EngineStats:
    """The state of the engine, and counts since its start. The values may be of two successive steps."""

    running: Sequence[SequenceStats] = ()  # The sequences that have a slot, the oldest first.
    n_waiting: int = 0  # Sequences in the queue.
    n_cells_active: int = 0  # Cells of running sequences.
    n_cells_idle: int = 0  # Cells of cached prefixes that no running sequence uses.
    n_computed: int = 0  # Tokens decoded, of prompts and of outputs.
    n_sampled: int = 0  # Tokens sampled.
    n_cached: int = 0  # Prompt tokens that were found in the cache.
    n_drafted: int = 0  # Draft tokens computed.
    n_draft_accepted: int = 0  # Draft tokens that were accepted.
    # From a request to its first token.
    first_token_s: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_BOUNDS_S))

    @property
    def n_running(self) -> int:
        return len(self.running)


@dataclass(frozen=True)
class LoadOptions(ModelOptions):
    """How to load a model: its options, and what no option sets."""

    # Whether llama.cpp may repack weights for the CPU's matrix instructions, which crash on some virtual machines.
    use_extra_bufts: bool = True
    others: OtherModels = field(default_factory=OtherModels)  # Models that take memory beside this one.

    def limit_of_request(self, n_ctx_train: int) -> int:
        """The limit of one request, if memory allows: that of the options or of the training."""
        return self.n_ctx or n_ctx_train or LIKELY_TOKENS  # `n_ctx_train` is 0 in a damaged header.


@dataclass(frozen=True)
class ModelFacts:
    """The properties of a loaded model and its context."""

    description: str
    n_params: int
    n_bytes: int
    n_vocab: int
    n_ctx_train: int
    n_ctx: int  # The limit of tokens of one request.
    n_cells: int  # The capacity of the KV cache, for all sequences together.
    n_parallel: int  # The limit of running sequences.
    chat_template: str | None
    bos: str  # The text of the beginning-of-sequence token.
    eos: str  # The text of the end-of-sequence token.
    add_bos: bool  # Whether prompts begin with the BOS token.
    special_tokens: frozenset[str]  # The texts of control tokens, without user-defined tokens.
    sampling: SamplingParams  # The defaults: those of localchat, with the recommendations in the metadata.
    metadata: Mapping[str, str]
    # The tokens before the prefix, the suffix and the middle of a FIM prompt; None if the model has none.
    fim_tokens: tuple[int, int, int] | None = None
    fim_file: int | None = None  # The token before the name of a file in a FIM prompt with several files.
    fim_repository: int | None = None  # The token before the name of the repository in such a prompt.
    device: str = ""  # The device that computes its layers, such as "CPU (AMD EPYC)".
    n_threads: int = 0  # CPU threads of a step.
    n_context_bytes: int = 0  # Bytes of the KV cache and of the compute buffers, without the weights.
    n_gpu_bytes: int = 0  # How many bytes of the weights and of the context are on GPUs, by estimate.
    n_free_bytes: int | None = None  # The memory that is free after the model was loaded; None if it is not known.
    n_mapped_bytes: int = 0  # The weights that are mapped from files, which the system counts as free memory.
    modalities: tuple[str, ...] = ()  # What the model takes besides text, by its projector: "image", "audio".
    projector: str = ""  # The file of its projector; "" without one.
    workers: tuple[tuple[str, int], ...] = ()  # The address of each worker, and how many layers it computes.
    adapters: tuple[Adapter, ...] = ()  # The adapters of the model. Those with a `problem` cannot be used.

    @property
    def pooling(self) -> str:
        """How the model pools the vectors of an input; "mean" if the metadata does not have it."""
        return _POOLINGS.get(self.metadata.get(f"{self._architecture}.pooling_type", ""), "mean")

    @property
    def is_non_causal(self) -> bool:
        """Whether each token attends to all others: the model cannot generate, and computes an input in one step."""
        is_causal = self.metadata.get(f"{self._architecture}.attention.causal") != "false"
        return not is_causal or any(name in self._architecture for name in _NON_CAUSAL)

    @property
    def _architecture(self) -> str:
        return self.metadata.get("general.architecture", "")


class EngineError(InferenceError):
    """The engine cannot load a model or run a request. The message has the cause and a remedy."""


class EngineSilent(EngineError, status=503, retry_after_s=QueueFull.retry_after_s):
    """The engine process does not respond in time, as one that is stopped (SIGSTOP)."""

    def __init__(self, timeout_s: float):
        super().__init__(f"the engine process has not responded for {timeout_s:.2g} s: is it stopped?")


class EngineDied(EngineError, is_transient=True):
    """The engine failed with requests in flight, or its process ended, perhaps before it had loaded the model."""

    def __init__(self, message: str, killed_by: str | None = None):
        super().__init__(message)
        self.killed_by = killed_by
        """The name of the signal that killed it; None if it ended by itself."""


class WorkerMissing(EngineError, is_transient=True):
    """A worker of `--rpc` does not respond, or speaks another version. The message names it."""


class EngineGone(EngineDied):
    """The engine had failed, or its process had ended, before it took the request. Another process may run it."""


class EngineStopped(ShuttingDown):
    """The engine has been closed."""


def check_queue(n_new: int, n_open: int, n_max: int) -> None:
    """Raises QueueFull if so many new sequences do not fit beside the open ones, which run or wait."""
    if n_open + n_new > n_max:
        raise QueueFull(f"{n_open} requests are open, the limit is {n_max}: try again later")


def invalid_grammar(reason: str, origin: str) -> BadRequest:
    """The error of a grammar that cannot be parsed, or allows no token of the model; `origin` is in its constraint."""
    return BadRequest(f"'{origin}' cannot be enforced: {reason}", origin)


def text_too_long(n_tokens: int, n_max: int) -> ContextLengthExceeded:
    """The error of a text with more tokens than any context holds."""
    message = f"a text has at least {n_tokens} tokens, the limit is {n_max}: shorten it"
    return ContextLengthExceeded(message, n_tokens=n_tokens)


def check_tokens(tokens: Sequence[int], n_vocab: int) -> None:
    """Raises BadRequest for no tokens at all, or one that the vocabulary does not have."""
    if not tokens:
        raise BadRequest("the prompt is empty: it needs one token at least")
    if min(tokens) < 0 or max(tokens) >= n_vocab:
        raise BadRequest(f"token ids go from 0 to {n_vocab - 1}; the request has {min(tokens)} to {max(tokens)}")
