"""llama.cpp through llama-cpp-python's low-level API: the only module that imports llama_cpp.

`LlamaBackend` fits the engine's `Backend`. Several calls of the library abort the whole process when
they are given what they do not expect; each of them is behind a check here. Struct layouts change
between releases, so fields are set by name on the structs that the library itself fills.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Optional

# An abort inside the library would otherwise start a debugger, where one is installed, for seconds.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp.llama_cpp as L
import numpy as np

from .backend import DecodeFailed, NoRoom
from .sampling import GREEDY, Step, chain_steps
from .scheduler import Batch, Room
from .values import EngineError, GenerationRequest, LoadOptions, ModelFacts, Sampling

log = logging.getLogger("localchat.engine")
library_log = logging.getLogger("localchat.engine.llama")

# Slots for prefixes that rest between requests. Each costs room for one row of logits.
_RESTING_SLOTS = 24
# Tokens computed in one turn. On a CPU a larger batch is no faster, and running streams wait for it.
_CPU_BATCH, _GPU_BATCH = 512, 2048
# The smallest context that is worth trying when memory is short; the library pads to 256.
_MIN_CELLS = 512
# The share of the free memory that the cells may take: weights are mapped, other programs live too.
_CELL_MEMORY_SHARE = 0.5

# Measured with the built-in model of 3 MB on 2 cores beside a busy process: one thread was 2 to 4 times as fast as two.
_TINY_MODEL_BYTES = 32 << 20

_SAMPLING_KEYS: dict[str, tuple[str, Callable[[str], float]]] = {
    "temperature": ("general.sampling.temp", float),
    "top_k": ("general.sampling.top_k", int),
    "top_p": ("general.sampling.top_p", float),
    "min_p": ("general.sampling.min_p", float),
    "repeat_penalty": ("general.sampling.penalty_repeat", float),
    "penalty_last_n": ("general.sampling.penalty_last_n", int),
}

_recent_problems: deque[str] = deque(maxlen=8)
# ggml's levels: 1 debug, 2 info, 3 warning, 4 error, 5 continues the line before. Its errors become part of ours,
# and its warnings are for developers: one says that our cells are more than one sequence may use.
_LOG_LEVELS = {3: logging.INFO, 4: logging.INFO}
_ERROR_LEVEL = 4


@L.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes
def _on_log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    line = text.decode("utf-8", "replace").rstrip()
    if level == _ERROR_LEVEL:
        _recent_problems.append(line)
    library_log.log(_LOG_LEVELS.get(level, logging.DEBUG), "%s", line)


def _start_library() -> None:
    L.llama_log_set(_on_log, ctypes.c_void_p(0))
    L.llama_backend_init()


_start_library()


def load_backend(path: str, options: LoadOptions, progress: Optional[Callable[[float], None]] = None) -> LlamaBackend:
    """Loads a GGUF file and makes a context for it.

    `progress` gets numbers from 0 to 1 while the weights load.

    Raises:
        EngineError: the file cannot be loaded, is no model that generates text, or memory is short.
    """
    if not os.path.isfile(path):
        raise EngineError(f"there is no model file {path!r}: check the path")
    model = _load_model(path, options, progress)
    try:
        _check_generates(model, path)
        vocabulary = Vocabulary(model)
        context, options = _new_context(model, options)
    except BaseException:
        L.llama_model_free(model)
        raise
    return LlamaBackend(model, context, vocabulary, options)


def supports_gpu() -> bool:
    """Whether this build of llama.cpp can use a GPU at all."""
    return bool(L.llama_supports_gpu_offload())


def default_threads(n_model_bytes: int) -> int:
    """Threads for the graph: the cores that this process may use; half of many, which are mostly hyperthreads.

    A tiny model gets one: its steps are so short that threads mostly wait for each other, and where
    something else keeps a core busy they stand still.
    """
    if n_model_bytes < _TINY_MODEL_BYTES:
        return 1
    try:
        n_cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        n_cores = os.cpu_count() or 1
    return n_cores if n_cores <= 4 else n_cores // 2


class Vocabulary:
    """Texts and token ids. Its calls are thread-safe."""

    def __init__(self, model: Any):
        self.pointer = L.llama_model_get_vocab(model)
        self.n_tokens: int = L.llama_vocab_n_tokens(self.pointer)
        self._pieces: dict[int, bytes] = {}
        ids = range(self.n_tokens)
        self.ends = frozenset(id for id in ids if L.llama_vocab_is_eog(self.pointer, id))
        special = L.LLAMA_TOKEN_ATTR_CONTROL | L.LLAMA_TOKEN_ATTR_USER_DEFINED
        self.special_tokens = frozenset(
            self._text(id) for id in ids if L.llama_vocab_get_attr(self.pointer, id) & special
        )
        self.bos = self._text(L.llama_vocab_bos(self.pointer))
        self.eos = self._text(L.llama_vocab_eos(self.pointer))
        self.add_bos = bool(L.llama_vocab_get_add_bos(self.pointer))

    def tokenize(self, text: str, add_bos: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8", "surrogatepass")
        n_room = len(data) + 2
        while True:
            room = (L.llama_token * n_room)()
            n = L.llama_tokenize(self.pointer, data, len(data), room, n_room, add_bos, parse_special)
            if n >= 0:
                return list(room[:n])
            n_room = -n

    def piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def _read_piece(self, token: int) -> bytes:
        if not 0 <= token < self.n_tokens:  # the library would abort the process
            raise ValueError(f"token ids go from 0 to {self.n_tokens - 1}, not {token}")
        n_room = 64
        while True:
            room = ctypes.create_string_buffer(n_room)
            n = L.llama_token_to_piece(self.pointer, token, room, n_room, 0, False)
            if n >= 0:
                return room.raw[:n]
            n_room = -n

    def _text(self, token: int) -> str:
        if not 0 <= token < self.n_tokens:
            return ""
        text: bytes = L.llama_vocab_get_text(self.pointer, token)
        return text.decode("utf-8", "replace")


class LlamaBackend:
    """A model in memory with its context. Whatever touches the context runs on the engine thread."""

    def __init__(self, model: Any, context: Any, vocabulary: Vocabulary, options: LoadOptions):
        self._model = model
        self._context = context
        self._memory = L.llama_get_memory(context)
        self._vocabulary = vocabulary
        self.facts = _read_facts(model, context, vocabulary, options)
        self.room = Room(
            n_cells=L.llama_n_ctx(context),
            n_running=options.n_slots,
            n_slots=L.llama_n_seq_max(context),
            n_batch=L.llama_n_batch(context),
            can_cut=not (L.llama_model_is_recurrent(model) or L.llama_model_is_hybrid(model)),
        )
        self._rows = _BatchRows(self.room.n_batch)
        self._output_rows: frozenset[int] = frozenset()

    def tokenize(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        return self._vocabulary.tokenize(text, add_bos, parse_special)

    def piece(self, token: int) -> bytes:
        return self._vocabulary.piece(token)

    def is_end(self, token: int) -> bool:
        return self._vocabulary.is_end(token)

    def new_sampler(self, request: GenerationRequest) -> Any:
        """A sampler chain, or None where the likeliest token is all that is asked for.

        Penalties know the prompt's last tokens from the start.
        """
        sampling = self._resolved(request.sampling)
        steps = chain_steps(sampling)
        forbidden = self._forbidden(request)
        if steps == [GREEDY] and not sampling.logit_bias and not forbidden:
            return None
        chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        try:
            if forbidden:  # the first, so that `allow_ends` finds it
                self._add(chain, self._logit_bias([(id, -math.inf) for id in forbidden]))
            if sampling.logit_bias:
                self._add(chain, self._logit_bias(sampling.logit_bias))
            for step in steps:
                self._add(chain, self._sampler(step, sampling))
            self._accept_prompt(chain, request.prompt, sampling, {step.name for step in steps})
        except BaseException:
            L.llama_sampler_free(chain)
            raise
        return chain

    def allow_ends(self, sampler: Any) -> None:
        L.llama_sampler_free(L.llama_sampler_chain_remove(sampler, 0))

    def free_sampler(self, sampler: Any) -> None:
        if sampler is not None:
            L.llama_sampler_free(sampler)

    def clear(self, slot: int) -> None:
        self._check_slot(slot)
        L.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def share(self, source: int, target: int, n_tokens: int) -> None:
        self._check_slot(source)
        self._check_slot(target)
        L.llama_memory_seq_cp(self._memory, source, target, 0, n_tokens)

    def decode(self, batch: Batch) -> None:
        """Computes a batch; when that fails, the cells that it may have taken are given back."""
        self._check(batch)
        self._output_rows = frozenset(part.output_row for part in batch.outputs())
        code = L.llama_decode(self._context, self._rows.fill(batch))
        if code == 0:
            return
        for part in batch.parts:
            L.llama_memory_seq_rm(self._memory, part.slot, part.sequence.n_computed, -1)
        if code == 1:
            raise NoRoom
        raise DecodeFailed(f"llama_decode returned {code}: {_problems()}")

    def sample(self, sampler: Any, row: int) -> int:
        """Draws from the logits of a row; several threads may do so for different samplers, after a first read."""
        if sampler is None:
            # A tenth of the time that the library takes to copy the candidates first.
            return int(self._logits(row).argmax())
        self._check_output(row)
        token: int = L.llama_sampler_sample(sampler, self._context, row)
        return token

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        logits = self._logits(row).astype(np.float64)
        highest = logits.max()
        log_total = highest + np.log(np.exp(logits - highest).sum())
        n_top = min(n_top, len(logits))
        likeliest = np.argpartition(logits, -n_top)[-n_top:] if n_top else np.empty(0, np.intp)
        likeliest = likeliest[np.argsort(-logits[likeliest], kind="stable")]
        top = [(int(id), float(logits[id] - log_total)) for id in likeliest]
        return float(logits[token] - log_total), top

    def _logits(self, row: int) -> Any:
        """A view of a row's logits, valid until the next decode."""
        self._check_output(row)
        pointer = L.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self._vocabulary.n_tokens,))

    def n_cells_used(self) -> int:
        """Positions that the slots hold, by what the memory itself says; shared cells count for each slot."""
        return sum(L.llama_memory_seq_pos_max(self._memory, slot) + 1 for slot in range(self.room.n_slots))

    def close(self) -> None:
        L.llama_free(self._context)
        L.llama_model_free(self._model)

    def _resolved(self, sampling: Sampling) -> Sampling:
        """With the length of the context where -1 stands for it: the library would take it for 0."""
        n_ctx = self.facts.n_ctx
        return replace(
            sampling,
            penalty_last_n=n_ctx if sampling.penalty_last_n < 0 else sampling.penalty_last_n,
            dry_penalty_last_n=n_ctx if sampling.dry_penalty_last_n < 0 else sampling.dry_penalty_last_n,
        )

    def _forbidden(self, request: GenerationRequest) -> list[int]:
        """Tokens that must not be drawn: the ends, for ever or for the first `min_tokens`."""
        if not request.ignore_end and not request.min_tokens:
            return []
        stops = request.stop_token_ids if request.min_tokens else ()
        return sorted({*self._vocabulary.ends, *stops})

    def _accept_prompt(self, chain: Any, prompt: Sequence[int], sampling: Sampling, steps: set[str]) -> None:
        lengths = {"penalties": sampling.penalty_last_n, "dry": sampling.dry_penalty_last_n}
        n = max((length for name, length in lengths.items() if name in steps), default=0)
        for token in prompt[-n:] if n else ():
            L.llama_sampler_accept(chain, token)

    def _sampler(self, step: Step, sampling: Sampling) -> Any:
        construct = getattr(L, f"llama_sampler_init_{step.name}")
        n_vocab = self._vocabulary.n_tokens
        if step.name == "dry":
            breakers = [text.encode() for text in sampling.dry_sequence_breakers]
            array = (ctypes.c_char_p * len(breakers))(*breakers)
            return construct(self._vocabulary.pointer, *step.arguments, array, len(breakers))
        if step.name == "mirostat" or (step.name == "penalties" and len(construct.argtypes) == 5):
            return construct(n_vocab, *step.arguments)
        return construct(*step.arguments)

    def _logit_bias(self, biases: Sequence[tuple[int, float]]) -> Any:
        array = (L.llama_logit_bias * len(biases))(*biases)
        return L.llama_sampler_init_logit_bias(self._vocabulary.n_tokens, len(biases), array)

    def _add(self, chain: Any, sampler: Any) -> None:
        if not sampler:  # a NULL pointer; adding it would crash
            raise EngineError("llama.cpp refused a sampling step: check the sampling values")
        L.llama_sampler_chain_add(chain, sampler)

    # The checks below stand for calls that would abort the process: assertions of ours, not of input.

    def _check(self, batch: Batch) -> None:
        if not 0 < batch.n_tokens <= self.room.n_batch:
            raise ValueError(f"a batch of {batch.n_tokens} tokens; 1 to {self.room.n_batch} are allowed")
        if len(batch.parts) > self.room.n_running:
            raise ValueError(f"a batch of {len(batch.parts)} sequences; {self.room.n_running} are allowed")
        for part in batch.parts:
            self._check_slot(part.slot)

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.room.n_slots:
            raise ValueError(f"slots go from 0 to {self.room.n_slots - 1}, not {slot}")

    def _check_output(self, row: int) -> None:
        if row not in self._output_rows:
            raise ValueError(f"row {row} of the last batch has no logits; {sorted(self._output_rows)} have")


