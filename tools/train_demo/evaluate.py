"""`python -m tools.train_demo.evaluate FILE.gguf`: figures per skill, through llama.cpp or our server around it."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Protocol

from .cases import Case, everyday_cases, held_out_cases, without_thought
from .llama_runner import Completion, LlamaRunner, Question
from .probes import is_sane, known_words, probes
from .served_runner import ServedRunner

# Of 60 one answer is 1.7 %: more than lies between many a figure and its aim.
DEFAULT_CASES = 200
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


class Runner(Protocol):
    """What runs the model: llama.cpp itself, or the server around it."""

    def answer(self, question: Question, max_tokens: int, temperature: float, seed: int) -> tuple[str, Completion]:
        """What the model was given, and what it wrote."""


class Evaluation:
    """Runs cases and probes on one file."""

    def __init__(self, runner: Runner, temperature: float = 0.0, failures: Path | None = None) -> None:
        self._runner = runner
        self._temperature = temperature
        self._n_answers = 0
        self._failures = failures.open("w", encoding="utf-8") if failures else None
        self.table = Table()

    def _answer(self, question: Question) -> tuple[str, Completion]:
        self._n_answers += 1
        answered = self._runner.answer(question, MAX_ANSWER_TOKENS, self._temperature, seed=self._n_answers)
        self.table.add("stops by itself", answered[1].stopped)
        return answered

    def _note_failure(self, columns: list[str], prompt: str, answer: str) -> None:
        if self._failures and columns:
            record = {"failed": columns, "prompt": prompt, "answer": answer}
            self._failures.write(json.dumps(record, ensure_ascii=False) + "\n")
            self._failures.flush()

    def run_case(self, case: Case) -> None:
        """Complete one case and count its columns."""
        prompt, completion = self._answer(Question(case.messages, case.tools, case.thinking))
        answer = completion.text
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
            prompt, completion = self._answer(Question(messages, tools, None))
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
    """Measure a file and print the table; `served` asks our server in place of bare llama.cpp."""
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
    parser.add_argument("--served", action="store_true", help="ask localchat's server in place of llama.cpp itself")
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
