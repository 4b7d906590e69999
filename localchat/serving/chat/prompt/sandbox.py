"""The sandbox in which the Jinja chat template of a model runs: a template from a GGUF file is untrusted code.

It is Jinja's immutable sandbox without access to attributes, and with limits for loops and repetitions. This protects
the server against faulty templates; a malicious template may still exhaust the memory. Raises only TemplateError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Callable

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from ...core.errors import BadRequest
from .marked import Marked, has_user_text, join, marked, printed, replace

# The limit of loop steps in one rendering. The largest published templates take some thousand for a long conversation.
MAX_LOOP_STEPS = 2_000_000
# The limit of characters or items in the result of one `*`. Published templates repeat a space or a dash.
MAX_REPEATED = 100_000
# The limit of the indent of JSON, which each level repeats on each of its lines.
MAX_INDENT = 16
# The limit of bits in an integer. JSON's numbers have at most 1,024, and the time of a product grows with its square.
MAX_BITS = 1024
# The limit of characters in the result of one `+`: text could double in a loop. No context holds so many characters.
MAX_TEXT = 1 << 24

# Filters and methods that pad text to any width, read attributes or are random. No published template needs them.
_REMOVED_FILTERS = ("center", "format", "pprint", "random", "urlize", "wordwrap", "xmlattr")
# Bytes would lose the marks of user text.
REMOVED_METHODS = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill", "format_map", "translate", "encode"})
# Methods of str that keep the marks of their arguments, too.
_MARKING_METHODS: Mapping[str, Callable[..., str]] = {"join": join, "replace": replace}
# Filters that keep the marks: they return an argument or a part of it.
_PRECISE_FILTERS = frozenset({"first", "last", "min", "max", "default", "d", "attr"})
# List methods that are allowed: Kimi's templates keep a queue of ids. A template can change only its copy of the
# messages.
_LIST_METHODS = frozenset({"append", "pop"})
# The template variable with an iterator of `MAX_LOOP_STEPS` items. Each step of a loop takes one.
_STEPS = "_steps"


class TemplateError(BadRequest):
    """The template is invalid, or refuses the conversation."""


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template. Raises TemplateError if it is not valid Jinja, or is nested too deeply."""
    try:
        tree = ENVIRONMENT.parse(source)
        tree = _Rewriter().visit(tree)
        tree.set_environment(ENVIRONMENT)
        code = ENVIRONMENT.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is not valid Jinja at line {error.lineno}: {error.message}") from error
    except (RecursionError, SyntaxError, ValueError) as error:
        # Python's compiler also limits nesting.
        raise TemplateError(f"the chat template cannot be compiled: {error}") from error
    return jinja2.Template.from_code(ENVIRONMENT, code, ENVIRONMENT.make_globals(None))