class _BatchRows:
    """The arrays of a `llama_batch`, made once; a turn writes only what it uses."""

    def __init__(self, n_rows: int):
        self._tokens = (L.llama_token * n_rows)()
        self._positions = (L.llama_pos * n_rows)()
        self._slots = (L.llama_seq_id * n_rows)()
        self._outputs = (ctypes.c_int8 * n_rows)()
        self._counts = (ctypes.c_int32 * n_rows)(*[1] * n_rows)
        pointer = ctypes.POINTER(L.llama_seq_id)
        size = ctypes.sizeof(L.llama_seq_id)
        start = ctypes.addressof(self._slots)
        # Row i's list of slots is the one number at slots[i].
        self._slot_lists = (pointer * n_rows)(*[ctypes.cast(start + row * size, pointer) for row in range(n_rows)])
        self._batch = L.llama_batch(
            n_tokens=0,
            token=self._tokens,
            embd=None,
            pos=self._positions,
            n_seq_id=self._counts,
            seq_id=self._slot_lists,
            logits=self._outputs,
        )

    def fill(self, batch: Batch) -> Any:
        for part in batch.parts:
            first, end = part.first, part.first + part.n_tokens
            start = part.sequence.n_computed
            self._tokens[first:end] = part.tokens()
            self._positions[first:end] = range(start, start + part.n_tokens)
            self._slots[first:end] = [part.slot] * part.n_tokens
            self._outputs[first:end] = [0] * part.n_tokens
            self._outputs[end - 1] = part.wants_output
        self._batch.n_tokens = batch.n_tokens
        return self._batch


