"""How long a step takes by what is in it. Pure: the caller measures.

The time of a step is taken to be a sum: a fixed part, a part for each row with logits, a part for each
other row of a prompt, and a part for each cell that a row attends to. The four factors are fitted to the
measured steps, of which newer ones count more. From them follow how many prompt tokens a step may have
beside running sequences, and what a row of a draft costs.
"""

from __future__ import annotations

from dataclasses import dataclass

# Steps with a part of a prompt are so long that all else in them takes this share of their time at most.
_OVERHEAD_SHARE = 0.1
# But they take no longer than this if running sequences wait for their next token, in seconds: text still flows.
MAX_GAP_S = 1.0
# Fewer prompt tokens in a step save no time worth having.
MIN_PROMPT_TOKENS = 32
# What one more row is assumed to cost, as a share of a step, until steps of different sizes were measured.
UNKNOWN_ROW_SHARE = 0.25
# Bounds of that share where it is known.
_MIN_ROW_SHARE, _MAX_ROW_SHARE = 0.01, 1.0
# Each step takes so much weight from those before it, so that a machine that gets busy is noticed.
_FORGETTING = 0.05
# A step that took longer than this multiple of its prediction was held up by something else.
_MAX_SURPRISE = 3.0
# Steps of each kind that are measured before a surprise is called one.
_N_TRUSTED = 4
# Sweeps of coordinate descent for each measured step, which go on from where the last one ended.
_N_SWEEPS = 2


@dataclass(frozen=True)
class StepSize:
    """What is in a step.

    `n_outputs` rows have logits: one for each token that is sampled and for each token of a draft. `n_prompt`
    further rows are of prompts. All rows together attend to `n_attended` cells.
    """

    n_outputs: int = 0
    n_prompt: int = 0
    n_attended: int = 0

    def __add__(self, other: StepSize) -> StepSize:
        return StepSize(
            self.n_outputs + other.n_outputs, self.n_prompt + other.n_prompt, self.n_attended + other.n_attended
        )


def attended(n_computed: int, n_tokens: int) -> int:
    """Cells that the next `n_tokens` rows of a sequence attend to, each to all before it and to itself."""
    return n_tokens * n_computed + n_tokens * (n_tokens + 1) // 2


class StepCost:
    """Non-negative least squares by coordinate descent, over relative errors.

    A step changes only the factors of what is in it: prompts cost what they did when there was one last.
    """

    def __init__(self) -> None:
        # Seconds for: a step, a row with logits, a row of a prompt, a cell.
        self._factors = [0.0] * 4
        # The normal equations.
        self._products = [[0.0] * 4 for _ in range(4)]
        self._targets = [0.0] * 4
        self._n_noted = [0] * 4

    def note(self, step: StepSize, seconds: float) -> None:
        """A step took so many seconds."""
        sizes = _sizes(step)
        present = [i for i, size in enumerate(sizes) if size]
        if seconds <= 0 or len(present) == 1:
            return
        scale_s, predicted_s = seconds, self.seconds(step)
        if predicted_s and min(self._n_noted[i] for i in present) >= _N_TRUSTED:
            # Errors count relative to the prediction: a short step counts as much as a long one.
            scale_s, seconds = predicted_s, min(seconds, _MAX_SURPRISE * predicted_s)
        if not any(self._factors[:2]) and not step.n_prompt:
            self._factors[0] = seconds / (1 + UNKNOWN_ROW_SHARE * step.n_outputs)
            self._factors[1] = UNKNOWN_ROW_SHARE * self._factors[0]
        relative, target = [size / scale_s for size in sizes], seconds / scale_s
        keep = 1 - _FORGETTING
        for i in range(4):
            size, products = relative[i], self._products[i]
            self._products[i] = [keep * product + size * other for product, other in zip(products, relative)]
            self._targets[i] = keep * self._targets[i] + size * target
        for i in present:
            self._n_noted[i] += 1
        for _ in range(_N_SWEEPS):
            # In this order, what cannot be told apart yet is taken for the price of rows.
            for i in (2, 1, 0, 3):
                if sizes[i]:
                    self._fit(i)

    def _fit(self, i: int) -> None:
        """The best value of one factor, given the others."""
        products = self._products[i]
        others = sum(product * factor for product, factor in zip(products, self._factors))
        change = (self._targets[i] - others) / products[i]
        self._factors[i] = max(self._factors[i] + change, 0.0)

    def seconds(self, step: StepSize) -> float:
        """The predicted time of a step; 0 before the first one."""
        return sum(size * factor for size, factor in zip(_sizes(step), self._factors))

    def row_share(self, running: StepSize) -> float:
        """The price of one more row with logits for each running sequence, as a share of the step without them."""
        step_s = self.seconds(running)
        if step_s <= 0:
            return UNKNOWN_ROW_SHARE
        rows_s = step_s - self._factors[0]
        return min(max(rows_s / step_s, _MIN_ROW_SHARE), _MAX_ROW_SHARE)

    def prompt_tokens(self, beside: StepSize, n_computed: int = 0) -> int:
        """How many prompt tokens a step should have beside what else is in it.

        As many as make the rest of the step a tenth of its time, if it stays below `MAX_GAP_S`; at least
        `MIN_PROMPT_TOKENS`. The prompt's first `n_computed` tokens are in the cache already.
        """
        most_s = self.seconds(beside) / _OVERHEAD_SHARE
        return self.prompt_tokens_within(min(most_s, MAX_GAP_S), beside, n_computed)

    def prompt_tokens_within(self, seconds: float, beside: StepSize, n_computed: int = 0) -> int:
        """How many prompt tokens fit a step of so many seconds beside what else is in it.

        `MIN_PROMPT_TOKENS` at least.
        """
        _, _, row_s, cell_s = self._factors
        left_s = seconds - self.seconds(beside)
        first_row_s = row_s + cell_s * n_computed
        if left_s <= 0 or first_row_s <= 0:
            return MIN_PROMPT_TOKENS
        n_tokens = left_s / first_row_s
        # The rows behind the first one attend to those before them as well.
        n_tokens = left_s / (first_row_s + cell_s * n_tokens / 2)
        return max(MIN_PROMPT_TOKENS, int(n_tokens))


def _sizes(step: StepSize) -> tuple[int, int, int, int]:
    return (1, step.n_outputs, step.n_prompt, step.n_attended)
