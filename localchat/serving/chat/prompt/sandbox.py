"""The sandbox in which the Jinja chat template of a model runs: a template from a GGUF file is untrusted code.

It is Jinja's immutable sandbox with the filters and methods that published templates use. An operation in C stops all
other threads, so it is refused before it runs if its operands or its result are too large. The sum of all operations is
limited, too. A malicious template may still take much memory. Raises only TemplateError.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import operator
import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Callable

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Namespace
from jinja2.visitor import NodeTransformer

from ...core.errors import BadRequest
from ...core.text import decode_json
from .marked import Marked, has_user_text, join, marked, printed, replace, user_ranges

MAX_SOURCE = 1 << 17  # Characters of a template. Python's compiler stops other threads. Published ones have 17,000.
# The limit of loop steps in one rendering. The largest published templates take some thousand for a long conversation.
MAX_LOOP_STEPS = 2_000_000
_CHARS_PER_STEP = 512  # The work of an operation counts as a step for so many characters.
MAX_SIZE = 1 << 24  # The limit of characters in the operands and the result of one operation. No context holds so many.
_ITEM = 16  # The characters that an item of a list counts, and a range of user text.
_MAX_DEPTH = 1000  # Of nested lists. Python hashes nested tuples without a limit, and overflows its stack.
MAX_BITS = 1024  # Of an integer. JSON's numbers have no more, and the time of a product grows with its square.
_MAX_WIDTH = 1000  # The limit of a width in a format, and of the characters of an error in a message.

# Methods that pad text to any width or take a mapping, and `encode`: bytes would lose the marks of user text.
_REMOVED = {"center", "encode", "expandtabs", "format_map", "ljust", "maketrans", "rjust", "translate", "zfill"}
# The attributes that a template may read. Kimi's templates keep a queue of ids in a list.
_ATTRIBUTES: Mapping[type, Iterable[str]] = {
    str: vars(str).keys() - _REMOVED,
    dict: {"copy", "get", "items", "keys", "values"},
    list: {"append", "pop"},
    Cycler: vars(Cycler),
    LoopContext: vars(LoopContext),
}
# Filters that keep the marks, since they return arguments or parts of them. The first do not read nested lists.
_SHALLOW: tuple[str, ...] = ("count", "d", "default", "first", "items", "last", "length", "list")
_SHALLOW += ("map", "reject", "rejectattr", "select", "selectattr")
_PRECISE = ("dictsort", "max", "min", "sort", "unique")
_OTHER_FILTERS = ("abs", "capitalize", "float", "indent", "int", "lower", "reverse", "upper")
# Functions that seek their first option in a text, and functions whose result may have many items.
_SEARCHES = {"count", "find", "in", "index", "lstrip", "partition", "replace", "rfind", "rindex", "rpartition"}
_SEARCHES |= {"rsplit", "rstrip", "split", "strip", "trim"}
_LISTS = {"indent", "list", "rsplit", "split", "splitlines"}
# Tests that take the same time for every value.
_FREE_TESTS = {"boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number"}
_FREE_TESTS |= {"sameas", "sequence", "string", "true", "undefined"}
_TESTS = {"gteq": "ge", "lteq": "le", "notin": "in"}  # Operators of comparison that are not the names of tests.

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")  # What is left of MAX_LOOP_STEPS on this thread.


class TemplateError(BadRequest):
    """The template is invalid, or refuses the conversation."""


def all_steps() -> list[int]:
    """The steps of one rendering, or of several together."""
    return [MAX_LOOP_STEPS]


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template. Raises TemplateError if it is not valid Jinja, too long, or nested too deeply."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"the chat template has {len(source)} characters; the limit is {MAX_SOURCE}")
    _steps_left.set(all_steps())  # Jinja computes constant expressions.
    try:
        tree = ENVIRONMENT.parse(source)
        tree = _Rewriter().visit(tree)
        tree.set_environment(ENVIRONMENT)
        code = ENVIRONMENT.compile(tree)
    except jinja2.TemplateSyntaxError as error:
        reason = str(error.message)[:_MAX_WIDTH]
        raise TemplateError(f"the chat template is not valid Jinja at line {error.lineno}: {reason}") from error
    except (RecursionError, SyntaxError, ValueError) as error:
        # Python's compiler also limits nesting.
        raise TemplateError(f"the chat template cannot be compiled: {str(error)[:_MAX_WIDTH]}") from error
    return jinja2.Template.from_code(ENVIRONMENT, code, ENVIRONMENT.make_globals(None))


def render_template(template: jinja2.Template, variables: Mapping[str, Any], steps: list[int] | None = None) -> str:
    """Render a template with these variables and the functions that published templates expect. `steps` are those of
    several renderings together. Raises TemplateError if it refuses the conversation, fails, or exceeds a limit."""
    _steps_left.set(all_steps() if steps is None else steps)
    now = datetime.now()
    try:
        helpers = {
            "strftime_now": lambda format: now.strftime(format[:_MAX_WIDTH]),
            # The tools as JSON text, for templates of OpenAI's older `functions` API.
            "functions": _tojson(variables["tools"], indent=2) if variables.get("tools") else "",
            "datetime": now.strftime("%Y-%m-%d %H:%M:%S"),
            "raise_exception": _raise_exception,
        }
        return template.render({**variables, **helpers})
    except TemplateError:
        raise
    except Exception as error:  # Template code can raise any.
        raise TemplateError(
            f"the model's chat template failed on these messages ({type(error).__name__}: {str(error)[:_MAX_WIDTH]}); "
            "check their roles and order"
        ) from error


def _raise_exception(message: object = "") -> None:
    raise TemplateError(f"the model's chat template refuses this conversation: {str(message)[:_MAX_WIDTH]}")


def _too_much(reason: str) -> TemplateError:
    return TemplateError(f"the chat template is refused as too much work: {reason}")


def _spend(n_chars: int, name: str) -> None:
    """Count the work of an operation. Raises TemplateError if it is too much."""
    if n_chars > MAX_SIZE:
        raise _too_much(f"{name!r} is too large: it has {n_chars} characters or more, the limit is {MAX_SIZE}")
    left = _steps_left.get()
    left[0] -= n_chars // _CHARS_PER_STEP
    if left[0] < 0:
        raise _too_much(f"it loops more than {MAX_LOOP_STEPS} times, or the sum of its operations is too large")


def _size(value: object, indent: int = 0) -> int:
    """The characters in a value, up to about MAX_SIZE. Each item counts `indent` more for each list around it."""
    if isinstance(value, str):
        return _ITEM + len(value) + _ITEM * len(user_ranges(value))
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise _too_much(f"an integer of {value.bit_length()} bits is too large, the limit is {MAX_BITS}")
    if isinstance(value, int):
        return _ITEM
    size, level = 0, [value]
    for depth in range(_MAX_DEPTH):
        inner: list[Iterable[Any]] = []
        for item in level:
            size += indent * depth + (_size(item) if isinstance(item, (str, int)) else _ITEM)
            if isinstance(item, dict):
                inner += (item, item.values())
            elif isinstance(item, (list, tuple, set, KeysView, ValuesView, ItemsView)):
                inner.append(item)
            elif isinstance(item, Namespace):
                inner.append(getattr(item, "_Namespace__attrs", {}).values())
        level = list(itertools.islice(itertools.chain.from_iterable(inner), MAX_SIZE // _ITEM))
        if not level or size > MAX_SIZE:
            return size
    raise _too_much(f"a list is nested in {_MAX_DEPTH} others")


def _work(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_shallow: bool) -> int:
    """The work of a function: the size of its arguments, and what it does for each character or item of the first."""
    if name == "in" and isinstance(args[1], dict):
        return _size(args[0])
    value, *options = [*(args or (None,)), *kwargs.values()]
    texts = [option for option in options if isinstance(option, str)]
    # The name of an attribute is split.
    size = sum(map(_size, options)) + sum(_ITEM * (text.count(".") + text.count(",")) for text in texts)
    size += 0 if is_shallow else _size(value)
    if name == "in":
        value, texts = args[1], [args[0]] if isinstance(args[0], str) else []
    if name in _SEARCHES and isinstance(value, str):  # Until Python 3.10, a search for a long text is quadratic.
        size += len(value) * sum(len(text) // 64 for text in texts[:1])
    elif name == "join":
        size += math.prod(len(arg) for arg in (value, *options) if isinstance(arg, (str, list, tuple)))
    elif name == "int" and isinstance(value, str):
        size += len(value) ** 2
    elif name == "indent":
        size += len(value) * max([4, *map(len, texts), *(option for option in options if isinstance(option, int))])
    if name in _LISTS and size <= MAX_SIZE:
        size += _ITEM * (value.count(texts[0]) if texts and texts[0] else len(value))
    return size


def _limited(name: str, function: Callable[..., Any], *, keeps_marks: bool, is_shallow: bool = False) -> Any:
    """A function that is refused if it is too much work. Unless it keeps the marks, it makes user text of user text."""
    n_passed = int(hasattr(function, "jinja_pass_arg"))  # Jinja passes the context or environment to some filters.

    def limited(*args: Any, **kwargs: Any) -> Any:
        passed, args = args[:n_passed], tuple(map(_listed, args[n_passed:]))
        _spend(_work(name, args, kwargs, is_shallow), name)
        result = function(*passed, *args, **kwargs)
        may_be_text = not keeps_marks and isinstance(result, (str, list, tuple))
        return marked(result) if may_be_text and has_user_text((args, kwargs)) else result

    # An attribute of a filter tells Jinja what to pass.
    limited.__dict__.update(getattr(function, "__dict__", {}))
    return limited


class _Sandbox(ImmutableSandboxedEnvironment):
    """Limits the work of a template, and keeps the marks of user text (marked.py): the result of an operation with user
    text is user text, unless the operation keeps the marks itself. Macros and methods of containers do."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        if isinstance(__obj, LoopContext):  # A recursive loop.
            return __obj(*map(_counted, args))
        if isinstance(__obj, (Macro, BlockReference)):  # They take as long as some steps.
            _spend(4 * _CHARS_PER_STEP, "call")
            return super().call(__context, __obj, *args, **kwargs)
        # Jinja passes the variables of loops and blocks to functions that take the context; there are none.
        kwargs = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "function")
        keeps_marks = isinstance(owner, (dict, list)) or (isinstance(owner, Marked) and name in vars(Marked))
        if isinstance(owner, str):
            args, __obj = (owner, *args), _METHODS.get(name, getattr(type(owner), name))
        return _limited(name, __obj, keeps_marks=keeps_marks or name in _METHODS)(*args, **kwargs)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        names = next((names for kind, names in _ATTRIBUTES.items() if isinstance(obj, kind)), ())
        return not attr.startswith("_") and (attr in names or isinstance(obj, Namespace))

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, str):
            _spend(_size(argument), "[]")
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _spend(_binop_size(operator, left, right), operator)
        result = super().call_binop(context, operator, left, right)
        return marked(result) if operator != "+" and has_user_text((left, right)) else result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        is_format = super().wrap_str_format(value) and value.__name__ == "format"
        return functools.partial(_format, value.__self__) if is_format else None


