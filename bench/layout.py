"""Measures the two layouts of llama.cpp's KV cache: one buffer for all sequences, or a stream for each.

    python -m bench.layout MODEL.gguf                 both layouts, all loads
    python -m bench.layout MODEL.gguf --loads equal   only whether greedy texts are equal alone and together

The program calls llama.cpp without the engine, so that only the layout differs. Each load runs in its own process.
"""

from __future__ import annotations

import argparse
import ctypes
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# "passes" are streams whose prompts are computed separately from decoding, in multiples of _TILE tokens.
LAYOUTS = ("unified", "streams", "passes")
# llama.cpp computes attention in tiles if a stream has at least this many rows. The tiles round in another way.
_TILE = 64
_N_UBATCH, _N_BATCH, _N_STEPS = 512, 2048, 16


def main(arguments: list[str] | None = None) -> None:
    options = read_arguments(arguments)
    if options.layout:
        LOADS[options.loads[0]](options)
        return
    for load in options.loads:
        for layout in LAYOUTS if load == "equal" else LAYOUTS[:2]:
            command = [sys.executable, "-m", "bench.layout", options.model, "--layout", layout, "--loads", load]
            subprocess.run([*command, "--length", str(options.length), "--threads", str(options.threads)], check=True)


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.layout", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--loads", nargs="+", default=list(LOADS), choices=list(LOADS))
    parser.add_argument("--length", type=int, default=4000, help="tokens of a long conversation")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layout", choices=LAYOUTS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


class Row(NamedTuple):
    sequence: int
    position: int
    token: int
    wants_logits: bool = False


class Context:
    """A llama.cpp context of `n_sequences` sequences, each with `n_each` cells."""

    def __init__(self, options: argparse.Namespace, n_sequences: int, n_each: int):
        from localchat.serving.engine.llama.library import L
        from localchat.serving.engine.tuning import has_matrix_instructions

        self.L = L
        params = L.llama_model_default_params()
        params.use_extra_bufts = not has_matrix_instructions()  # They crash on some machines.
        model = L.llama_model_load_from_file(options.model.encode(), params)
        settings = L.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = n_sequences * n_each, n_sequences
        settings.n_batch, settings.n_ubatch, settings.n_outputs_max = _N_BATCH, _N_UBATCH, n_sequences
        settings.n_threads = settings.n_threads_batch = options.threads
        settings.kv_unified = options.layout == "unified"
        self.pointer = L.llama_init_from_model(model, settings)
        self.memory = L.llama_get_memory(self.pointer)
        self.n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        self.batch = L.llama_batch_init(_N_BATCH, 0, 1)

    def decode(self, rows: list[Row]) -> list[int]:
        """Compute rows; returns the likeliest token after each row that wants logits."""
        for i, row in enumerate(rows):
            self.batch.token[i], self.batch.pos[i], self.batch.n_seq_id[i] = row.token, row.position, 1
            self.batch.seq_id[i][0], self.batch.logits[i] = row.sequence, row.wants_logits
        self.batch.n_tokens = len(rows)
        code = self.L.llama_decode(self.pointer, self.batch)
        assert code == 0, code
        self.L.llama_synchronize(self.pointer)
        n_outputs = sum(row.wants_logits for row in rows)
        if not n_outputs:
            return []
        logits = np.ctypeslib.as_array(self.L.llama_get_logits(self.pointer), (n_outputs, self.n_vocab))
        return [int(token) for token in logits.argmax(1)]

    def prefill(self, sequence: int, tokens: list[int]) -> None:
        for first in range(0, len(tokens), _N_UBATCH):
            part = tokens[first : first + _N_UBATCH]
            self.decode([Row(sequence, first + i, token) for i, token in enumerate(part)])

    def share(self, targets: range, n_tokens: int, by_state: bool) -> None:
        """Copy the first sequence to others, as a state or with `llama_memory_seq_cp`, and truncate the copies."""
        n_bytes = self.L.llama_state_seq_get_size(self.pointer, 0) if by_state else 0
        data = (ctypes.c_uint8 * n_bytes)()
        if by_state:
            self.L.llama_state_seq_get_data(self.pointer, data, n_bytes, 0)
        for target in targets:
            if by_state:
                assert self.L.llama_state_seq_set_data(self.pointer, data, n_bytes, target)
            else:
                self.L.llama_memory_seq_cp(self.memory, 0, target, -1, -1)
            self.truncate(target, n_tokens)

    def length(self, sequence: int) -> int:
        return int(self.L.llama_memory_seq_pos_max(self.memory, sequence)) + 1

    def truncate(self, sequence: int, n_tokens: int) -> None:
        self.L.llama_memory_seq_rm(self.memory, sequence, n_tokens, -1)

    def step_ms(self, sequences: list[int], fillers: list[int] | None = None) -> float:
        """Milliseconds of a step that computes a token of each sequence, and a row without output of each filler."""
        times = []
        for n in range(_N_STEPS):
            present = sorted({*sequences, *(fillers or [])})
            rows = [Row(id, self.length(id), 300 + n, id in sequences) for id in present]
            started = time.perf_counter()
            self.decode(rows)
            times.append(time.perf_counter() - started)
        return 1e3 * float(np.median(times))


