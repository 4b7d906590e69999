"""The training loop: a warm start, then dialogues, while both learning rates decrease linearly to zero.

Progress is counted in tokens, not in seconds, so that a slow machine trains the same model. A checkpoint has all that a
resumed run needs: weights, optimisers and progress.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, Callable

import numpy as np
import torch
import torch.nn.functional as F

from . import workers
from .batches import Batch, BatchStream
from .config import ModelConfig, TrainConfig
from .data.mixture import dialogues
from .dialogue import render
from .drills import drill_rows
from .model import DemoModel
from .muon import Muon
from .tokenizer import Tokenizer
from .tokenizer import train as train_tokenizer
from .warm_start import CONSTANT_CHANNEL, repeated_tokens, repetition_loss, set_previous_token_heads

# How many dialogues the vocabulary is learned from.
TOKENIZER_DIALOGUES = 12_000
# The warm start ends when the loss of random repetitions, in nats per token, is below this, or after this many steps.
COPYING_LOSS = 0.35
MAX_WARM_START_STEPS = 600
# One of this many steps has a drill beside the dialogues, with this many rows for each worker.
DRILL_EVERY_STEPS = 3
DRILL_ROWS = 5
LOG_EVERY_STEPS = 50


def make_tokenizer(config: ModelConfig, seed: int) -> Tokenizer:
    """Learn the vocabulary from the first dialogues of the training text."""
    texts = (
        "".join(segment.text for segment in render(dialogue))
        for dialogue in islice(dialogues(seed), TOKENIZER_DIALOGUES)
    )
    return train_tokenizer(texts, config.vocab_size)


def device() -> torch.device:
    """The device of the tensors: a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _fastest_dtype(device: torch.device) -> torch.dtype:
    """The type in which matrices are multiplied. With bfloat16 some CPUs are twice as fast, others half as fast."""
    if device.type == "cuda":
        return torch.bfloat16
    seconds = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b = torch.ones(4096, 256, dtype=dtype), torch.ones(1024, 256, dtype=dtype)
        F.linear(a, b)
        began = time.perf_counter()
        for _ in range(10):
            F.linear(a, b)
        seconds[dtype] = time.perf_counter() - began
    # All workers must round in the same way.
    return (torch.float32, torch.bfloat16)[workers.agreed(seconds[torch.bfloat16] < seconds[torch.float32])]


def _no_log(line: str) -> None:
    """Drop a log line, since another worker writes it."""