def _format(text: str, *args: Any, **kwargs: Any) -> str:
    formatter = SandboxedFormatter(ENVIRONMENT)
    _spend(_format_size(text, "{", (args, kwargs)), "format")
    if any(re.search(r"\d{4}|\{", spec or "") for _, _, spec, _ in formatter.parse(text)):
        raise _too_much(f"it formats text to a width of {_MAX_WIDTH} or more, or to one that is an argument")
    result = formatter.vformat(text, args, kwargs)
    return marked(result) if has_user_text(text) else result


def _binop_size(operator: str, left: Any, right: Any) -> int:
    """The size of the operands and the result."""
    sized = (str, list, tuple)
    if isinstance(left, int) and isinstance(right, int):
        n_left, n_right = left.bit_length(), right.bit_length()
        n_bits = n_left * max(right, 1) if operator == "**" else n_left + n_right if operator == "*" else n_left
        if max(n_bits, n_left, n_right) > MAX_BITS:
            raise _too_much(f"the result of {operator!r} is too large, the limit is an integer of {MAX_BITS} bits")
        return 0
    if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
        return sum(_size(side) if isinstance(side, str) else _ITEM * len(side) for side in (left, right))
    if operator == "%" and isinstance(left, str):
        if re.search(r"[%)][-+ #.0-9]*(\d{4}|\*)", left):
            raise _too_much(f"the result of '%' is too large, with a width of {_MAX_WIDTH} or more, or of an argument")
        return _format_size(left, "%", right)
    times = [side for side in (left, right) if isinstance(side, int)] if operator == "*" else []
    return max(_size(left), _size(right)) * max([1, *times])


