"""Predicts the time of a step from the rows that it computes and the cells to which they attend. Pure.

The time is the sum of four terms: a constant, one for the rows with logits, one for the other rows, of prompts, and one
for the cells to which all rows attend. The factors are fitted to the measured steps, newer ones with more weight. They
give the number of prompt tokens that a step may have beside running sequences, and the cost of a draft token.
"""

from __future__ import annotations

from dataclasses import dataclass

# A step gets enough prompt tokens that the rest of it takes at most this share of its time.
_OVERHEAD_SHARE = 0.1
# The time limit of a step in which running sequences wait for their next token.
MAX_GAP_S = 1.0
# Fewer prompt tokens would not make a step noticeably shorter.
MIN_PROMPT_TOKENS = 32
# The assumed cost of one more row, as a share of a step, before steps of different sizes have been measured.
UNKNOWN_ROW_SHARE = 0.25
# Bounds of the measured share.
_MIN_ROW_SHARE, _MAX_ROW_SHARE = 0.01, 1.0
# Each step reduces the weight of older ones by this share, so that the factors follow the load of the machine.
_FORGETTING = 0.05
# A measured time is limited to this multiple of its prediction, since another program may have delayed the step.
_MAX_SURPRISE = 3.0
# The limit holds after this many steps with each term of the step.
_N_TRUSTED = 4
# Sweeps of coordinate descent for each measured step, starting at the last factors.
_N_SWEEPS = 2


@dataclass(frozen=True)
class StepSize:
    """The amount of work of a step."""

    n_outputs: int = 0
    """Rows with logits: one for each sampled token and each draft token."""
    n_prompt: int = 0
    """The other rows, which belong to prompts."""
    n_attended: int = 0
    """Cells to which the rows attend, counted for each row."""


def attended(n_computed: int, n_tokens: int) -> int:
    """Cells to which the next `n_tokens` rows of a sequence attend: each row to all earlier ones and to itself."""
    return n_tokens * n_computed + n_tokens * (n_tokens + 1) // 2


class StepCost:
    """Non-negative least squares by coordinate descent, over relative errors.

    A step without a term (no prompt, for instance) leaves the factor of that term as it is.
    """

    def __init__(self) -> None:
        # Seconds per step, per row with logits, per other row, and per cell.
        self._factors = [0.0] * 4
        # The normal equations.
        self._products = [[0.0] * 4 for _ in range(4)]
        self._targets = [0.0] * 4
        # For each term the number of measured steps with it.
        self._n_noted = [0] * 4

    def note(self, step: StepSize, seconds: float) -> None:
        """Notes the measured time of a step."""
        sizes = _sizes(step)
        present = [i for i, size in enumerate(sizes) if size]
        if seconds <= 0 or len(present) == 1:
            return
        scale_s, predicted_s = seconds, self.seconds(step)
        if predicted_s and min(self._n_noted[i] for i in present) >= _N_TRUSTED:
            # Errors are relative to the prediction, so that a short step counts as much as a long one.
            scale_s, seconds = predicted_s, min(seconds, _MAX_SURPRISE * predicted_s)
        if not any(self._factors[:2]) and not step.n_prompt:
            # The assumed factors of a first step, since one time does not determine two factors.
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
            # In this order, time that cannot be attributed yet is attributed to rows.
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
        """The cost of one more row with logits for each running sequence, as a share of the step without them."""
        step_s = self.seconds(running)
        if step_s <= 0:
            return UNKNOWN_ROW_SHARE
        rows_s = step_s - self._factors[0]
        return min(max(rows_s / step_s, _MIN_ROW_SHARE), _MAX_ROW_SHARE)

    def prompt_tokens(self, beside: StepSize, n_computed: int = 0) -> int:
        """How many prompt tokens a step should have beside `beside`, after `n_computed` tokens of the prompt.

        With this number, `beside` takes a tenth of the time of the step. It is smaller if the step would take longer
        than `MAX_GAP_S`, and at least `MIN_PROMPT_TOKENS`.
        """
        most_s = self.seconds(beside) / _OVERHEAD_SHARE
        return self.prompt_tokens_within(min(most_s, MAX_GAP_S), beside, n_computed)

    def prompt_tokens_within(self, seconds: float, beside: StepSize, n_computed: int = 0) -> int:
        """How many prompt tokens fit into a step of `seconds` beside `beside`; at least `MIN_PROMPT_TOKENS`."""
        _, _, row_s, cell_s = self._factors
        left_s = seconds - self.seconds(beside)
        first_row_s = row_s + cell_s * n_computed
        if left_s <= 0 or first_row_s <= 0:
            return MIN_PROMPT_TOKENS
        n_tokens = left_s / first_row_s
        # Later rows attend to the earlier ones of the same step as well.
        n_tokens = left_s / (first_row_s + cell_s * n_tokens / 2)
        return max(MIN_PROMPT_TOKENS, int(n_tokens))


def _sizes(step: StepSize) -> tuple[int, int, int, int]:
    return (1, step.n_outputs, step.n_prompt, step.n_attended)
