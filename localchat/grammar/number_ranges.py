"""Expressions for integers and decimals within bounds (minimum, maximum, multipleOf).

Bounds are exact fractions. The number of digits is limited even without bounds, since a model could generate digits
forever. Decimals with bounds have no exponent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd, inf, nextafter
from typing import Optional

from .errors import TooLarge
from .expressions import EMPTY, NEVER, Expr, Literal, alt, chars, left_factored, seq
from .gbnf import Rules

# Enough for 256-bit integers. JSON parsers reject numbers from some hundreds of digits on (Python from 4300).
MAX_DIGITS = 80
MAX_EXPONENT_DIGITS = 3
# Decimals of up to 15 digits keep their order as IEEE doubles. A parser may round longer ones to the bound.
DOUBLE_DIGITS = 15
# A bound with more digits than this before its point does not reduce the number of digits after the point.
MAX_NEAR_DIGITS = 7
MAX_FRACTION_DIGITS = 60
# Limit of multiples within bounds that are enumerated.
MAX_LISTED = 1000
# Limit of the divisor of multiples without bounds. They are recognized by remainders, with one rule per remainder.
MAX_REMAINDERS = 200

DIGIT = chars("09")
NONZERO = chars("19")
MINUS = Literal("-")
ZERO = Literal("0")


@dataclass(frozen=True)
class Bound:
    """A lower or upper bound of a range."""

    value: Fraction
    inclusive: bool = True
    """Whether the value itself is within the range."""


@dataclass(frozen=True)
class Interval:
    """A range of numbers, or the multiples of a number within a range."""

    low: Bound | None = None
    """None: no lower bound."""
    high: Bound | None = None
    """None: no upper bound."""
    step: Fraction | None = None
    """Only multiples of this positive number are in the interval. None: all numbers are."""

    def __and__(self, that: Interval) -> Interval:
        lows = [bound for bound in (self.low, that.low) if bound]
        highs = [bound for bound in (self.high, that.high) if bound]
        return Interval(
            max(lows, key=lambda bound: (bound.value, not bound.inclusive), default=None),
            min(highs, key=lambda bound: (bound.value, bound.inclusive), default=None),
            _common_step(self.step, that.step),
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


def _common_step(left: Fraction | None, right: Fraction | None) -> Fraction | None:
    """The least common multiple; None stands for no step."""
    if left is None or right is None:
        return left or right
    over = left.numerator * right.numerator // gcd(left.numerator, right.numerator)
    return Fraction(over, gcd(left.denominator, right.denominator))


def exact(number: int | float) -> Fraction:
    """The exact value of a JSON number as the document has it, not that of the nearest double."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


# Integers


def integers(rules: Rules, interval: Interval) -> Expr:
    """The integers of the interval. Raises TooLarge for multiples that no small grammar matches."""
    low, high = _integer_bounds(interval)
    step = _common_step(interval.step, Fraction(1))
    if interval.step is None or step == 1:
        return _integer_range(rules, low, high)
    assert step is not None
    return _multiples(rules, low, high, int(step))


def _integer_bounds(interval: Interval) -> tuple[int | None, int | None]:
    low, high = interval.low, interval.high
    return (
        None if low is None else ceil(low.value) if low.inclusive else floor(low.value) + 1,
        None if high is None else floor(high.value) if high.inclusive else ceil(high.value) - 1,
    )


def _integer_range(rules: Rules, low: int | None, high: int | None) -> Expr:
    negative, positive = NEVER, NEVER
    if low is None or low < 0:
        nearest = 1 if high is None or high >= 0 else -high
        negative = seq(MINUS, _naturals(rules, nearest, None if low is None else -low))
    if high is None or high >= 0:
        positive = _naturals(rules, max(low or 0, 0), high)
    if low is None and high is None:
        return rules.add("integer", seq(rules.repeat(MINUS, 0, 1), positive))
    return alt(negative, positive)


def _naturals(rules: Rules, low: int, high: int | None) -> Expr:
    """The integers from `low` (0 or more) to `high` (None: no limit), without leading zeros."""
    most = 10**MAX_DIGITS - 1
    high = most if high is None else min(high, most)
    zero = ZERO if low == 0 <= high else NEVER
    return alt(zero, *_by_length(rules, max(low, 1), high))


def _by_length(rules: Rules, low: int, high: int) -> Iterator[Expr]:
    """The integers from `low` to `high`, one expression for each group of numbers of digits."""
    while low <= high:
        n = len(str(low))
        if low == 10 ** (n - 1) and high >= 10**n - 1:
            n_most = len(str(high + 1)) - 1
            yield seq(NONZERO, rules.repeat(DIGIT, n - 1, n_most - 1))
            low = 10**n_most
        else:
            last = min(high, 10**n - 1)
            yield _between(rules, str(low), str(last))
            low = last + 1


