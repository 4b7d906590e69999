r"""All rows of the table of bench/README.md: runs `bench.compare` with the models and loads of the table.

    python -m bench.table FOLDER --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf \
        --qwen qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf

The models with random weights are written into FOLDER if it does not have them. Without a real model, its rows are left
out. Takes about 12 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

from localchat.serving.models.model_file import DEMO_PATH

from . import compare, model

# By file name: the arguments of `bench.model`.
RANDOM_MODELS = {"small.gguf": ["--params", "10M"], "large.gguf": ["--params", "0.5B"]}
SIZES = ["--ctx", "2048", "--slots", "16"]
DECODING = ["decode1", "decode4", "decode16"]
PROMPTS = ["p220x16", "default8x40", "default8x220", "default8shared"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.table", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the models with random weights are, or are written")
    parser.add_argument("--smollm2", type=_existing, metavar="FILE", help="SmolLM2 135M, a GGUF file")
    parser.add_argument("--qwen", type=_existing, metavar="FILE", help="Qwen2.5-Coder 0.5B, a GGUF file")
    parser.add_argument("--servers", nargs="+", default=["localchat", "llama-server"])
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, shape in RANDOM_MODELS.items():
        if not (options.folder / name).exists():
            model.main([str(options.folder / name), "--vocab", "152000", *shape])
    started = time.monotonic()
    for run in runs(options.folder, options.smollm2, options.qwen):
        command = [*run, *SIZES, "--servers", *options.servers]
        print(f"\npython -m bench.compare {shlex.join(command)}", flush=True)
        compare.main(command)
        print(f"{time.monotonic() - started:.0f} s", flush=True)


def runs(folder: Path, smollm2: str | None, qwen: str | None) -> list[list[str]]:
    """The arguments of `bench.compare` for each model of the table."""

    def run(path: Path | str, rounds: int, tokens: int, *loads: str) -> list[str]:
        return [str(path), "--rounds", str(rounds), "--tokens", str(tokens), "--loads", *loads]

    found = [
        run(DEMO_PATH, 5, 256, "cost", *DECODING),
        run(folder / "small.gguf", 5, 128, "cost", *DECODING),
        run(folder / "large.gguf", 3, 32, "cost", *DECODING, *PROMPTS),
    ]
    if smollm2:
        found.append(run(smollm2, 3, 128, "cost", *DECODING, "turns", "default_turns", "natural"))
    if qwen:
        found.append(run(qwen, 3, 128, "natural", "copy"))
    return found


def _existing(path: str) -> str:
    """The path of a file. One that does not exist would end the program after the first models, minutes later."""
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return path


if __name__ == "__main__":
    main()
