"""`python -m tests.support.scripted_engine SCRIPT NUMBER`: an engine process whose model generates scripted outputs.

Its tokens are bytes, and its chat template has the calls of Hermes. So all of the server runs, apart from llama.cpp.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from localchat.serving.engine import __main__ as program
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.tuning import Tuning
from localchat.serving.engine.values import LoadOptions
from tests.support.fakes import END, FakeBackend

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "tests" / "data" / "templates" / "hermes.jinja"
# The beginning of an output in the prompt, by the template.
ASSISTANT = "<|im_start|>assistant\n"
# An output that consists of this text kills the engine process after a part of a word.
CRASH = "I a\0"
START_DEADLINE_S = 60


@dataclass(frozen=True)
class Rule:
    """An output, and when the model generates it."""

    # The words in the messages after the last output of the model, such as those of a question or of the result of a
    # tool. The empty text is in all.
    words: str
    # A text, or calls, each the name of a function and its arguments. Calls need their functions in the request, since
    # programs send the user's question also in requests without tools, such as for a title.
    output: str | Sequence[tuple[str, Mapping[str, Any]]]

    def text(self, prompt: str) -> str | None:
        """The text of the output after this prompt; None if the rule does not apply."""
        *before, messages, _ = prompt.split(ASSISTANT)
        if before:
            messages = messages.partition("<|im_end|>")[2]
        if self.words not in messages:
            return None
        if isinstance(self.output, str):
            return self.output
        if not all(f'"name": {json.dumps(name)}' in prompt for name, _ in self.output):
            return None
        calls = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in self.output)
        return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


@dataclass(frozen=True)
class Script:
    """What the model generates: the output of the first rule that applies."""

    rules: Sequence[Rule]
    n_ctx: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Script:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return cls([Rule(**rule) for rule in fields["rules"]], fields["n_ctx"])

    def model(self) -> Callable[[list[int], int], int]:
        """A model of a FakeBackend."""

        @functools.lru_cache(maxsize=4)
        def output(prompt: bytes) -> bytes:
            texts = (rule.text(prompt.decode("utf-8", "replace")) for rule in self.rules)
            return next(text for text in texts if text is not None).encode()

        def next_token(tokens: list[int], n_prompt: int) -> int:
            n_generated = len(tokens) - n_prompt
            rest = output(bytes(tokens[:n_prompt]))[n_generated:]
            if rest[:1] == CRASH[-1:].encode():
                os.kill(os.getpid(), signal.SIGKILL)
            return rest[0] if rest else END

        return next_token


def main() -> None:
    script, number = Script.read(Path(sys.argv[1])), int(sys.argv[2])

    def load(path: str, options: LoadOptions, progress: Any, send_due: Callable[[bool], None]) -> Engine:
        n_ctx, template = script.n_ctx, TEMPLATE.read_text(encoding="utf-8")
        sizes = {"n_ctx": n_ctx, "n_cells": 4 * n_ctx, "n_batch": n_ctx}
        backend = FakeBackend(script.model(), chat_template=template, **sizes)
        # A prompt of any length takes one step.
        backend.limits = replace(backend.limits, tuning=Tuning(n_ctx, n_ctx, 0))
        engine, has_started = Engine(backend, send_due=send_due), threading.Event()
        threading.Thread(target=engine.run, args=(has_started.set,), name="localchat-engine").start()
        assert has_started.wait(START_DEADLINE_S)
        return engine

    program.load = load
    program.main(number)


if __name__ == "__main__":
    main()