def _between(rules: Rules, low: str, high: str) -> Expr:
    """The digit strings from `low` to `high`, which have the same length."""
    n = len(low)
    if low == "0" * n and high == "9" * n:
        return rules.repeat(DIGIT, n, n)
    if low[0] == high[0]:
        return seq(Literal(low[0]), _between(rules, low[1:], high[1:]) if n > 1 else EMPTY)
    if n == 1:
        return chars(low + high)
    options: list[Expr] = []
    first, last = int(low[0]), int(high[0])
    if low[1:].strip("0"):
        options.append(seq(Literal(low[0]), _between(rules, low[1:], "9" * (n - 1))))
        first += 1
    if high[1:].strip("9"):
        options.append(seq(Literal(high[0]), _between(rules, "0" * (n - 1), high[1:])))
        last -= 1
    if first <= last:
        options.append(seq(_digits(first, last), rules.repeat(DIGIT, n - 1, n - 1)))
    return alt(*options)


def _digits(first: int, last: int) -> Expr:
    return Literal(str(first)) if first == last else chars(f"{first}{last}")


def _multiples(rules: Rules, low: int | None, high: int | None, step: int) -> Expr:
    first = None if low is None else ceil(Fraction(low, step))
    last = None if high is None else floor(Fraction(high, step))
    if first is not None and last is not None and last - first < MAX_LISTED:
        return left_factored(*(Literal(str(n * step)) for n in range(first, last + 1)))
    n_zeros = len(str(step)) - 1
    if step == 10**n_zeros:
        return _round(rules, first, last, Literal("0" * n_zeros))
    if step > MAX_REMAINDERS or first not in (None, 0, 1) or last not in (None, 0, -1):
        raise TooLarge(
            f"multiples of {step} are only possible as powers of ten, up to {MAX_REMAINDERS} without other "
            f"bounds than 0, or at most {MAX_LISTED} of them within bounds"
        )
    return _by_remainder(rules, first, last, step)


def _round(rules: Rules, first: int | None, last: int | None, zeros: Literal) -> Expr:
    """The integers from `first` to `last` with `zeros` appended, except that 0 is a single digit."""
    below = _integer_range(rules, first, -1 if last is None else min(last, -1)) if first is None or first < 0 else NEVER
    above = _integer_range(rules, 1 if first is None else max(first, 1), last)
    zero = ZERO if (first or 0) <= 0 <= (last or 0) else NEVER
    return alt(zero, seq(below, zeros), seq(above, zeros))


def _by_remainder(rules: Rules, first: int | None, last: int | None, step: int) -> Expr:
    """The multiples of `step`: one rule for each remainder of the digits so far."""
    refs = [rules.declare(f"multiple-{step}") for _ in range(step)]
    for n, ref in enumerate(refs):
        more = [seq(Literal(str(d)), refs[(10 * n + d) % step]) for d in range(10)]
        rules.define(ref, alt(*more, *([EMPTY] if n == 0 else [])))
    positive = rules.add("multiple", alt(*(seq(Literal(str(d)), refs[d % step]) for d in range(1, 10))))
    return alt(
        ZERO if first != 1 and last != -1 else NEVER,
        positive if last is None else NEVER,
        seq(MINUS, positive) if first is None else NEVER,
    )


# Decimals


def decimals(rules: Rules, interval: Interval) -> Expr:
    """The numbers of the interval. Raises TooLarge for multiples that no small grammar matches."""
    if interval == Interval():
        return _any_number(rules)
    step = interval.step
    if step is not None and step.denominator == 1:
        return integers(rules, interval)
    listed = None if step is None else _listed(interval, step)
    return _decimal_range(rules, interval) if listed is None else listed


def _any_number(rules: Rules) -> Expr:
    fraction = seq(Literal("."), rules.repeat(DIGIT, 1, MAX_DIGITS))
    sign = rules.repeat(chars("+", "-"), 0, 1)
    exponent = seq(chars("e", "E"), sign, rules.repeat(DIGIT, 1, MAX_EXPONENT_DIGITS))
    tail = seq(rules.repeat(fraction, 0, 1), rules.repeat(exponent, 0, 1))
    return rules.add("number", seq(_integer_range(rules, None, None), tail))


def _listed(interval: Interval, step: Fraction) -> Expr | None:
    """The multiples of `step` one by one; None if there are more than `MAX_LISTED`."""
    if interval.low is None or interval.high is None:
        return None
    first, last = ceil(interval.low.value / step), floor(interval.high.value / step)
    if last - first >= MAX_LISTED:
        return None
    return left_factored(*(Literal(_plain(n * step)) for n in range(first, last + 1) if n * step in interval))


