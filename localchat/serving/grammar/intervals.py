"""Intervals of numbers: the values that minimum, maximum and multipleOf allow. Bounds are exact fractions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd


@dataclass(frozen=True)
class Bound:
    """A lower or upper bound."""

    value: Fraction
    inclusive: bool = True
    """Whether the value itself is allowed."""


@dataclass(frozen=True)
class Interval:
    """The numbers within bounds, or the multiples of a number within bounds."""

    low: Bound | None = None
    """None: no lower bound."""
    high: Bound | None = None
    """None: no upper bound."""
    step: Fraction | None = None
    """Only multiples of this positive number are in the interval; None: all numbers within the bounds are."""

    def __and__(self, that: Interval) -> Interval:
        lows = [bound for bound in (self.low, that.low) if bound]
        highs = [bound for bound in (self.high, that.high) if bound]
        return Interval(
            max(lows, key=lambda bound: (bound.value, not bound.inclusive), default=None),
            min(highs, key=lambda bound: (bound.value, bound.inclusive), default=None),
            common_step(self.step, that.step),
        )

    def __contains__(self, value: Fraction) -> bool:
        return (
            (self.low is None or value > self.low.value or (value == self.low.value and self.low.inclusive))
            and (self.high is None or value < self.high.value or (value == self.high.value and self.high.inclusive))
            and (self.step is None or (value / self.step).denominator == 1)
        )

    def is_empty(self) -> bool:
        """Whether no number is within the bounds. `step` is ignored."""
        if self.low is None or self.high is None:
            return False
        strict = not (self.low.inclusive and self.high.inclusive)
        return self.low.value > self.high.value or (strict and self.low.value == self.high.value)


def common_step(left: Fraction | None, right: Fraction | None) -> Fraction | None:
    """The least common multiple of two steps; None: no step."""
    if left is None or right is None:
        return left or right
    numerator = left.numerator * right.numerator // gcd(left.numerator, right.numerator)
    return Fraction(numerator, gcd(left.denominator, right.denominator))


def is_number(value: object) -> bool:
    """Whether a value of a document is a number in JSON: true and false are not, although `bool` is a kind of `int`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def exact(number: int | float) -> Fraction:
    """The exact value of a JSON number as the document has it, not that of the nearest double."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))
