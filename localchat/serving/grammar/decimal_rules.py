"""Decimals within bounds (minimum, maximum, multipleOf) as grammar expressions.

The number of digits is limited even without bounds, since a model could generate digits forever. Decimals with bounds
have no exponent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf, nextafter
from typing import Optional

from .errors import TooLarge
from .expressions import EMPTY, NEVER, Expr, Literal, alt, chars, left_factored, seq
from .gbnf import Rules
from .integer_rules import DIGIT, MAX_DIGITS, MAX_LISTED, MINUS, digit_range, integer_range, integers, naturals
from .intervals import Bound, Interval

MAX_EXPONENT_DIGITS = 3
# Decimals of up to 15 digits keep their order as IEEE doubles. A parser may round longer ones to the bound.
DOUBLE_DIGITS = 15
# A bound with more digits than this before its point does not reduce the number of digits after the point.
MAX_NEAR_DIGITS = 7
MAX_FRACTION_DIGITS = 60


def decimals(rules: Rules, interval: Interval) -> Expr:
    """The numbers of the interval. Raises TooLarge for multiples that no small grammar matches."""
    if interval == Interval():
        return any_number(rules)
    step = interval.step
    if step is not None and step.denominator == 1:
        return integers(rules, interval)
    listed = None if step is None else _listed(interval, step)
    return _decimal_range(rules, interval) if listed is None else listed


def any_number(rules: Rules) -> Expr:
    """Every number, perhaps with an exponent."""
    fraction = seq(Literal("."), rules.repeat(DIGIT, 1, MAX_DIGITS))
    sign = rules.repeat(chars("+", "-"), 0, 1)
    exponent = seq(chars("e", "E"), sign, rules.repeat(DIGIT, 1, MAX_EXPONENT_DIGITS))
    tail = seq(rules.repeat(fraction, 0, 1), rules.repeat(exponent, 0, 1))
    return rules.add("number", seq(integer_range(rules, None, None), tail))


def _listed(interval: Interval, step: Fraction) -> Expr | None:
    """The multiples of `step` one by one; None if there are more than `MAX_LISTED`."""
    if interval.low is None or interval.high is None:
        return None
    first, last = ceil(interval.low.value / step), floor(interval.high.value / step)
    if last - first >= MAX_LISTED:
        return None
    return left_factored(*(Literal(_plain(n * step)) for n in range(first, last + 1) if n * step in interval))


def _plain(value: Fraction) -> str:
    """The number as a decimal without an exponent. Raises TooLarge."""
    whole, digits = _expanded(abs(value))
    return ("-" if value < 0 else "") + str(whole) + ("." + digits if digits else "")


def _expanded(value: Fraction) -> tuple[int, str]:
    """The integer part of a number that is not negative, and the digits after its point. Raises TooLarge."""
    whole, rest = divmod(value, 1)
    digits = ""
    while rest:
        if len(digits) == MAX_FRACTION_DIGITS:
            raise TooLarge(
                f"a minimum, maximum or multipleOf has more than {MAX_FRACTION_DIGITS} digits after its point: "
                "use fewer"
            )
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
    return whole, digits


def _decimal_range(rules: Rules, interval: Interval) -> Expr:
    """The decimals within the bounds, up to a number of digits after the point."""
    n_places = _n_places(interval)
    low = _negated(_safe_bound(_negated(interval.low), n_places))
    high = _safe_bound(interval.high, n_places)
    decimal = _Decimals(rules, n_places)
    negative, positive = NEVER, NEVER
    if low is None or low.value < 0:
        nearest = Bound(Fraction(0), False) if high is None or high.value >= 0 else _negated(high)
        negative = seq(MINUS, decimal.range(nearest, _negated(low)))
    if high is None or high.value >= 0:
        positive = decimal.range(Bound(Fraction(0)) if low is None or low.value < 0 else low, high)
    return alt(negative, positive)


def _negated(bound: Bound | None) -> Bound | None:
    return None if bound is None else Bound(-bound.value, bound.inclusive)


def _n_places(interval: Interval) -> int:
    """The maximum number of digits after the point. Raises TooLarge."""
    if interval.step is not None:
        n = len(_expanded(interval.step)[1])
        if interval.step * 10**n != 1:
            raise TooLarge(
                f"multiples of {float(interval.step)} cannot be enforced with these bounds: set a minimum and a "
                f"maximum with at most {MAX_LISTED} multiples between them, or use 0.1, 0.01 and so on"
            )
        return n
    bounds = [_expanded(abs(bound.value)) for bound in (interval.low, interval.high) if bound]
    n_near = max((len(str(whole)) for whole, _ in bounds if whole < 10**MAX_NEAR_DIGITS), default=1)
    return max(DOUBLE_DIGITS - n_near, *(len(digits) for _, digits in bounds))


def _safe_bound(high: Bound | None, n_places: int) -> Bound | None:
    """The upper bound, lowered if a generated number that is within it could be rounded to a double that is not.

    JSON parsers round numbers to doubles. A bound that is not safe is replaced by the next smaller double.
    """
    if high is None or _is_safe(high, n_places):
        return high
    scale = 10**n_places
    smaller_double = Fraction(nextafter(float(high.value), -inf))
    return Bound(Fraction(floor(smaller_double * scale), scale))


def _is_safe(high: Bound, n_places: int) -> bool:
    """Whether every number of at most `n_places` decimal places that is within the bound remains so when rounded."""
    # Numbers of this many digits keep their order as doubles.
    if abs(high.value) * 10**n_places < 10**DOUBLE_DIGITS:
        return True
    # Every generated number has fewer digits than this bound, which may exceed the largest double.
    if abs(high.value) > 10 ** (MAX_DIGITS + 1):
        return True
    # Rounding keeps the order, so a number within the bound is rounded to the double of the bound at most. That double
    # is within the bound, with two exceptions: an exclusive bound, and an integer that is less than its double. A
    # fraction that is less than its double is no exception, since the parser of the schema rounds the bound, too.
    return high.inclusive and (high.value >= float(high.value) or high.value.denominator > 1)


# The rest of a bound, if the digits generated so far are its first digits: the remaining digits of the bound, and
# whether the bound is inclusive. None: any digits may follow, since there is no bound or the digits so far differ.
Rest = Optional[tuple[str, bool]]


@dataclass(frozen=True)
class _Decimals:
    """The decimals without a sign."""

    rules: Rules
    n_places: int
    """The maximum number of digits after the point."""

    def range(self, low: Bound | None, high: Bound | None) -> Expr:
        """The decimals from `low`, which is not negative, to `high` (None: no bound)."""
        assert low is not None
        first, low_digits = _expanded(low.value)
        low_rest = (low_digits, low.inclusive)
        if high is None:
            above = integer_range(self.rules, first + 1, None)
            return alt(seq(Literal(str(first)), self.fraction(low_rest, None)), seq(above, self.fraction(None, None)))
        last, high_digits = _expanded(high.value)
        high_rest = (high_digits, high.inclusive)
        if first >= last:
            return seq(Literal(str(first)), self.fraction(low_rest, high_rest)) if first == last else NEVER
        between = naturals(self.rules, first + 1, last - 1)
        return alt(
            seq(Literal(str(first)), self.fraction(low_rest, None)),
            seq(between, self.fraction(None, None)),
            seq(Literal(str(last)), self.fraction(None, high_rest)),
        )

    def fraction(self, low: Rest, high: Rest) -> Expr:
        """The point and the digits after it, or nothing if the bounds allow the integer itself."""
        digits = self.tail(low, high, self.n_places, started=False)
        if low is None and high is None:
            return self.rules.repeat(self.rules.add("fraction", seq(Literal("."), digits)), 0, 1)
        return alt(EMPTY if _may_end(low, high) else NEVER, seq(Literal("."), digits))

    def tail(self, low: Rest, high: Rest, n: int, started: bool = True) -> Expr:
        """Up to `n` more digits after the point. `started`: whether there are digits after the point already."""
        if low is None and high is None:
            return self.rules.repeat(DIGIT, 0 if started else 1, n)
        options: list[Expr] = [EMPTY] if started and _may_end(low, high) else []
        for first, last, low_rest, high_rest in _splits(low, high) if n else ():
            options.append(seq(digit_range(first, last), self.tail(low_rest, high_rest, n - 1)))
        return alt(*options)


def _may_end(low: Rest, high: Rest) -> bool:
    """Whether the number may end here, that is, whether appending only zeros stays within the bounds."""
    return (low is None or low == ("", True)) and (high is None or high[0] != "" or high[1])


def _splits(low: Rest, high: Rest) -> Iterator[tuple[int, int, Rest, Rest]]:
    """The ranges of the next digit (first, last), each with the rests of the bounds after it.

    Like `_between`: the next digit is that of `low`, that of `high` or one between.
    """
    first = int(low[0][:1] or 0) if low else 0
    last = int(high[0][:1] or 0) if high else 9
    low_rest, high_rest = _after_digit(low), _after_digit(high)
    if low and high and first == last:
        yield first, first, low_rest, high_rest
        return
    if low and first <= last:
        yield first, first, low_rest, None
    if high and first <= last:
        yield last, last, None, high_rest
    first, last = first + bool(low), last - bool(high)
    if first <= last:
        yield first, last, None, None


def _after_digit(rest: Rest) -> Rest:
    """The rest after the next digit of the bound has been generated."""
    return None if rest is None else (rest[0][1:], rest[1])