def timed_s(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def report(options: argparse.Namespace, load: str, **figures: float) -> None:
    print(f"{options.layout:<8} {load:<14}", *(f"{name} {figure:.4g}" for name, figure in figures.items()), flush=True)


def some_tokens(n: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(256, 1500, n)]


def conversations(options: argparse.Namespace) -> None:
    """Steps of all of 8 sequences of `length` tokens and of one of them; 512 prompt tokens of a ninth sequence."""
    context = Context(options, 9, -(-(options.length + 1024) // 256) * 256)
    context.prefill(0, some_tokens(options.length, 1))
    context.share(range(1, 8), options.length, by_state=True)
    figures = {"all_ms": context.step_ms([*range(8)]), "one_ms": context.step_ms([3])}
    figures["prompt_512_s"] = timed_s(lambda: context.prefill(8, some_tokens(512, 2)))
    figures["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report(options, "conversations", **figures)


def shared(options: argparse.Namespace) -> None:
    """16 requests that share 500 tokens and have 20 of their own; then 8 choices of one prompt."""
    for by_state in (False, True) if options.layout == "streams" else (False,):
        shared_by(options, by_state)


def shared_by(options: argparse.Namespace, by_state: bool) -> None:
    context = Context(options, 16, 4096)
    figures = {"prompt_s": timed_s(lambda: context.prefill(0, some_tokens(500, 1)))}
    context.decode([Row(0, 500, 300)])  # `llama_decode` executes a copy that was queued.
    figures["share_s"] = timed_s(lambda: context.share(range(1, 16), 500, by_state))
    rows = [Row(id, 500 + n, 300 + id + n, n == 19) for id in range(1, 16) for n in range(20)]
    figures["own_s"] = timed_s(lambda: context.decode(rows))
    figures.update(sixteen_ms=context.step_ms([*range(1, 16)]), eight_ms=context.step_ms([*range(1, 9)]))
    report(options, "shared, state" if by_state else "shared, copy", **figures)


def gaps(options: argparse.Namespace) -> None:
    """Steps of 8 of 16 sequences: side by side, every second one, and with the gaps filled by rows without output."""
    context = Context(options, 16, 1024)
    for sequence in range(16):
        context.prefill(sequence, some_tokens(50, sequence))
    figures = {"dense_ms": context.step_ms([*range(8)]), "gaps_ms": context.step_ms([*range(0, 16, 2)])}
    figures["filled_ms"] = context.step_ms([*range(0, 16, 2)], fillers=[*range(15)])
    report(options, "gaps", **figures)


def equal(options: argparse.Namespace) -> None:
    """How many of 32 greedy texts are equal if 16 requests run at a time and if each runs alone."""
    context = Context(options, 16, 1024)
    prompts = [some_tokens(int(n), i) for i, n in enumerate(np.random.default_rng(0).integers(10, 200, 32))]
    alone = [generate(context, options.layout, [prompt], 1)[0] for prompt in prompts]
    together = generate(context, options.layout, prompts, 16)
    report(options, "equal", equal=sum(a == b for a, b in zip(alone, together)), of=len(prompts))


def generate(context: Context, layout: str, prompts: list[list[int]], n_at_once: int) -> list[list[int]]:
    """The prompts, each with 48 greedy tokens. A step computes at most 256 tokens of all sequences."""
    context.L.llama_memory_clear(context.memory, False)
    texts, waiting = [list(prompt) for prompt in prompts], list(range(len(prompts)))
    running: dict[int, int] = {}
    while waiting or running:
        while waiting and len(running) < n_at_once:
            running[min(set(range(n_at_once)) - set(running))] = waiting.pop(0)
        n_left = 256
        chunks: list[list[Row]] = []
        for slot, i in sorted(running.items()):
            start, n_missing = context.length(slot), len(texts[i]) - context.length(slot)
            n = min(n_missing, n_left)
            if layout == "passes" and (n < n_missing or n > _TILE):
                n -= n % _TILE
            chunk = [Row(slot, p, texts[i][p], p == len(texts[i]) - 1) for p in range(start, start + n)]
            n_left -= n
            chunks += [chunk] if chunk else []
        batches = [chunks]
        if layout == "passes":
            # Each prompt is a batch; the last batch has the sequences that decode.
            batches = [[chunk] for chunk in chunks if len(chunk) > 1] + [[chunk for chunk in chunks if len(chunk) == 1]]
        for batch in filter(None, batches):
            step(context, batch, texts, running)
        for slot, i in list(running.items()):
            if len(texts[i]) == len(prompts[i]) + 48:
                del running[slot]
                context.truncate(slot, 0)
    return texts


def step(context: Context, chunks: list[list[Row]], texts: list[list[int]], running: dict[int, int]) -> None:
    """Compute the chunks of a batch, and append the likeliest token to each text whose last token is in it."""
    rows = [row for chunk in chunks for row in chunk]
    for row, token in zip((row for row in rows if row.wants_logits), context.decode(rows)):
        texts[running[row.sequence]].append(token)


LOADS = {"conversations": conversations, "shared": shared, "gaps": gaps, "equal": equal}

if __name__ == "__main__":
    main()
