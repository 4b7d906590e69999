"""What goes into the engine and what comes out of it: plain values and typed errors.

Knows nothing of llama.cpp, threads or HTTP. Texts are str, token ids are int, times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..protocol.events import OutputToken
from ..protocol.params import GenerationParams, SamplingParams
from ..protocol.usage import Usage
from .memory import FreeMemory
from .reasoning_limit import ReasoningLimit


@dataclass(frozen=True)
class Constraint:
    """A GBNF grammar that the text must follow, from the first of some triggers on, or from its start.

    A trigger is a text that the model generates without a constraint; it is the beginning of what the grammar
    describes. Until then the text is free, and may end. `origin` names what it was made of, for errors.
    """

    grammar: str
    triggers: tuple[str, ...] = ()
    root: str = "root"
    origin: str = "grammar"


@dataclass(frozen=True)
class GenerationRequest:
    """What the engine needs to generate one sequence."""

    prompt: tuple[int, ...]
    """Token ids, at least one."""
    params: GenerationParams = field(default_factory=GenerationParams)
    """The limits and extras. A length limit beyond the context is cut to it. Its sampling values are in `sampling`."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """How tokens are sampled, with all defaults applied."""
    constraint: Constraint | None = None
    visible_tokens: frozenset[int] = frozenset()
    """Control tokens that are text nevertheless, such as the markers of tool calls."""
    reasoning_limit: ReasoningLimit | None = None
    reports_progress: bool = False
    """Progress is delivered while the prompt is computed."""
    one_by_one: bool = False
    """Each Delta has one token at most, for a reader that may end the output after any token."""


@dataclass(frozen=True)
class Progress:
    """How many tokens of the prompt are computed, before the first token; `n_cached` of them were cached."""

    n_computed: int
    n_prompt: int
    n_cached: int


@dataclass(frozen=True)
class Delta:
    """Generated tokens and the text that is safe to show by now.

    Text is held back while it may be the start of a stop text or of a split character, so `text`
    can be empty, and the last delta can carry text without tokens.
    """

    text: str
    tokens: tuple[OutputToken, ...] = ()


@dataclass(frozen=True)
class Finish:
    """The one regular end of a sequence."""

    reason: str
    """"stop", or "length" for a limit."""
    stop: str | int | None
    """The stop text, or the token of `stop_token_ids`, that ended it; None for the model's own end."""
    usage: Usage
    last: OutputToken | None = None
    """The token that ended it, if one did: it counts, and is in no Delta."""


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model. 0 leaves a number to the model (`n_ctx`) or the machine (`n_cells`, `n_threads`).

    One request may use `n_ctx` tokens; `n_slots` sequences run at once and share `n_cells`.
    `n_gpu_layers` -1 means all. `use_extra_bufts` lets llama.cpp repack weights for the CPU's matrix
    instructions, which crash on some virtual machines. With `speculates` the next tokens are guessed where
    a text repeats itself, and several computed at once; the text is the same.
    """

    n_ctx: int = 0
    n_cells: int = 0
    kv_unified: bool = False
    """Whether all sequences share the cells of the KV cache even where memory holds a whole context for each."""
    n_slots: int = 8
    n_gpu_layers: int = -1
    n_threads: int = 0
    use_extra_bufts: bool = True
    speculates: bool = True


@dataclass(frozen=True)
class Resources:
    """What a loaded model takes of the machine."""

    device: str
    """Where its layers are computed, such as "CPU (AMD EPYC)"."""
    n_gpu_layers: int
    """Layers that are computed on GPUs."""
    n_threads: int
    """CPU threads that a step has at most."""
    n_context_bytes: int
    """Memory of the KV cache and of the buffers for computing, beside the weights."""
    free: FreeMemory | None
    """Memory that was free when the model was loaded, beside what it takes; None where that is not known."""


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a loaded model.

    `n_ctx` is what one request may use, `n_cells` what all running ones share. `bos` and `eos` are
    texts. `special_tokens` are the texts that are single control or user-defined tokens.
    `sampling` has the model author's recommendations over our defaults. `fill_in` are the tokens before
    the text before a gap, before the text after it, and before what fills it.
    """

    description: str
    n_params: int
    n_bytes: int
    n_vocab: int
    n_ctx_train: int
    n_ctx: int
    n_cells: int
    n_slots: int
    chat_template: str | None
    bos: str
    eos: str
    add_bos: bool
    special_tokens: frozenset[str]
    sampling: SamplingParams
    metadata: Mapping[str, str]
    fill_in: tuple[int, int, int] | None = None
    resources: Resources | None = None
    fim_file: int | None = None
    """The token before the name of a file, where a prompt to fill a gap has several."""
    fim_repository: int | None = None
    """The token before the name of a repository in such a prompt."""


class EngineError(Exception):
    """The engine could not do what was asked; the message says why and what to do."""


class InvalidToken(EngineError):
    """A token id that the model's vocabulary does not have."""


class InvalidGrammar(EngineError):
    """A grammar that llama.cpp cannot read, or the model cannot go on with; `origin` is that of its constraint."""

    def __init__(self, reason: str, origin: str):
        super().__init__(f"'{origin}' makes a grammar that cannot be followed: {reason}")
        self.origin = origin


class WrongDraftModel(EngineError):
    """A model that cannot draft for another one."""


class WritesNoText(EngineError):
    """The model makes vectors or scores; what its context gives for logits is not of its making."""


class PromptTooLong(EngineError):
    """The prompt leaves no space for output in the context."""

    def __init__(self, n_prompt: int, n_ctx: int, *, is_least: bool = False):
        least = "at least " if is_least else ""
        super().__init__(
            f"the prompt has {least}{n_prompt} tokens and the context holds {n_ctx}, of which one at least is needed "
            "for the answer: shorten it or start the server with a larger --ctx"
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class TextTooLong(EngineError):
    """A text of more tokens than any context holds."""

    def __init__(self, n_tokens: int, n_max: int):
        super().__init__(f"a text has at least {n_tokens} tokens, and {n_max} are the limit: shorten it")
        self.n_tokens = n_tokens


class QueueFull(EngineError):
    """More requests wait than the queue holds: try again later."""


class Cancelled(EngineError):
    """The generation was cancelled before its end."""


class EngineStopped(EngineError):
    """The engine has been closed, or has failed for good."""