class Trainer:
    """Model, optimisers and progress of one run."""

    def __init__(self, model_config: ModelConfig, config: TrainConfig, tokenizer: Tokenizer) -> None:
        torch.manual_seed(config.seed)
        self.model_config = model_config
        self.config = config
        self.tokenizer = tokenizer
        self.device = device()
        self.model = DemoModel(model_config)
        set_previous_token_heads(self.model)
        self.model.to(self.device)
        self.dtype = _fastest_dtype(self.device)
        # Whether the warm start has been done.
        self.warm = False
        # With the weights and the optimisers this is the whole state of a run; the rest depends only on the seed.
        self.tokens_done = 0
        self.batches_done = 0
        self._make_optimisers()

    def _make_optimisers(self) -> None:
        c, model = self.model_config, self.model
        q, kv, ff = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.feed_forward
        matrices = [
            (model.qkv, (q, kv, kv)),
            (model.attention_out, (c.width,)),
            (model.gate_up, (ff, ff)),
            (model.down, (c.width,)),
        ]
        rest = [model.embedding, model.attention_norm, model.feed_forward_norm, model.output_norm]
        self.muon = Muon(matrices, lr=self.config.muon_lr, dtype=self.dtype)
        self.adam = torch.optim.AdamW(rest, lr=self.config.adam_lr, betas=(0.9, 0.98), weight_decay=0.0)

    def _set_rates(self, share: float) -> None:
        for group in self.muon.param_groups:
            group["lr"] = self.config.muon_lr * share
        for group in self.adam.param_groups:
            group["lr"] = self.config.adam_lr * share

    def _update(self, loss: torch.Tensor) -> None:
        loss.backward()
        workers.average(parameter.grad for parameter in self.model.parameters() if parameter.grad is not None)
        assert self.model.embedding.grad is not None
        self.model.embedding.grad[:, CONSTANT_CHANNEL] = 0
        self.muon.step()
        self.adam.step()
        self.muon.zero_grad()
        self.adam.zero_grad()

    def warm_start(self, log: Callable[[str], None]) -> None:
        """Train copying on random tokens, then reset the optimisers."""
        mean = 10.0
        for step in range(MAX_WARM_START_STEPS):
            self._set_rates(min(1.0, (step + 1) / self.config.warmup_steps))
            mean += 0.1 * (self._repeat(step) - mean)
            if step % 20 == 0:
                log(f"warm start: step {step}, loss {mean:.3f}")
            if mean < COPYING_LOSS:
                break
        log(f"warm start: {step + 1} steps, loss {mean:.3f}")
        self._make_optimisers()
        self.warm = True

    def _repeat(self, step: int) -> float:
        """Make one update on repeated random tokens; returns the loss in nats per token."""
        generator = torch.Generator().manual_seed(self.config.seed + step)
        tokens = repeated_tokens(generator, self.model_config.vocab_size, 64, 64)
        loss = repetition_loss(self.model, tokens.to(self.device), self.dtype)
        self._update(loss)
        return float(loss.detach())

    def _loss(
        self, inputs: torch.Tensor, positions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        hidden = self.model(inputs, self.dtype).flatten(0, 1).index_select(0, positions)
        losses = self.model.losses(hidden, targets)
        return (losses * weights).sum() / weights.sum()

    def _drill_loss(self) -> torch.Tensor:
        rng = np.random.default_rng((self.config.seed, self.batches_done, workers.rank()))
        tokens, follows = drill_rows(rng, self.tokenizer, DRILL_ROWS)
        positions = np.flatnonzero(follows[:, 1:])
        targets = tokens[:, 1:].reshape(-1)[positions]
        arrays = (tokens[:, :-1], positions, targets, np.ones(len(positions), np.float32))
        return self._loss(*(torch.from_numpy(array).to(self.device) for array in arrays))

    def step(self, batch: Batch) -> torch.Tensor:
        """Make one update on a batch; returns the weighted loss in nats per token."""
        ramp = min(1.0, (self.batches_done + 1) / self.config.warmup_steps)
        self._set_rates(ramp * max(0.0, 1 - self.tokens_done / self.config.tokens))
        arrays = (batch.inputs, batch.positions, batch.targets, batch.weights)
        loss = self._loss(*(torch.from_numpy(array).to(self.device) for array in arrays))
        if self.batches_done % DRILL_EVERY_STEPS == 0:
            # A separate pass, since drills have other lengths than dialogues. The gradients add up.
            self._drill_loss().backward()
        self._update(loss)
        self.tokens_done += int(workers.total(batch.n_tokens))
        self.batches_done += 1
        return loss.detach()

    def run(self, checkpoint: Path, log: Callable[[str], None]) -> None:
        """Train on the configured number of tokens, and save checkpoints regularly and at the end.

        With several workers, each computes a part of the batch of every step; the first one saves and logs.
        """
        if workers.rank():
            log = _no_log
        if not self.warm:
            self.warm_start(log)
        n_workers = workers.count()
        stream = BatchStream(self.tokenizer, replace(self.config, batch_tokens=self.config.batch_tokens // n_workers))
        batches = islice(stream, workers.rank() + self.batches_done * n_workers, None, n_workers)
        saved = began = time.monotonic()
        began_at, losses = self.tokens_done, []
        while self.tokens_done < self.config.tokens:
            losses.append(self.step(next(batches)))
            if self.batches_done % LOG_EVERY_STEPS == 0:
                speed = (self.tokens_done - began_at) / (time.monotonic() - began)
                mean = float(torch.stack(losses).mean())
                log(f"{self.tokens_done / 1e6:.2f}M tokens, loss {mean:.4f}, {speed:.0f} tokens/s")
                losses.clear()
            if time.monotonic() - saved > self.config.save_every_s:
                self.save(checkpoint)
                saved = time.monotonic()
        self.save(checkpoint)

    def save(self, path: Path) -> None:
        """Write a checkpoint, in the first worker only. An interrupted write leaves the earlier one unchanged."""
        if workers.rank():
            return
        state = {
            "model_config": asdict(self.model_config),
            "config": asdict(self.config),
            "tokenizer": {"tokens": self.tokenizer.tokens, "merges": self.tokenizer.merges},
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "tokens_done": self.tokens_done,
            "batches_done": self.batches_done,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        torch.save(state, unfinished)
        unfinished.replace(path)


def resume(path: Path, tokens: int | None = None) -> Trainer:
    """A trainer that continues from a checkpoint; `tokens` replaces the number of tokens of the checkpoint."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    config = state["config"]
    if tokens is not None:
        config["tokens"] = tokens
    merges = [(a, b) for a, b in state["tokenizer"]["merges"]]
    tokenizer = Tokenizer(state["tokenizer"]["tokens"], merges)
    trainer = Trainer(ModelConfig(**state["model_config"]), TrainConfig(**config), tokenizer)
    trainer.model.load_state_dict(state["model"])
    trainer.muon.load_state_dict(state["muon"])
    trainer.adam.load_state_dict(state["adam"])
    trainer.tokens_done, trainer.batches_done = state["tokens_done"], state["batches_done"]
    trainer.warm = True
    return trainer