def _format_size(text: str, mark: str, values: Any) -> int:
    return len(text) + text.count(mark) * (_MAX_WIDTH + _size(values))


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks text for training. Renders the body without the tags."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Rewriter(NodeTransformer):
    """Replaces what Jinja compiles to operators of Python by filters and tests, whose work is limited."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.For):
            node.iter = _filter("counted_", node.iter)
        elif isinstance(node, nodes.Concat):
            return _filter("join", nodes.List(node.nodes))
        elif isinstance(node, nodes.Dict):
            return _filter("dict_", nodes.List([nodes.Tuple([pair.key, pair.value], "load") for pair in node.items]))
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            bounds = (node.arg.start, node.arg.stop, node.arg.step)
            return _filter("slice_", node.node, *(bound or nodes.Const(None) for bound in bounds))
        elif isinstance(node, nodes.Compare):
            sides = [node.expr, *(operand.expr for operand in node.ops)]
            return functools.reduce(nodes.And, map(_test, (operand.op for operand in node.ops), sides, sides[1:]))
        elif isinstance(node, nodes.ScopedEvalContextModifier):
            reason = "autoescape is not supported, it loses the marks of user text"
            raise jinja2.TemplateSyntaxError(reason, node.lineno)
        return node


def _test(name: str, left: nodes.Expr, right: nodes.Expr) -> nodes.Expr:
    test = nodes.Test(left, _TESTS.get(name, name), [right], [], None, None)
    return nodes.Not(test) if name == "notin" else test


def _filter(name: str, value: Any, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None)


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _spend(_CHARS_PER_STEP, "for")
        yield item


def _listed(value: Any) -> Any:
    """A value, and for an iterator the list of its items, which has a size."""
    return list(_counted(value)) if isinstance(value, Iterator) else value


def _slice(value: Any, start: Any, stop: Any, step: Any) -> Any:
    n_items = len(range(len(value))[start:stop:step])
    _spend(n_items if isinstance(value, str) else n_items * _ITEM, "[:]")
    return value[start:stop:step]


def _finalize(value: Any) -> Any:
    """A value before it is printed."""
    if value is None or isinstance(value, (str, float, jinja2.Undefined)):
        return value
    _spend(_size(value), "print")
    return value if isinstance(value, int) else marked(str(value))


@jinja2.pass_environment
def _join(environment: jinja2.Environment, value: Any, d: str = "", attribute: Any = None) -> str:
    return join(printed(d), map(make_attrgetter(environment, attribute), value) if attribute is not None else value)


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    _spend(len(text) + text.count(old) * (_ITEM + len(new)), "replace")
    return replace(text, old, new, count)


# Methods of str that keep the marks of their arguments, too.
_METHODS: Mapping[str, Callable[..., str]] = {"join": join, "replace": _replace}


def _from_json(text: str) -> Any:
    return marked(decode_json(text)) if has_user_text(text) else decode_json(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    _spend(_size(value, len(indent) if isinstance(indent, str) else max(indent or 0, 0)), "tojson")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    # Mark the whole text, including the JSON around the strings: it contains no control tokens.
    return Marked(text) if has_user_text(value) else text


def _dict(*given: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """`dict`, but not of pairs, whose keys could have equal hashes: the time would be quadratic."""
    return functools.reduce(operator.or_, (*given, more), {})


def _environment() -> _Sandbox:
    extensions: list[Any] = ["jinja2.ext.loopcontrols", _Generation]
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, finalize=_finalize, extensions=extensions)
    environment.concat = _limited("output", functools.partial(join, ""), keeps_marks=True)  # type: ignore[method-assign]
    filters = environment.filters
    tests: dict[str, Any] = dict(environment.tests)
    own: dict[str, Any] = {"from_json": _from_json, "join": _join, "replace": _replace, "safe": printed}
    own.update(string=printed, tojson=_tojson, trim=lambda value, chars=None: printed(value).strip(chars), dict_=dict)
    own.update({name: filters[name] for name in _PRECISE})
    environment.filters = {
        **{name: _limited(name, filters[name], keeps_marks=True, is_shallow=True) for name in _SHALLOW},
        **{name: _limited(name, filters[name], keeps_marks=False) for name in _OTHER_FILTERS},
        **{name: _limited(name, function, keeps_marks=True) for name, function in own.items()},
        "counted_": _counted,
        "slice_": _slice,
    }
    limited = {name: _limited(name, test, keeps_marks=True) for name, test in tests.items()}
    environment.tests = {**limited, **{name: tests[name] for name in _FREE_TESTS}}
    environment.globals.update(dict=_dict, namespace=lambda *given, **more: Namespace(_dict(*given, **more)))
    del environment.globals["lipsum"]
    return environment


ENVIRONMENT = _environment()