def _plain(value: Fraction) -> str:
    whole, digits = _expanded(abs(value))
    return ("-" if value < 0 else "") + str(whole) + ("." + digits if digits else "")


def _expanded(value: Fraction) -> tuple[int, str]:
    """The integer part of a number that is not negative, and the digits after its point. Raises TooLarge."""
    whole, rest = divmod(value, 1)
    digits = ""
    while rest:
        if len(digits) == MAX_FRACTION_DIGITS:
            raise TooLarge(f"bounds and steps may have {MAX_FRACTION_DIGITS} digits after the point")
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
    return whole, digits


def _decimal_range(rules: Rules, interval: Interval) -> Expr:
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
                "multiples of a fraction are only possible for 0.1, 0.01 and so on, or if at most "
                f"{MAX_LISTED} of them lie between a minimum and a maximum"
            )
        return n
    bounds = [_expanded(abs(bound.value)) for bound in (interval.low, interval.high) if bound]
    n_near = max((len(str(whole)) for whole, _ in bounds if whole < 10**MAX_NEAR_DIGITS), default=1)
    return max(DOUBLE_DIGITS - n_near, *(len(digits) for _, digits in bounds))


def _safe_bound(high: Bound | None, n_places: int) -> Bound | None:
    """The upper bound, or a smaller double if parsers could round a number within the bound to a double that is not."""
    if high is None or abs(high.value) * 10**n_places < 10**DOUBLE_DIGITS:
        return high
    # Generated numbers have fewer digits than this bound, and it may exceed the largest double.
    if abs(high.value) > 10 ** (MAX_DIGITS + 1):
        return high
    double = float(high.value)
    # Numbers within the bound are rounded to `double` at most. It is within the bound, or the bound is a fraction, and
    # `double` is the double that it denotes. Only some long integers are smaller than their nearest double.
    if high.inclusive and (high.value >= double or high.value.denominator > 1):
        return high
    scale = 10**n_places
    return Bound(Fraction(floor(Fraction(nextafter(double, -inf)) * scale), scale))


# The remaining digits of a bound, and whether the bound itself is allowed. None: the digits so far are not the bound's.
Rest = Optional[tuple[str, bool]]


@dataclass(frozen=True)
class _Decimals:
    """Decimals that are not negative."""

    rules: Rules
    n_places: int
    """The maximum number of digits after the point."""

    def range(self, low: Bound | None, high: Bound | None) -> Expr:
        assert low is not None
        first, low_digits = _expanded(low.value)
        low_rest = (low_digits, low.inclusive)
        if high is None:
            above = _integer_range(self.rules, first + 1, None)
            return alt(seq(Literal(str(first)), self.fraction(low_rest, None)), seq(above, self.fraction(None, None)))
        last, high_digits = _expanded(high.value)
        high_rest = (high_digits, high.inclusive)
        if first >= last:
            return seq(Literal(str(first)), self.fraction(low_rest, high_rest)) if first == last else NEVER
        between = _naturals(self.rules, first + 1, last - 1)
        return alt(
            seq(Literal(str(first)), self.fraction(low_rest, None)),
            seq(between, self.fraction(None, None)),
            seq(Literal(str(last)), self.fraction(None, high_rest)),
        )

    def fraction(self, low: Rest, high: Rest) -> Expr:
        """The point and the digits after it; empty if the bounds allow the integer itself."""
        digits = self.tail(low, high, self.n_places, started=False)
        if low is None and high is None:
            return self.rules.repeat(self.rules.add("fraction", seq(Literal("."), digits)), 0, 1)
        return alt(EMPTY if _may_end(low, high) else NEVER, seq(Literal("."), digits))

    def tail(self, low: Rest, high: Rest, n: int, started: bool = True) -> Expr:
        """Up to `n` more digits. A bound matters only while all digits so far are equal to its digits."""
        if low is None and high is None:
            return self.rules.repeat(DIGIT, 0 if started else 1, n)
        options: list[Expr] = [EMPTY] if started and _may_end(low, high) else []
        for first, last, low_rest, high_rest in _splits(low, high) if n else ():
            options.append(seq(_digits(first, last), self.tail(low_rest, high_rest, n - 1)))
        return alt(*options)


def _may_end(low: Rest, high: Rest) -> bool:
    """Whether the number may end here, that is, whether appending only zeros stays within the bounds."""
    return (low is None or low == ("", True)) and (high is None or high[0] != "" or high[1])


def _splits(low: Rest, high: Rest) -> Iterator[tuple[int, int, Rest, Rest]]:
    """The ranges of the next digit (first, last), each with the rests of the bounds after it."""
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
    return rest and (rest[0][1:], rest[1])