def render_template(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """Render a template with these variables and the functions that published templates expect.

    Raises TemplateError if the template refuses the conversation, fails, or exceeds a limit.
    """
    now = datetime.now()
    helpers = {
        "strftime_now": now.strftime,
        # The tools as JSON text, for templates of OpenAI's older `functions` API.
        "functions": _tojson(variables["tools"], indent=2) if variables.get("tools") else "",
        "datetime": now.strftime("%Y-%m-%d %H:%M:%S"),
        "raise_exception": _raise_exception,
        _STEPS: iter(range(MAX_LOOP_STEPS)),
    }
    try:
        return template.render({**variables, **helpers})
    except TemplateError:
        raise
    # Template code can raise any exception.
    except Exception as error:
        raise TemplateError(
            f"the model's chat template failed on these messages ({type(error).__name__}: {error}); "
            "check their roles and order"
        ) from error


def _raise_exception(message: object = "") -> None:
    raise TemplateError(f"the model's chat template refuses this conversation: {message}")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Limits the work of a template, and keeps the marks of user text (marked.py).

    The result of an operation with user text is user text, unless the operation keeps the marks itself. Macros and
    methods of containers return values that have marks already.
    """

    concat = staticmethod(lambda parts: join("", parts))
    intercepted_binops = frozenset({"+", "-", "*", "**", "%"})

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str) and name in _MARKING_METHODS:
            __obj = partial(_MARKING_METHODS[name], owner)
        if isinstance(__obj, (Macro, LoopContext)):  # Two calls in a macro double with each level.
            _take_step(__context)
        result = super().call(__context, __obj, *args, **kwargs)
        keeps_marks = isinstance(owner, Marked) and name in vars(Marked)
        if keeps_marks or isinstance(__obj, (Macro, LoopContext, partial)) or isinstance(owner, (dict, list, tuple)):
            return result
        may_be_text = isinstance(result, (str, list, tuple))
        return marked(result) if may_be_text and has_user_text((owner, args, kwargs)) else result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, list) and attr in _LIST_METHODS:
            return True
        return attr not in REMOVED_METHODS and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if _is_huge(operator, left, right):
            raise _too_much(f"the result of an operation {operator!r} is too large")
        result = super().call_binop(context, operator, left, right)
        return marked(result) if operator != "+" and has_user_text((left, right)) else result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        # A width in braces is an argument, which may be any number.
        if wrapped is not None and re.search(r"\{[^}]*(\d{4}|:[^}]*\{)", value.__self__):
            raise _too_much("it formats text to a width of 1000 or more, or to a width that is an argument")
        return wrapped


def _too_much(reason: str) -> TemplateError:
    return TemplateError(f"the chat template is refused as too much work: {reason}")


def _is_huge(operator: str, left: Any, right: Any) -> bool:
    """Whether the result of an operation would be huge; Python has no limit."""
    sized = (str, list, tuple)
    if isinstance(left, int) and isinstance(right, int):
        n_left, n_right = left.bit_length(), right.bit_length()
        n_bits = n_left * max(right, 1) if operator == "**" else n_left + n_right if operator == "*" else n_left
        return max(n_bits, n_left, n_right) > MAX_BITS
    if operator == "+":
        return isinstance(left, sized) and isinstance(right, sized) and len(left) + len(right) > MAX_TEXT
    if operator == "*":
        many, times = (left, right) if isinstance(left, sized) else (right, left)
        return isinstance(many, sized) and isinstance(times, int) and len(many) * times > MAX_REPEATED
    if operator == "**":
        return bool(max(abs(left), abs(right)) > 1000)
    return operator == "%" and isinstance(left, str) and bool(re.search(r"%[^a-zA-Z%]*(\d{4}|\*)", left))


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks text for training. Renders the body without the tags."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewriter(NodeTransformer):
    """Adds a step counter to every loop, and replaces `~` by a join that keeps the marks of user text."""

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
    for item in items:
        _take_step(context)
        yield item


def _take_step(context: Context) -> None:
    if next(context[_STEPS], None) is None:
        raise _too_much(f"it loops more than {MAX_LOOP_STEPS} times, or calls as many macros")


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Any, d: str = "", attribute: Any = None) -> str:
    return join(printed(d), map(make_attrgetter(environment, attribute), value) if attribute is not None else value)


def _finalize(value: Any) -> Any:
    """A value before it is printed."""
    return value if value is None or isinstance(value, (str, int, float, jinja2.Undefined)) else marked(str(value))


def _keeping_marks(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose result is user text if one of its arguments has any."""

    def keeping(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return Marked(result) if isinstance(result, str) and has_user_text((args, kwargs)) else result

    # An attribute of a filter tells Jinja whether to pass the context as first argument.
    keeping.__dict__.update(getattr(function, "__dict__", {}))
    return keeping


def _counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose first argument after the value is a number, such as a width, that bounds its work."""

    def counting(value: Any, n: Any, *args: Any, **kwargs: Any) -> Any:
        n_lines = value.count("\n") + 1 if isinstance(value, str) else 1
        n_each = len(n) if isinstance(n, str) else abs(n)
        if n_lines * n_each > MAX_REPEATED:
            raise _too_much(f"{n_lines} lines or items of {n_each} are more than {MAX_REPEATED}")
        return function(value, n, *args, **kwargs)

    return counting


def _trim(value: object, chars: str | None = None) -> str:
    return printed(value).strip(chars)


def _from_json(text: str) -> Any:
    return marked(json.loads(text)) if has_user_text(text) else json.loads(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, Iterator):
        value = list(value)
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > MAX_INDENT:
        raise _too_much(f"tojson has an indent of more than {MAX_INDENT}")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # Mark the whole text, including the JSON around the strings: it contains no control tokens.
    return Marked(text) if has_user_text(value) else text


def _environment() -> _Sandbox:
    extensions: list[Any] = ["jinja2.ext.loopcontrols", _Generation]
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, finalize=_finalize, extensions=extensions)
    filters = environment.filters
    for name in _REMOVED_FILTERS:
        del filters[name]
    batch, cut, indent, rounded = (_counting(filters[name]) for name in ("batch", "slice", "indent", "round"))
    filters.update(
        batch=lambda value, linecount, fill_with=None: batch(value, linecount, fill_with),
        slice=lambda value, slices, fill_with=None: cut(value, slices, fill_with),
        indent=lambda s, width=4, first=False, blank=False: indent(s, width, first, blank),
        round=lambda value, precision=0, method="common": rounded(value, precision, method),
    )
    for name in set(filters) - _PRECISE_FILTERS:
        filters[name] = _keeping_marks(filters[name])
    filters.update(tojson=_tojson, join=_join, counted_=_counted, from_json=_from_json)
    filters.update(replace=replace, trim=_trim, string=printed, safe=printed)
    del environment.globals["lipsum"]
    return environment


ENVIRONMENT = _environment()
