"""A model's chat template: messages in, prompt segments out.

The Jinja text of the GGUF runs in an immutable sandbox without attribute access, with bounded
loops and repetitions, and with the helpers that published templates expect. That keeps a mistaken
template from doing harm; one written to exhaust the memory may still find a way. Knows nothing of
HTTP or of the engine. Raises only TemplateError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Callable

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ..dialects import DIALECTS, detect
from .adapted import adapted, calls_text
from .errors import TemplateError
from .marked import Marked, copied, holds_mark, join, marking
from .messages import Capabilities, prepared, prepared_tools
from .segments import Segment, SpecialTexts, merged, segments_of, text_of

# A model without a template gets ChatML, the most common format of instruction-tuned models.
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# The largest published templates take some thousand loop steps for a long conversation.
MAX_LOOP_STEPS = 2_000_000
# What one repetition inside a template may give; real ones repeat a space or a dash.
MAX_REPEATED = 100_000
# What one addition may give, so that doubling in a loop ends: more than any context holds.
MAX_TEXT = 1 << 24

# Padding to any width, and what reaches outside the text: no template needs them.
_REMOVED_FILTERS = ("center", "format", "pprint", "random", "urlize", "wordwrap", "xmlattr")
_REMOVED_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill", "format_map", "translate"})
# Kimi's templates keep a queue of ids. What they are given is a copy, so nothing else can change.
_LIST_METHODS = frozenset({"append", "pop"})
# Roles that templates build their own markers from; any other role is a user's text.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})


Messages = Sequence[Mapping[str, Any]]


class ChatTemplate:
    """A compiled chat template with what it was found to expect of messages.

    Attributes:
        source: its text.
        format: how its model writes thinking and calls, for the output parser.
        special: the control tokens, for `tokens_of`.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        add_bos: bool = False,
        special_texts: Iterable[str] = (),
    ) -> None:
        """Compile `source`, or the generic ChatML if there is none.

        Args:
            add_bos: whether the vocabulary asks for a BOS; the prompt then starts with one, even
                if the template writes none, and never with two.
            special_texts: the texts of the control tokens. Without them every rendering is marked;
                with them only one in which a message holds such a text.

        Raises:
            TemplateError: the source is no Jinja template.
        """
        self.source = source or CHATML
        self.special = SpecialTexts(special_texts)
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._add_bos = add_bos
        self._template = _compiled(self.source)
        self.format = detect(self.source)
        self._dialect = self._probed()
        if not self._dialect.shows_tools and self.format.write_calls is calls_text:
            # Its model will be told of the generic form of calls, so they come in that.
            self.format = DIALECTS["hermes"].for_template(self.source)

    def render(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool | str = False,
        prefix: str = "",
        variables: Mapping[str, Any] | None = None,
    ) -> list[Segment]:
        """The prompt for these messages, complete with its BOS: tokenise it without adding one.

        Args:
            continue_final_message: the last assistant message opens the answer instead of being a
                turn of its own; "reasoning_content" leaves its thinking open.
            prefix: text that opens the answer, after that message if both are given.
            variables: what else the template may read: `chat_template_kwargs`, `documents`,
                `enable_thinking`. The variables set here win.

        Raises:
            TemplateError: a message cannot be shown to this model, or the template refused it.
        """
        final: Mapping[str, Any] = {}
        if continue_final_message:
            messages, final = _final_message(messages)
        try:
            given = self._given(messages, tools, variables)
            given["add_generation_prompt"] = add_generation_prompt or bool(continue_final_message)
            segments = self._with_bos(self._segments(given))
        except RecursionError as error:
            raise TemplateError("the messages or tools are nested too deeply") from error
        thought = final.get("reasoning_content", "")
        if continue_final_message == "reasoning_content":
            return merged([*segments, *self.format.opened_thought(thought, text_of(segments))])
        text = final.get("content", "") + prefix
        if not thought and not text:
            return segments
        return merged([*segments, *self.format.opened_text(thought, text, text_of(segments))])

    def _given(self, messages: Messages, tools: Messages | None, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        shown = prepared(messages, self._dialect)
        return {
            **(variables or {}),
            "messages": adapted(shown, tools, self._dialect, self.format.write_calls),
            "tools": prepared_tools(tools or (), self._dialect) or self._dialect.no_tools,
        }

    def _segments(self, given: dict[str, Any]) -> list[Segment]:
        plain = self._run(copied(given))
        if self.special and not _mentions(given, self.special):
            return merged([Segment(plain, True)])
        marked = self._run(_marked(given))
        # A template can only tell the two apart where a str method here is wrong: then the marks
        # are worth less than the text.
        return segments_of(marked) if marked == plain else merged([Segment(plain, True)])

    def _run(self, given: Mapping[str, Any]) -> str:
        now = datetime.now()
        ours = {
            "bos_token": self._bos_token,
            "eos_token": self._eos_token,
            "strftime_now": now.strftime,
            # The name that templates from the time of `functions` read, as text.
            "functions": _tojson(given["tools"], indent=2) if given.get("tools") else "",
            "datetime": now.strftime("%Y-%m-%d %H:%M:%S"),
            "raise_exception": _refuse,
            _STEPS: _Steps(),
        }
        try:
            return self._template.render({**given, **ours})
        except TemplateError:
            raise
        # Whatever a foreign template does wrong is a fault of the template with these messages.
        except Exception as error:
            raise TemplateError(
                f"the model's chat template failed on these messages ({type(error).__name__}: {error}); "
                "check their roles and order"
            ) from error

    def _with_bos(self, segments: list[Segment]) -> list[Segment]:
        first = segments[0] if segments else Segment("", True)
        has_bos = first.is_markup and first.text.startswith(self._bos_token)
        if has_bos or not self._add_bos:
            return segments
        return merged([Segment(self._bos_token, True), *segments])

    def _probed(self) -> Capabilities:
        """Find by trial what this template expects of messages, and what it does not show."""
        plain = [Capabilities(typed_content=typed, no_tools=no) for typed in (False, True) for no in (None, ())]
        found = self._first_that_shows(_USER, plain) or Capabilities()
        shows_whole = self._shows(_HAY, found, tools=_TOOLS)
        keys = [key for key in _THOUGHT_KEYS if re.search(rf"[.'\"]{key}\b", self.source)]
        found = found._replace(
            # One that prints any role knows none by that, and one that names it may mean something else.
            knows_developer="developer" in self.source
            and self._shows(_DEVELOPER, found._replace(knows_developer=True)),
            knows_system=self._shows(_SYSTEM, found),
            # One that reads them may still refuse the trial's.
            shows_tools="tools" in self.source or shows_whole,
            whole_tools=shows_whole and not self._shows(_HAY, found, tools=_BARE_TOOLS),
            thought_key=keys[0] if keys else _THOUGHT_KEYS[0],
        )
        trials = [
            found._replace(null_content=null, text_arguments=as_text, short_ids=short)
            for null in (False, True)
            for short in (False, True)
            for as_text in (False, True)
        ]
        with_calls = self._first_that_shows(_CALL, trials)
        found = with_calls or found._replace(shows_calls=False)
        may_read_parts = bool(re.search("""['"]thinking['"]""", self.source))
        by_thought = [found, *([found._replace(thought_part=True)] if may_read_parts else [])]
        found = self._first_that_shows(_THOUGHT, by_thought) or found
        lone = found.shows_calls and not self._shows(_THOUGHT_AND_CALL, found)
        return found._replace(
            lone_thought=lone,
            shows_results=self._shows(_RESULT, found),
            one_call=found.shows_calls and not self._shows(_TWO_CALLS, found),
            only_objects=found.shows_calls and not self._shows(_CALL_WITH_TEXT, found),
        )

    def _first_that_shows(self, messages: Messages, trials: Sequence[Capabilities]) -> Capabilities | None:
        return next((trial for trial in trials if self._shows(messages, trial)), None)

    def _shows(self, messages: Messages, dialect: Capabilities, tools: Messages | None = None) -> bool:
        shown = adapted(prepared(messages, dialect), None, dialect)
        try:
            text = self._run({"messages": shown, "tools": tools or dialect.no_tools})
        except TemplateError:
            return False
        # A dict printed with single quotes is Python's way, not JSON: arguments should be text.
        return _NEEDLE in text and "'" + _NEEDLE not in text


_THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning", "thought")

# What a template is tried with: whether the needle comes out.
_NEEDLE = "needle"
_HAY: Messages = ({"role": "user", "content": "hay"},)
_USER: Messages = ({"role": "user", "content": _NEEDLE},)
_SYSTEM: Messages = ({"role": "system", "content": _NEEDLE}, *_HAY)
_DEVELOPER = ({"role": "developer", "content": _NEEDLE}, *_HAY)
_TOOLS: Messages = (
    {
        "type": "function",
        "function": {
            "name": _NEEDLE,
            "description": "hay",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
)

_BARE_TOOLS: Messages = ({"type": "function", "function": {"name": _NEEDLE}},)


def _called(arguments: str | Mapping[str, str], result: str) -> Messages:
    function = {"name": "hay", "arguments": arguments}
    call = {"id": "call_" + 24 * "0", "type": "function", "function": function}
    return (
        *_HAY,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "hay", "content": result},
    )


_CALL = _called({_NEEDLE: "hay"}, "hay")
_CALL_WITH_TEXT = _called(_NEEDLE, "hay")
_RESULT = _called({"hay": "hay"}, _NEEDLE)
_SECOND = {**_CALL[1]["tool_calls"][0], "id": "call_" + 24 * "1"}
_TWO_CALLS: Messages = (
    *_HAY,
    {**_CALL[1], "tool_calls": [_RESULT[1]["tool_calls"][0], _SECOND]},
    _CALL[2],
    {**_CALL[2], "tool_call_id": _SECOND["id"]},
)
_THOUGHT: Messages = (*_HAY, {"role": "assistant", "content": "hay", "reasoning_content": _NEEDLE})
_THOUGHT_AND_CALL: Messages = (_CALL[0], {**_CALL[1], "content": "hay", "reasoning_content": "hay"}, _CALL[2])


def _final_message(messages: Messages) -> tuple[Messages, Mapping[str, Any]]:
    last = messages[-1] if messages else {}
    if not isinstance(last, Mapping) or last.get("role") != "assistant" or last.get("tool_calls"):
        raise TemplateError(
            "continue_final_message needs an assistant message without tool_calls at the end",
            param="continue_final_message",
        )
    return messages[:-1], prepared([last], Capabilities(), at=len(messages) - 1)[0]


def _marked(given: Mapping[str, Any]) -> dict[str, Any]:
    marked: dict[str, Any] = copied(given, Marked)
    for message, original in zip(marked["messages"], given["messages"]):
        if original.get("role") in _ROLES:
            message["role"] = original["role"]
    return marked


def _mentions(value: Any, special: SpecialTexts) -> bool:
    """Whether any string in a JSON value may have a part in a control token."""
    if isinstance(value, str):
        return special.may_be_in(value)
    if isinstance(value, (list, tuple)):
        return any(_mentions(item, special) for item in value)
    if isinstance(value, dict):
        return any(_mentions(item, special) for pair in value.items() for item in pair)
    return False


# --- the sandbox ---


_STEPS = "_steps"


class _Steps:
    """Counts the loop steps of one rendering."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_STEPS

    def _take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TemplateError(f"the chat template loops more than {MAX_LOOP_STEPS} times")


def _refuse(message: object = "") -> None:
    raise TemplateError(f"the model's chat template refuses this conversation: {message}")


class _Sandbox(ImmutableSandboxedEnvironment):
    concat = staticmethod(lambda parts: join("", parts))
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr in _LIST_METHODS:
            return True
        return attr not in _REMOVED_METHODS and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_size(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and re.search(r"\{[^}]*\d{4}", value.__self__):
            raise TemplateError("the chat template formats to a width of 1000 or more")
        return wrapped


def _check_size(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be huge; Python itself would just try."""
    if _IS_HUGE[operator](left, right):
        raise TemplateError(f"an operation {operator!r} of the chat template gives too large a result")


def _is_huge_sum(left: Any, right: Any) -> bool:
    return isinstance(left, (str, list)) and isinstance(right, (str, list)) and len(left) + len(right) > MAX_TEXT


def _is_huge_product(left: Any, right: Any) -> bool:
    pairs = [(many, times) for many, times in ((left, right), (right, left)) if isinstance(times, int)]
    return any(isinstance(many, (str, list, tuple)) and len(many) * times > MAX_REPEATED for many, times in pairs)


def _is_huge_power(left: Any, right: Any) -> bool:
    return bool(max(abs(left), abs(right)) > 1000)


def _is_wide_format(left: Any, right: Any) -> bool:
    return isinstance(left, str) and bool(re.search(r"%[^a-zA-Z%]*(\d{4}|\*)", left))


_IS_HUGE: Mapping[str, Callable[[Any, Any], bool]] = {
    "+": _is_huge_sum,
    "*": _is_huge_product,
    "**": _is_huge_power,
    "%": _is_wide_format,
}


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what trainers learn from: here only its body counts."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewriter(NodeTransformer):
    """Counts the steps of every loop, and joins what `~` joins without losing marks."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named by jinja2
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "counted_", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "join", [], [], None, None, lineno=node.lineno)


@jinja2.pass_context
def _counted(context: Context, items: Any) -> Iterator[Any]:
    steps = context[_STEPS]
    for item in items:
        steps._take()
        yield item


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Any, d: str = "", attribute: Any = None) -> str:
    return join(d, map(make_attrgetter(environment, attribute), value) if attribute is not None else value)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, Iterator):
        value = list(value)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # All of it counts as the user's: JSON around a user's strings holds no special token.
    return Marked(text) if holds_mark(value) else text


def _environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
    filters = environment.filters
    for name in _REMOVED_FILTERS:
        del filters[name]
    for name in ("indent", "escape", "e", "truncate", "striptags"):
        filters[name] = marking(filters[name])
    filters.update(tojson=_tojson, join=_join, counted_=_counted, safe=str, from_json=json.loads)
    del environment.globals["lipsum"]
    return environment


_ENVIRONMENT = _environment()


def _compiled(source: str) -> jinja2.Template:
    try:
        tree = _ENVIRONMENT.parse(source)
        tree = _Rewriter().visit(tree)
        tree.set_environment(_ENVIRONMENT)
        code = _ENVIRONMENT.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is not valid Jinja at line {error.lineno}: {error.message}") from error
    except (RecursionError, SyntaxError, ValueError) as error:
        # Python's own compiler sets limits to nesting too.
        raise TemplateError(f"the chat template cannot be compiled: {error}") from error
    return jinja2.Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.make_globals(None))
