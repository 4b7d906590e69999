"""Integers within bounds (minimum, maximum, multipleOf) as grammar expressions.

The number of digits is limited even without bounds, since a model could generate digits forever.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil, floor

from .errors import TooLarge
from .expressions import EMPTY, NEVER, Expr, Literal, alt, chars, left_factored, seq
from .gbnf import Rules
from .intervals import Interval, common_step

# Enough for 256-bit integers. JSON parsers reject numbers from some hundreds of digits on (Python from 4300).
MAX_DIGITS = 80
# Limit of multiples within bounds that are enumerated.
MAX_LISTED = 1000
# Limit of the divisor of multiples without bounds. They are recognized by remainders, with one rule per remainder.
MAX_REMAINDERS = 200

DIGIT = chars("09")
NONZERO = chars("19")
MINUS = Literal("-")
ZERO = Literal("0")


def integers(rules: Rules, interval: Interval) -> Expr:
    """The integers of the interval. Raises TooLarge for multiples that no small grammar matches."""
    low, high = _integer_bounds(interval)
    step = common_step(interval.step, Fraction(1))
    if interval.step is None or step == 1:
        return integer_range(rules, low, high)
    assert step is not None
    return _multiples(rules, low, high, int(step))


def _integer_bounds(interval: Interval) -> tuple[int | None, int | None]:
    """The least and the greatest integer within the bounds; None: no bound."""
    low, high = interval.low, interval.high
    return (
        None if low is None else ceil(low.value) if low.inclusive else floor(low.value) + 1,
        None if high is None else floor(high.value) if high.inclusive else ceil(high.value) - 1,
    )


def integer_range(rules: Rules, low: int | None, high: int | None) -> Expr:
    """The integers from `low` to `high`, inclusive; None: no limit."""
    negative, positive = NEVER, NEVER
    if low is None or low < 0:
        nearest = 1 if high is None or high >= 0 else -high
        negative = seq(MINUS, naturals(rules, nearest, None if low is None else -low))
    if high is None or high >= 0:
        positive = naturals(rules, max(low or 0, 0), high)
    if low is None and high is None:
        return rules.add("integer", seq(rules.repeat(MINUS, 0, 1), positive))
    return alt(negative, positive)


def naturals(rules: Rules, low: int, high: int | None) -> Expr:
    """The integers from `low` (0 or more) to `high` (None: no limit), without leading zeros."""
    longest = 10**MAX_DIGITS - 1
    high = longest if high is None else min(high, longest)
    zero = ZERO if low == 0 <= high else NEVER
    return alt(zero, *_by_length(rules, max(low, 1), high))


def _by_length(rules: Rules, low: int, high: int) -> Iterator[Expr]:
    """The positive integers from `low` to `high`, in groups by their numbers of digits.

    All numbers of digits for which every integer is within the bounds are one group.
    """
    while low <= high:
        n = len(str(low))
        last = min(high, 10**n - 1)
        if low == 10 ** (n - 1) and last == 10**n - 1:
            n_most = len(str(high + 1)) - 1
            yield seq(NONZERO, rules.repeat(DIGIT, n - 1, n_most - 1))
            low = 10**n_most
        else:
            yield _between(rules, str(low), str(last))
            low = last + 1


def _between(rules: Rules, low: str, high: str) -> Expr:
    """The digit strings from `low` to `high`, which have the same length.

    The next digit is that of `low`, that of `high` or one between; in the last case all digits may follow.
    """
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
        options.append(seq(digit_range(first, last), rules.repeat(DIGIT, n - 1, n - 1)))
    return alt(*options)


def digit_range(first: int, last: int) -> Expr:
    """One digit from `first` to `last`."""
    return Literal(str(first)) if first == last else chars(f"{first}{last}")


def _multiples(rules: Rules, low: int | None, high: int | None, step: int) -> Expr:
    """The multiples of `step` from `low` to `high`."""
    # The multiples are `step` times the integers from `first` to `last`.
    first = None if low is None else ceil(Fraction(low, step))
    last = None if high is None else floor(Fraction(high, step))
    if first is not None and last is not None and last - first < MAX_LISTED:
        return left_factored(*(Literal(str(n * step)) for n in range(first, last + 1)))
    n_zeros = len(str(step)) - 1
    if step == 10**n_zeros:
        return _round(rules, first, last, Literal("0" * n_zeros))
    if step > MAX_REMAINDERS or first not in (None, 0, 1) or last not in (None, 0, -1):
        raise TooLarge(
            f"multiples of {step} cannot be enforced with these bounds: set a minimum and a maximum with at most "
            f"{MAX_LISTED} multiples between them, use a multipleOf of at most {MAX_REMAINDERS} and no bound but 0, or "
            "a power of ten"
        )
    return _by_remainder(rules, first, last, step)


def _round(rules: Rules, first: int | None, last: int | None, zeros: Literal) -> Expr:
    """The integers from `first` to `last` with `zeros` appended, except that 0 is a single digit."""
    below = integer_range(rules, first, -1 if last is None else min(last, -1)) if first is None or first < 0 else NEVER
    above = integer_range(rules, 1 if first is None else max(first, 1), last)
    zero = ZERO if (first or 0) <= 0 <= (last or 0) else NEVER
    return alt(zero, seq(below, zeros), seq(above, zeros))


def _by_remainder(rules: Rules, first: int | None, last: int | None, step: int) -> Expr:
    """The multiples of `step`, all or only those on one side of 0.

    There is one rule for each remainder: the digits that may follow if the number so far has this remainder.
    """
    refs = [rules.declare(f"multiple-{step}") for _ in range(step)]
    for remainder, ref in enumerate(refs):
        more = [seq(Literal(str(digit)), refs[(10 * remainder + digit) % step]) for digit in range(10)]
        rules.define(ref, alt(*more, *([EMPTY] if remainder == 0 else [])))
    positive = rules.add("multiple", alt(*(seq(Literal(str(digit)), refs[digit % step]) for digit in range(1, 10))))
    return alt(
        ZERO if first != 1 and last != -1 else NEVER,
        positive if last is None else NEVER,
        seq(MINUS, positive) if first is None else NEVER,
    )
