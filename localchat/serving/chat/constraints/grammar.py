r"""The grammar of an output: reasoning, text, tool calls and the response format, in the notation of llguidance.

The grammar of one or more calls of `now`, which has no arguments, in the format of Hermes:

    start: (T_1 rule_2 T_0) (T_3 rule_2 T_0)*
    T_0: /\}\n<\/tool_call>/                              what follows the arguments: `CallFormat.call_tail`
    T_1: /<tool_call>\n\{"name": "now", "arguments": /    what precedes them: `section_begin` and `call_head`
    rule_2: %json {"type": "object", ...}                the arguments, by their schema
    T_3: /\n{0,2}<tool_call>\n\{"name": "now", ... /      what precedes them in a later call: `between_calls`

llguidance splits a text into lexemes, each as long as possible. So a free text and the marker after it are one lexeme,
which is a terminal with both. If the model may call `now`, and need not, the grammar is

    start: T_0 | T_1 (T_3 rule_4 T_2) (T_5 rule_4 T_2)* | ...      calls in the second format of Hermes
    T_0: /(?s:.*)/ & ~/(?s:.*)(<function=|<tool_call>)(?s:.*)/     a free text: any text without an opener
    T_1: T_0 /<tool_call>/                               a free text and the opener after it
    T_3: /\n\{"name": "now", "arguments": /              the rest of what precedes the arguments
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.request import ResponseFormat
from ...schema.compiler import is_empty, json_rule
from ...schema.patterns import between_slashes, in_grammar, too_long
from ..dialects import Dialect
from ..dialects.call_format import CallFormat
from ..dialects.dialect import ReasoningStart
from ..dialects.holes import Text, text_of
from .argument_rules import argument_rule
from .enforced import argument_schema, enforced_schema, naming_field
from .gbnf import gbnf_rule
from .lark import Rules, Terminal, regex_literal, seq, text_regex


@dataclass(frozen=True)
class GrammarSource:
    """What determines the grammar of a request. It can be the key of a cache, so two fields are JSON."""

    dialect: Dialect
    response_format: str = "null"  # The fields of a ResponseFormat; "null": there is none.
    functions: str = "[]"  # Pairs of callable tools: the path of the schema in the request, the function.
    reasoning: ReasoningStart = "closed"
    has_prefill: bool = False  # Whether the request has an assistant prefill of text.
    must_call: bool = False
    max_calls: int | None = None  # The largest number of calls in one output; None: no limit.


class _Outputs(NamedTuple):
    """The outputs of a grammar, each the body of a rule, by what precedes them."""

    without_reasoning: str
    after_end_tag: str  # After reasoning and its end tag.
    after_text_marker: str | None  # After a marker that opens text and so ends reasoning; None: it is forbidden.


class OutputGrammar:
    """Makes the grammar of one request."""

    def __init__(self, source: GrammarSource) -> None:
        response_format = json.loads(source.response_format)
        self._source = source
        self._dialect = source.dialect
        self._format = None if response_format is None else ResponseFormat(**response_format)
        self._functions = json.loads(source.functions)
        self._rules = Rules()

    @property
    def field(self) -> str:
        """The path of the field that an error of the grammar as a whole names."""
        if self._format is not None and not self._source.must_call:
            return self._format.param
        schema_path: str = self._functions[0][0]
        return schema_path.rpartition("[")[0]  # The list of the tools: "tools" of "tools[0].function.parameters".

    def text(self) -> str:
        """The grammar in the notation of llguidance. Raises ValueError and BadRequest if there is none."""
        format_rule = ""
        if self._format is not None:
            # With required calls the output has only calls, so the format has no effect. It is still checked.
            with naming_field(self._format.param):
                format_rule = self._format_rule(self._format)
        if self._source.must_call:
            output = self._with_reasoning(self._required())
        else:
            output = self._with_reasoning(self._formatted(format_rule)) if format_rule else self._auto()
        return self._rules.render(output)

    @functools.cached_property
    def _schemas(self) -> dict[str, Any]:
        """The schemas of the arguments, which are objects, by the names of the tools."""
        return {
            function["name"]: argument_schema(path, function, is_required=self._source.must_call)
            for path, function in self._functions
        }

    def _format_rule(self, format: ResponseFormat) -> str:
        """The rule of the text of a response format."""
        value = format.value
        if format.kind in ("json_object", "json_schema"):
            schema = {"type": "object"} if format.kind == "json_object" else enforced_schema(value, format.param)
            return self._rules.rule(json_rule(schema))
        if format.kind == "choice":
            if any("\0" in choice for choice in value):
                raise ValueError("a choice has a NUL")
            return self._rules.regex("|".join(map(regex_literal, value)))
        if format.kind == "regex":
            length = too_long(value)
            if length:
                raise ValueError(f"it has {length}")
            rule: str = self._rules.regex(f"(?:{between_slashes(in_grammar(value))})")
        else:
            rule = self._rules.rule(gbnf_rule(value))
        if is_empty(self._rules.render(rule)):
            raise ValueError("no text matches it")
        return rule

    # --- the outputs ---

    def _formatted(self, format_rule: str) -> _Outputs:
        """An output in the response format, or calls if there are tools."""
        if self._source.has_prefill:  # The output continues the text of the prefill, and cannot begin with a call.
            return _Outputs(format_rule, format_rule, format_rule)
        dialect = self._dialect
        without_reasoning = seq(self._literal(dialect.text_start.first), format_rule)
        after_end_tag = seq(self._literal(dialect.text_start.after_reasoning), format_rule)
        if self._functions:
            without_reasoning = f"({without_reasoning} | {self._calls(dialect.calls[0])})"
            after_end_tag = f"({after_end_tag} | {self._calls(dialect.calls[0], prefix=dialect.calls_start)})"
        return _Outputs(without_reasoning, after_end_tag, format_rule)

    def _required(self) -> _Outputs:
        """An output that consists of calls, after an assistant prefill if there is one."""
        dialect = self._dialect
        return _Outputs(
            self._calls(dialect.calls[0], prefix=dialect.text_end if self._source.has_prefill else ""),
            self._calls(dialect.calls[0], prefix=dialect.calls_start),
            None,
        )

    def _auto(self) -> str:
        """An output of free text, which calls may follow. Reasoning is a part of the text."""
        dialect = self._dialect
        if dialect.recipient_mark:
            return self._recipients(dialect.calls)
        # The header of a call is a part of the text, too. The same format without a header matches the rest.
        formats = [format for format in dialect.calls if not format.begins_with_header]
        heads = [
            text_regex(text_of(format.section_begin, format.call_head), format.escaped(name))
            for format in formats
            if not format.opener
            for name in self._schemas
        ]
        text = self._rules.free_text([*map(regex_literal, dialect.openers), *heads])
        return " | ".join([text, *(self._calls_after(text, format) for format in formats)])

    def _recipients(self, formats: Sequence[CallFormat]) -> str:
        r"""An output of texts and then calls, each with a recipient, which its first token shows: "all" or a tool.

            all\nSure.>>>weather\n{"city": "Rome"}

        A text and the mark after it are one lexeme.
        """
        recipient_mark = self._dialect.recipient_mark
        mark, text_start = self._literal(recipient_mark), self._literal(self._dialect.text_start.first)
        text = self._rules.free_text([regex_literal(recipient_mark)])
        text_and_mark = self._literal(recipient_mark, free_text=text)
        calls = " | ".join(map(self._calls, formats))
        middle, end = (self._rules.terminal(f"{text_start} {lexeme}") for lexeme in (text_and_mark, text))
        output = self._rules.rule(f"{middle}* ({calls} | {end})")
        return f"{text} | {text_and_mark} {output}" if self._source.has_prefill else f"{output} | {mark} {output}"

    def _with_reasoning(self, outputs: _Outputs) -> str:
        r"""Reasoning, if the model reasons, then one of the outputs.

        The outputs of Hermes, and the last one of Cohere, if reasoning is open:

            hm</think>\n\nSure.         a free text and the end tag, `after_end_tag`
            hm<tool_call>...            a free text and the opener of a call, the call
            hm<|START_RESPONSE|>Sure.   a free text and a marker that opens text, `after_text_marker`
        """
        dialect, reasoning = self._dialect, self._source.reasoning
        if reasoning == "closed":
            return outputs.without_reasoning
        # The marker of a call also ends reasoning. Other end markers are forbidden: unconstrained text would follow.
        text = self._rules.free_text(map(regex_literal, dialect.reasoning_ends))
        ends = {dialect.reasoning.end: outputs.after_end_tag}
        if dialect.text_start.first in dialect.opening_markers and outputs.after_text_marker is not None:
            ends[dialect.text_start.first] = outputs.after_text_marker
        options = [seq(self._literal(end, free_text=text), f"({output})") for end, output in ends.items()]
        for format in dialect.calls if self._functions and not self._source.has_prefill else ():
            if format.opener:
                options.append(self._calls_after(text, format))
        rest = self._rules.rule(" | ".join(options))
        if reasoning == "open":
            return rest
        no_reasoning = dialect.no_reasoning and seq(self._literal(dialect.no_reasoning), outputs.without_reasoning)
        with_reasoning = seq(self._literal(dialect.reasoning.start), rest)
        return " | ".join(filter(None, (outputs.without_reasoning, no_reasoning, with_reasoning)))

    # --- calls ---

    def _calls(self, format: CallFormat, *, prefix: str = "") -> str:
        """One or more calls, after the text `prefix`."""
        head = text_of(prefix, format.section_begin, format.call_head)
        return self._and_others(format, self._call(format, head))

    def _calls_after(self, free_text: Terminal, format: CallFormat) -> str:
        r"""A free text, then one or more calls.

        The free text is one lexeme with the opener of the format, or with all that precedes the arguments of a call if
        the format has no opener:

            T_1: T_0 /<tool_call>/                        which the calls of all tools follow
            T_2: T_0 /\{"name": "now", "parameters": /    for each tool
        """
        head = text_of(format.section_begin, format.call_head)
        if not format.opener:
            return self._and_others(format, self._call(format, head, free_text=free_text))
        opener = self._literal(format.opener, free_text=free_text)
        return seq(opener, self._and_others(format, self._call(format, _without_start(head, format.opener))))

    def _and_others(self, format: CallFormat, first_call: str) -> str:
        """A first call, any number of others, and the end of their section."""
        next_head = text_of(format.between_calls, format.call_head)
        others = "" if self._source.max_calls == 1 else self._call(format, next_head) + "*"
        return seq(first_call, others, self._literal(format.section_end))

    def _call(self, format: CallFormat, head: Text, *, free_text: Terminal | None = None) -> str:
        """A call of one of the tools: `head`, perhaps after a free text, the arguments, `call_tail`."""
        tail = self._literal(format.call_tail)
        calls = []
        for name, schema in self._schemas.items():
            named_head = self._literal(head, format.escaped(name), free_text=free_text)
            calls.append(seq(named_head, argument_rule(self._rules, schema, format), tail))
        return f"({' | '.join(calls)})"

    def _literal(self, text: str | Text, name: str = "", *, free_text: Terminal | None = None) -> str:
        """The terminal of a text with a name in its holes, perhaps after a free text; "" for no text."""
        regex = text_regex(text_of(text), name)
        return self._rules.terminal(seq(free_text or "", f"/{regex}/")) if regex else ""


def _without_start(text: Text, start: str) -> Text:
    first, *others = text
    return text_of(first.removeprefix(start) if isinstance(first, str) else first, *others)
