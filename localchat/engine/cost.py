"""What one more row in a turn costs. Pure: is told the times.

On a GPU, and for large models, the weights are read once for all rows, and a few more are nearly free; a
small model with a large vocabulary on few cores pays nearly the whole price for each.
"""

from __future__ import annotations

# What is assumed until turns of different sizes were seen.
UNKNOWN = 0.25
_LEAST, _MOST = 0.01, 1.0
# The newest turn counts as much as this share of all before, so that a machine that gets busy is noticed.
_FORGETTING = 0.03
# Rows squared: of turns that were all about as large nothing can be learnt.
_LEAST_VARIANCE = 0.05
# One turn that was held up by something else says little.
_MAX_SURPRISE = 3.0


class TurnCost:
    """A straight line through the times of turns by their rows, the newer ones counting more."""

    def __init__(self) -> None:
        self._n = self._rows = self._seconds = self._rows_squared = self._products = 0.0
        # Seconds per row, since turns differed in size the last time; None before.
        self._row_s: float | None = None

    def note(self, n_rows: int, seconds: float) -> None:
        """A turn that drew a token for each sequence, and read no prompt."""
        if self._row_s is not None:
            seconds = min(seconds, _MAX_SURPRISE * self.turn_s(n_rows))
        keep = 1 - _FORGETTING
        self._n = keep * self._n + 1
        self._rows = keep * self._rows + n_rows
        self._seconds = keep * self._seconds + seconds
        self._rows_squared = keep * self._rows_squared + n_rows * n_rows
        self._products = keep * self._products + n_rows * seconds

        variance = self._rows_squared / self._n - (self._rows / self._n) ** 2
        if variance >= _LEAST_VARIANCE:
            together = self._products / self._n - self._rows * self._seconds / self._n**2
            self._row_s = together / variance

    def turn_s(self, n_rows: int) -> float:
        """How long a turn of so many rows takes, 0 before the first one."""
        if not self._n:
            return 0.0
        mean = self._seconds / self._n
        return max(mean + (self._row_s or 0.0) * (n_rows - self._rows / self._n), mean / 10)

    def of_row(self, n_sequences: int) -> float:
        """One more row for each of so many sequences, as a share of the turn without them."""
        if self._row_s is None or self._seconds == 0:
            return UNKNOWN
        return min(max(self._row_s * n_sequences / self.turn_s(n_sequences), _LEAST), _MOST)