def _load_model(path: str, options: LoadOptions, progress: Optional[Callable[[float], None]]) -> Any:
    params = L.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.use_extra_bufts = options.use_extra_bufts

    @L.llama_progress_callback  # type: ignore[untyped-decorator]  # ctypes
    def on_progress(done: float, _: ctypes.c_void_p) -> bool:
        if progress is not None:
            progress(done)
        return True

    params.progress_callback = on_progress
    model = L.llama_model_load_from_file(os.fsencode(path), params)
    if model is None:
        raise EngineError(f"llama.cpp cannot load {path!r}: {_problems()}")
    return model


def _check_generates(model: Any, path: str) -> None:
    if L.llama_model_has_encoder(model) or not L.llama_model_has_decoder(model) or L.llama_model_is_diffusion(model):
        raise EngineError(f"{path!r} is not a model that writes text token by token: use a chat model")


def _new_context(model: Any, options: LoadOptions) -> tuple[Any, LoadOptions]:
    """A context with as many cells as asked for or as fit, and the options as they turned out."""
    n_ctx_train: int = L.llama_model_n_ctx_train(model)
    n_ctx = options.n_ctx or n_ctx_train
    # What was asked for is tried whatever the estimate says; the default adapts to the machine.
    n_wanted = options.n_cells or max(min(n_ctx * options.n_slots, _affordable_cells(model)), options.n_ctx, _MIN_CELLS)
    n_least = options.n_cells or options.n_ctx or _MIN_CELLS
    context, n_cells = None, n_wanted
    while context is None:
        if n_cells < n_least:
            raise EngineError(
                f"llama.cpp could not make a context of {n_least} to {n_wanted} tokens ({_problems()}): "
                "use a smaller --ctx"
            )
        context = L.llama_init_from_model(model, _context_params(model, options, n_cells))
        n_cells = n_cells // 2 if n_cells == n_least else max(n_cells // 2, n_least)
    n_ctx = min(n_ctx, L.llama_n_ctx(context))
    if not options.n_ctx and n_ctx < n_ctx_train:
        log.warning("memory holds a context of %d tokens; the model could use %d", n_ctx, n_ctx_train)
    return context, replace(options, n_ctx=n_ctx)


