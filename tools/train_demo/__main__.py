"""`python -m tools.train_demo`: train, export and evaluate the built-in model."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from .config import TrainConfig

DEFAULT_OUT = Path("localchat/serving/models/demo.gguf")
DEFAULT_CHECKPOINT = Path("build/train_demo/checkpoint.pt")
# With more workers, the share of each would be shorter than a long dialogue.
_MAX_WORKERS = 4
# Crashes or gives a wrong result on a CPU that announces matrix instructions (AMX) and faults on their use.
_MULTIPLY = "import torch; a = torch.ones(256, 256).bfloat16(); assert (a @ a == 256).all()"


def _arguments() -> argparse.Namespace:
    defaults = TrainConfig()
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo", description=__doc__)
    parser.add_argument("--tokens", type=int, help=f"tokens to train on (default {defaults.tokens})")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of weights and data")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="the GGUF file to write")
    parser.add_argument("--checkpoint", type=Path, default=DEFAULT_CHECKPOINT, help="file to save progress in")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--start-from", type=Path, metavar="GGUF", help="begin with the weights of an exported file")
    parser.add_argument(
        "--rate", type=float, default=1.0, help="share of the learning rates to begin with, e.g. 0.5 with --start-from"
    )
    parser.add_argument(
        "--keep",
        type=float,
        default=0.0,
        help="share of the weights of --start-from in the result, e.g. 0.4",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=_cores(),
        help="processes that share the work (default: one per core, here %(default)s)",
    )
    parser.add_argument("--export-only", action="store_true", help="export the checkpoint without training")
    parser.add_argument("--no-evaluation", action="store_true", help="do not print the held-out figures")
    return parser.parse_args()


def _cores() -> int:
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n_cores, _MAX_WORKERS)


def _prepare_cpu() -> None:
    """Set variables that PyTorch's libraries read when they are loaded, unless the user has set them.

    Workers inherit the variables.
    """
    # Waiting threads must not spin: if another process uses the cores, spinning costs most of the speed.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    # Some virtual machines announce AMX and fault on its use. With AMX, matrix products take a tenth of the time.
    if subprocess.run([sys.executable, "-c", _MULTIPLY], capture_output=True).returncode:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def main() -> None:
    """Train, export, evaluate."""
    arguments = _arguments()
    if (arguments.resume or arguments.export_only) and not arguments.checkpoint.exists():
        raise SystemExit(f"{arguments.checkpoint} does not exist: start without --resume, or name it with --checkpoint")
    if arguments.keep and not arguments.start_from:
        raise SystemExit(f"--keep {arguments.keep} keeps weights of a file: name it with --start-from")
    if not 0 <= arguments.keep <= 1:
        raise SystemExit(f"--keep {arguments.keep} is no share: give a number from 0 to 1")
    _prepare_cpu()
    # These modules import torch, which must happen after `_prepare_cpu`.
    from . import job, training, workers
    from .export import export
    from .from_gguf import keep

    if not arguments.export_only:
        workers.run(1 if training.device().type == "cuda" else arguments.workers, job.train, arguments)
    trainer = training.resume(arguments.checkpoint)
    if arguments.keep:
        keep(trainer, arguments.start_from, arguments.keep)
    export(trainer, arguments.out)
    print(f"wrote {arguments.out}, {arguments.out.stat().st_size} bytes", flush=True)
    if not arguments.no_evaluation:
        from .evaluate import evaluate_file

        evaluate_file(arguments.out)


if __name__ == "__main__":
    main()
