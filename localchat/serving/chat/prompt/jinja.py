"""Compiles and renders Jinja chat templates, with the extensions that transformers and vLLM give to them.

A template runs in Jinja's sandbox: it reads its variables and computes, and has no access to Python's objects, to files
or to the network. Its source, its output and its time are limited. Its memory is not, and a single operation such as
`'x' | center(10 ** 9)` cannot be interrupted, as in other servers. Raises only TemplateError.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import FrameType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...core.errors import BadRequest
from ...core.text import decode_json

MAX_SOURCE_CHARS = 1 << 17
"""The limit of a template. Python's compiler holds the GIL meanwhile. Published templates have 17,000."""
MAX_PROMPT_CHARS = 1 << 25
"""The limit of a rendered prompt. No context holds as many, and the body of a request has at most 16 MiB."""
MAX_RENDER_S = 10.0
"""The time limit of one rendering, or of all test conversations together."""
_MAX_INTEGER_BITS = 1024  # Of a product or a power. JSON's numbers have no more.
_MAX_ERROR_CHARS = 1000  # Of an error of a template that a message shows.


class TemplateError(BadRequest):
    """The template is invalid, or refuses the conversation."""


class _TooMuchWork(Exception):
    """The template exceeds a limit while it is rendered."""


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template. Raises TemplateError if it is not valid Jinja, too long, or nested too deeply."""
    if len(source) > MAX_SOURCE_CHARS:
        raise TemplateError(f"the chat template has {len(source)} characters; the limit is {MAX_SOURCE_CHARS}")
    try:
        return ENVIRONMENT.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        reason = str(error.message)[:_MAX_ERROR_CHARS]
        raise TemplateError(f"the chat template is not valid Jinja at line {error.lineno}: {reason}") from error
    except (RecursionError, MemoryError) as error:
        raise TemplateError("the chat template cannot be compiled: it is nested too deeply") from error
    except Exception as error:  # Jinja's and Python's compilers can raise others.
        raise TemplateError(f"the chat template cannot be compiled: {str(error)[:_MAX_ERROR_CHARS]}") from error


def new_deadline() -> float:
    """The time by `time.monotonic` until which a rendering that begins now may take."""
    return time.monotonic() + MAX_RENDER_S


def render_template(
    template: jinja2.Template, variables: Mapping[str, Any], deadline: float, *, is_trusted: bool = True
) -> str:
    """Render a template with these variables.

    The deadline is checked whenever the template prints a text. A loop that prints nothing could exceed it, so for a
    template that is not trusted, because it comes from a request, the deadline is also checked at each line. This takes
    five to ten times as long. Raises TemplateError if the template refuses the conversation, fails, or exceeds a limit.
    """
    chunks: list[str] = []
    n_chars = 0
    generator: Any = template.generate(variables)
    try:
        # The generator is closed when its lines are no longer checked, so that nothing is raised in it meanwhile.
        with contextlib.closing(generator), contextlib.nullcontext() if is_trusted else _checked_at_each_line(deadline):
            for chunk in generator:
                n_chars += len(chunk)
                if n_chars > MAX_PROMPT_CHARS:
                    raise _TooMuchWork(f"it prints {n_chars} characters or more, the limit is {MAX_PROMPT_CHARS}")
                _check(deadline)
                chunks.append(chunk)
    except TemplateError:
        raise
    except _TooMuchWork as error:
        raise TemplateError(f"the chat template is refused as too much work: {error}") from error
    except Exception as error:  # Template code can raise any.
        reason = f"failed on these messages ({type(error).__name__}: {str(error)[:_MAX_ERROR_CHARS]})"
        whole = f"the model's chat template {reason}; check their roles and order"
        raise TemplateError(whole if is_trusted else f"the chat template of the request {reason}") from error
    return "".join(chunks)


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise _TooMuchWork(f"it takes more than {MAX_RENDER_S:g} s")


@contextlib.contextmanager
def _checked_at_each_line(deadline: float) -> Iterator[None]:
    """Check the deadline at each line of a template's code that this thread runs."""

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        _check(deadline)
        return at_line

    def at_call(frame: FrameType, event: str, argument: Any) -> Any:
        return at_line if frame.f_code.co_filename == "<template>" else None

    previous = sys.gettrace()  # That of a debugger, or of a measurement of coverage.
    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(previous)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, where products and powers are limited: `9 ** 99999999` takes minutes."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            n_left, n_right = left.bit_length(), right.bit_length()
            n_bits = n_left * abs(right) if operator == "**" else n_left + n_right
            if n_bits > _MAX_INTEGER_BITS:
                raise _TooMuchWork(
                    f"the result of {operator!r} has about {n_bits} bits, the limit is {_MAX_INTEGER_BITS}"
                )
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
                n_items = len(sequence) * times
                if n_items > MAX_PROMPT_CHARS:
                    raise _TooMuchWork(f"the result of '*' has {n_items} items, the limit is {MAX_PROMPT_CHARS}")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # Kimi's templates keep a queue of ids in a list. All lists belong to the rendering.
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks text for training. Renders the body without the tags."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson`, as in transformers: unlike Jinja's, it does not escape characters of HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: Any) -> list[Any]:
    if isinstance(value, Iterator):  # The result of a filter such as `map`.
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _raise_exception(message: object = "") -> None:
    raise TemplateError(f"the model's chat template refuses this conversation: {str(message)[:_MAX_ERROR_CHARS]}")


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _environment() -> _Sandbox:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
    # Nothing is escaped, so every text is safe. Jinja's own filter would escape the texts that are added to its result.
    environment.filters.update(tojson=to_json, from_json=decode_json, safe=str)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


ENVIRONMENT = _environment()
