"""`python -m tools.train_demo.evaluate FILE.gguf`: measure a model per skill, with llama.cpp or localchat's server."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Protocol

from .cases import Case, everyday_cases, held_out_cases, without_reasoning
from .llama_runner import Completion, LlamaRunner, Request
from .probes import is_sane, known_words, probes
from .served_runner import ServedRunner

# Enough that one case changes a figure by half a percent.
DEFAULT_CASES = 200
MAX_TOKENS = 220


class Table:
    """The results per column, in the order in which the columns first appear."""

    def __init__(self) -> None:
        self._results: dict[str, list[bool]] = defaultdict(list)

    def add(self, column: str, passed: bool) -> None:
        """Add one result."""
        self._results[column].append(passed)

    def shares(self) -> dict[str, float]:
        """The share of passed results per column."""
        return {column: sum(results) / len(results) for column, results in self._results.items()}

    def lines(self) -> list[str]:
        """The table as Markdown."""
        rows = [f"| {c} | {sum(r) / len(r):.3f} | {len(r)} |" for c, r in self._results.items()]
        return ["| skill | passed | cases |", "|---|---|---|", *rows]


class Runner(Protocol):
    """Runs the model: through llama.cpp, or through localchat's server."""

    def generate(self, request: Request, max_tokens: int, temperature: float, seed: int) -> tuple[str, Completion]:
        """The prompt, and the completion."""


class Evaluation:
    """Runs cases and probes, and collects the results in `table`."""

    def __init__(self, runner: Runner, temperature: float = 0.0, failures: Path | None = None) -> None:
        self._runner = runner
        self._temperature = temperature
        self._n_requests = 0
        self._failures = failures.open("w", encoding="utf-8") if failures else None
        self.table = Table()

    def _generate(self, request: Request) -> tuple[str, Completion]:
        self._n_requests += 1
        prompt, completion = self._runner.generate(request, MAX_TOKENS, self._temperature, seed=self._n_requests)
        self.table.add("stops by itself", completion.stopped)
        return prompt, completion

    def _note_failure(self, columns: list[str], prompt: str, output: str) -> None:
        if self._failures and columns:
            record = {"failed": columns, "prompt": prompt, "output": output}
            self._failures.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._failures.flush()

    def run_case(self, case: Case) -> None:
        """Run one case and add its results."""
        prompt, completion = self._generate(Request(case.messages, case.tools, case.thinking))
        output = completion.text
        results = case.judge(output.strip())
        # Reasoning that was not requested counts as wrong only in the columns about reasoning.
        if not any(column.startswith("thinking") for column in results):
            results = case.judge(without_reasoning(output))
        for column, passed in results.items():
            self.table.add(column, passed)
        self._note_failure([column for column, passed in results.items() if not passed], prompt, output)

    def run_probes(self) -> None:
        """Run all probes and add whether their outputs are sane."""
        known = known_words()
        for column, messages, tools in probes():
            prompt, completion = self._generate(Request(messages, tools, None))
            sane = completion.stopped and is_sane(completion.text, prompt, known)
            self.table.add(f"sane: {column}", sane)
            self._note_failure([] if sane else [f"sane: {column}"], prompt, completion.text)


def evaluate_file(
    path: Path,
    n_cases: int = DEFAULT_CASES,
    temperature: float = 0.0,
    held_out: bool = True,
    failures: Path | None = None,
    served: bool = False,
) -> Table:
    """Measure a file and print the table. `served` uses localchat's server in place of llama.cpp alone."""
    with ServedRunner(path) if served else LlamaRunner(path) as runner:
        evaluation = Evaluation(runner, temperature, failures)
        for case in (*held_out_cases(n_cases, held_out=held_out), *everyday_cases()):
            evaluation.run_case(case)
        evaluation.run_probes()
    how = "localchat's server" if served else "llama.cpp"
    words = "held-out" if held_out else "trained"
    print(f"{path.name} through {how}, temperature {temperature:g}, {words} words and phrasings")
    print("\n".join(evaluation.table.lines()), flush=True)
    return evaluation.table


def main() -> None:
    """Evaluate the file named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo.evaluate", description=__doc__)
    parser.add_argument("file", type=Path, help="a GGUF file with a ChatML template")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help="per skill")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--trained", action="store_true", help="use the trained half of the split instead")
    parser.add_argument("--served", action="store_true", help="use localchat's server in place of llama.cpp alone")
    parser.add_argument("--failures", type=Path, help="write failed cases here, one JSON object per line")
    arguments = parser.parse_args()
    if not arguments.file.exists():
        raise SystemExit(f"{arguments.file} does not exist: train it with python -m tools.train_demo")
    evaluate_file(
        arguments.file,
        arguments.cases,
        arguments.temperature,
        not arguments.trained,
        arguments.failures,
        arguments.served,
    )


if __name__ == "__main__":
    main()
