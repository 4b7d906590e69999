"""`python -m tools.train_demo`: from nothing to the built-in model's file and its figures."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from pathlib import Path

from .config import ModelConfig, TrainConfig

DEFAULT_OUT = Path("localchat/models/demo.gguf")
# mallopt's names for these are macros: malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
DEFAULT_CHECKPOINT = Path("build/train_demo/checkpoint.pt")


def _arguments() -> argparse.Namespace:
    defaults = TrainConfig()
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo", description=__doc__)
    parser.add_argument("--tokens", type=int, help=f"tokens to train on (default {defaults.tokens})")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of weights and data")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="the GGUF file to write")
    parser.add_argument("--checkpoint", type=Path, default=DEFAULT_CHECKPOINT, help="file to save progress in")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--start-from", type=Path, metavar="GGUF", help="begin with the weights of an exported file")
    parser.add_argument(
        "--rate", type=float, default=1.0, help="share of the learning rates to begin with, e.g. 0.5 with --start-from"
    )
    parser.add_argument("--export-only", action="store_true", help="export the checkpoint without training")
    parser.add_argument("--no-evaluation", action="store_true", help="do not print the held-out figures")
    return parser.parse_args()


def _prepare_cpu() -> None:
    """Settings that PyTorch's libraries read when they are loaded; the user's own win."""
    # Waiting threads must not spin: beside another process that costs most of the speed.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    # Some virtual machines announce AMX and fault on its use; this stays below it.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    # Fresh memory for every large tensor costs more than the arithmetic on some machines.
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _log(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Train, export, evaluate."""
    arguments = _arguments()
    _prepare_cpu()
    from . import training  # loads torch, after the settings above

    if arguments.resume or arguments.export_only:
        if not arguments.checkpoint.exists():
            raise SystemExit(
                f"{arguments.checkpoint} does not exist: start without --resume, or name it with --checkpoint"
            )
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
            from .from_gguf import from_gguf

            trainer = from_gguf(arguments.start_from, model_config, config)
        else:
            tokenizer = training.make_tokenizer(model_config, config.seed)
            trainer = training.Trainer(model_config, config, tokenizer)
    if not arguments.export_only:
        trainer.run(arguments.checkpoint, _log)
    from .export import export

    export(trainer, arguments.out)
    _log(f"wrote {arguments.out}, {arguments.out.stat().st_size} bytes")
    if not arguments.no_evaluation:
        from .evaluate import evaluate_file

        evaluate_file(arguments.out)


if __name__ == "__main__":
    main()
