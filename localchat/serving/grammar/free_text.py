"""Expressions for free text up to the first of several markers, such as the end of reasoning or a tool call."""

from __future__ import annotations

from collections.abc import Mapping

from .expressions import EMPTY, Expr, RuleRef, alt, char_complement, chars, seq
from .gbnf import Rules


def free_text(rules: Rules, markers: Mapping[str, Expr], *, may_end: bool) -> Expr:
    """Any text without a marker, then one of the markers, then the expression of that marker.

    With `may_end` the text may also end before a marker. The matcher needs only one parse stack, however long the text
    is, since exactly one rule can continue after each character.
    """
    key = ("free text", frozenset(markers.items()), may_end)
    return rules.once(key, lambda: _free_text(rules, markers, may_end))


def _free_text(rules: Rules, markers: Mapping[str, Expr], may_end: bool) -> Expr:
    # The Aho-Corasick automaton. A state is the longest proper prefix of a marker with which the text so far ends.
    prefixes = {marker[:n] for marker in markers for n in range(len(marker))} | {""}
    states = {prefix: rules.declare("text") for prefix in sorted(prefixes)}
    special = sorted(set("".join(markers)))
    for prefix, state in states.items():
        # For each next state the characters that lead to it. A character of no marker leads to the initial state.
        moves: dict[Expr, list[tuple[int, int]]] = {states[""]: list(char_complement(chars(*special)).ranges)}
        for char in special:
            moves.setdefault(_after(prefix + char, markers, states), []).append((ord(char), ord(char)))
        options = [seq(chars(*ranges), target) for target, ranges in moves.items()]
        rules.define(state, alt(*options, *([EMPTY] if may_end else [])))
    return states[""]


def _after(text: str, markers: Mapping[str, Expr], states: Mapping[str, RuleRef]) -> Expr:
    found = next((marker for marker in markers if text.endswith(marker)), None)
    if found is not None:
        return markers[found]
    return next(states[text[n:]] for n in range(len(text) + 1) if text[n:] in states)