def _context_params(model: Any, options: LoadOptions, n_cells: int) -> Any:
    params = L.llama_context_default_params()
    params.n_ctx = n_cells
    params.n_seq_max = min(options.n_slots + _RESTING_SLOTS, L.llama_max_parallel_sequences())
    params.n_batch = min(_GPU_BATCH if supports_gpu() and options.n_gpu_layers else _CPU_BATCH, n_cells)
    params.n_ubatch = min(_CPU_BATCH, params.n_batch)
    # Fewer than n_seq_max aborts the process; the default reserves logits for a whole batch.
    params.n_outputs_max = params.n_seq_max
    params.n_threads = params.n_threads_batch = options.n_threads or default_threads(L.llama_model_size(model))
    params.kv_unified = True
    return params


def _affordable_cells(model: Any) -> int:
    free = _free_memory()
    if free is None:
        return 1 << 30
    n_heads = max(L.llama_model_n_head(model), 1)
    width = L.llama_model_n_embd(model) // n_heads * L.llama_model_n_head_kv(model)
    bytes_per_cell: int = 2 * 2 * width * L.llama_model_n_layer(model)  # keys and values, 16 bits each
    return int(free * _CELL_MEMORY_SHARE) // max(bytes_per_cell, 1)


def _free_memory() -> Optional[int]:
    """Bytes that programs can still have of this machine's memory; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            sizes = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return int(sizes["MemAvailable"][0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _read_facts(model: Any, context: Any, vocabulary: Vocabulary, options: LoadOptions) -> ModelFacts:
    metadata = _read_metadata(model)
    template = L.llama_model_chat_template(model, None)
    return ModelFacts(
        description=_read_text(lambda room, n: L.llama_model_desc(model, room, n)),
        n_params=L.llama_model_n_params(model),
        n_bytes=L.llama_model_size(model),
        n_vocab=vocabulary.n_tokens,
        n_ctx_train=L.llama_model_n_ctx_train(model),
        n_ctx=options.n_ctx,
        n_cells=L.llama_n_ctx(context),
        n_slots=options.n_slots,
        chat_template=None if template is None else template.decode("utf-8", "replace"),
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        add_bos=vocabulary.add_bos,
        special_tokens=vocabulary.special_tokens,
        sampling=sampling_from(metadata),
        metadata=metadata,
    )


def sampling_from(metadata: dict[str, str]) -> Sampling:
    """Our sampling defaults with the model author's recommendations over them (K9)."""
    values: dict[str, Any] = {}
    for name, (key, read) in _SAMPLING_KEYS.items():
        if key in metadata:
            try:
                values[name] = read(metadata[key])
            except ValueError:
                log.warning("the model's %s is %r, which is no number: ignored", key, metadata[key])
    return Sampling(**values)


def _read_metadata(model: Any) -> dict[str, str]:
    """All metadata but arrays, which the library only describes."""
    names = [
        _read_text(lambda room, n, i=i: L.llama_model_meta_key_by_index(model, i, room, n))  # type: ignore[misc]
        for i in range(L.llama_model_meta_count(model))
    ]
    return {name: _read_text(lambda room, n, name=name: _meta(model, name, room, n)) for name in names}  # type: ignore[misc]


def _meta(model: Any, name: str, room: Any, n_room: int) -> int:
    length: int = L.llama_model_meta_val_str(model, name.encode(), room, n_room)
    return length


def _read_text(read: Callable[[Any, int], int]) -> str:
    """Calls a function that writes a text and returns its length, again with more room if it was longer."""
    n_room = 256
    while True:
        room = ctypes.create_string_buffer(n_room)
        n = read(room, n_room)
        if n < n_room:
            return room.raw[: max(n, 0)].decode("utf-8", "replace")
        n_room = n + 1


def _problems() -> str:
    """What the library said went wrong since it was last asked."""
    problems = "; ".join(_recent_problems)
    _recent_problems.clear()
    return problems or "it gave no reason"
