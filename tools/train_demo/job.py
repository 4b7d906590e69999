"""The work of each worker process: make a trainer by the arguments of the command, and run it."""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import sys

from . import training
from .config import ModelConfig, TrainConfig
from .from_gguf import from_gguf

# Parameters of mallopt, which are macros in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def train(arguments: argparse.Namespace) -> None:
    """Train with the arguments of the command, and save the result as a checkpoint."""
    _keep_memory()
    if arguments.resume:
        trainer = training.resume(arguments.checkpoint, arguments.tokens)
    else:
        model_config = ModelConfig()
        config = TrainConfig(
            seed=arguments.seed,
            tokens=arguments.tokens or TrainConfig.tokens,
            muon_lr=TrainConfig.muon_lr * arguments.rate,
            adam_lr=TrainConfig.adam_lr * arguments.rate,
        )
        if arguments.start_from:
            trainer = from_gguf(arguments.start_from, model_config, config)
        else:
            tokenizer = training.make_tokenizer(model_config, config.seed)
            trainer = training.Trainer(model_config, config, tokenizer)
    if trainer.device.type == "cpu" and shutil.which(os.environ.get("CXX", "g++")):
        trainer.model.fuse()
    trainer.run(arguments.checkpoint, _log)


def _keep_memory() -> None:
    """Make malloc keep freed memory: on some machines, new memory for each tensor takes longer than the arithmetic."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _log(line: str) -> None:
    print(line, flush=True)
