"""`python -m tools.train_demo.evaluate FILE.gguf`: figures per skill, measured through llama.cpp."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Optional

import numpy as np

from .cases import Case, held_out_cases, without_thought
from .llama_runner import Completion, LlamaRunner
from .probes import is_sane, known_words, probes

DEFAULT_CASES = 60
MAX_ANSWER_TOKENS = 220


class Table:
    """Passed and tried, per column, in the order of first appearance."""

    def __init__(self) -> None:
        self._results: dict[str, list[bool]] = defaultdict(list)

    def add(self, column: str, passed: bool) -> None:
        """Count one result."""
        self._results[column].append(passed)

    def shares(self) -> dict[str, float]:
        """Share of passed results per column."""
        return {column: sum(results) / len(results) for column, results in self._results.items()}

    def lines(self) -> list[str]:
        """The table as Markdown."""
        rows = [f"| {c} | {sum(r) / len(r):.3f} | {len(r)} |" for c, r in self._results.items()]
        return ["| skill | passed | cases |", "|---|---|---|", *rows]


class Evaluation:
    """Runs cases and probes on one file."""

    def __init__(self, path: Path, temperature: float = 0.0, failures: Optional[Path] = None) -> None:
        self._runner = LlamaRunner(path)
        self._temperature = temperature
        self._rng = np.random.default_rng(0)
        self._failures = failures.open("w", encoding="utf-8") if failures else None
        self.table = Table()

    def _complete(self, prompt: str) -> Completion:
        completion = self._runner.complete(prompt, MAX_ANSWER_TOKENS, self._temperature, self._rng)
        self.table.add("stops by itself", completion.stopped)
        return completion

    def _note_failure(self, columns: list[str], prompt: str, answer: str) -> None:
        if self._failures and columns:
            record = {"failed": columns, "prompt": prompt, "answer": answer}
            self._failures.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._failures.flush()

    def run_case(self, case: Case) -> None:
        """Complete one case and count its columns."""
        prompt = self._runner.render(case.messages, case.tools, case.thinking)
        answer = self._complete(prompt).text
        verdict = case.judge(answer.strip())
        # A thought before the answer is no mistake, except where the form itself is judged.
        if not any(column.startswith("thinking") for column in verdict):
            verdict = case.judge(without_thought(answer))
        for column, passed in verdict.items():
            self.table.add(column, passed)
        self._note_failure([column for column, passed in verdict.items() if not passed], prompt, answer)

    def run_probes(self) -> None:
        """Complete all probes and count those that stay sane."""
        known = known_words()
        for column, messages, tools in probes():
            prompt = self._runner.render(messages, tools, None)
            completion = self._complete(prompt)
            sane = completion.stopped and is_sane(completion.text, prompt, known)
            self.table.add(f"sane: {column}", sane)
            self._note_failure([] if sane else [f"sane: {column}"], prompt, completion.text)


def evaluate_file(
    path: Path,
    n_cases: int = DEFAULT_CASES,
    temperature: float = 0.0,
    held_out: bool = True,
    failures: Optional[Path] = None,
) -> Table:
    """Measure a file and print the table."""
    evaluation = Evaluation(path, temperature, failures)
    for case in held_out_cases(n_cases, held_out=held_out):
        evaluation.run_case(case)
    evaluation.run_probes()
    print(f"{path.name}, temperature {temperature:g}, {'held-out' if held_out else 'trained'} words and phrasings")
    print("\n".join(evaluation.table.lines()), flush=True)
    return evaluation.table


def main() -> None:
    """Evaluate the file named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo.evaluate", description=__doc__)
    parser.add_argument("file", type=Path, help="a GGUF file with a ChatML template")
    parser.add_argument("--cases", type=int, default=DEFAULT_CASES, help="per skill")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--trained", action="store_true", help="use the trained half of the split instead")
    parser.add_argument("--failures", type=Path, help="write failed cases here, one JSON object per line")
    arguments = parser.parse_args()
    if not arguments.file.exists():
        raise SystemExit(f"{arguments.file} does not exist: train it with python -m tools.train_demo")
    evaluate_file(arguments.file, arguments.cases, arguments.temperature, not arguments.trained, arguments.failures)


if __name__ == "__main__":
    main()
