"""The declaration of a wire interface that generates text: a request parser, and encoders of streams and bodies.

To add one, write a module with a parser, an encoder of streams and an encoder of bodies, declare an Interface, and
add a line to the table in serving/endpoints.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from .errors import ApiError
from .events import OutputEvent
from .request import ParseOptions, TextRequest
from .usage import Usage


class ResponseHead(NamedTuple):
    """The fields that identify a response, and the prompts of the request."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str
    prompts: tuple[tuple[int, ...], ...] = ()
    """The token ids of each prompt."""


class StreamEncoder(Protocol):
    """Turns output events into chunks, each one event or line of a stream as JSON text."""

    def add(self, index: int, event: OutputEvent) -> None:
        """The next event of output number `index`."""

    def take(self) -> list[str]:
        """The chunks since the last call."""

    def finish(self) -> list[str]:
        """The last chunks, after the end of every output."""

    def failed(self, error: ApiError) -> list[str]:
        """The last chunks if the request fails after the first chunk."""


class BodyEncoder(Protocol):
    """Turns output events into one body."""

    def add(self, index: int, event: OutputEvent) -> None: ...

    def body(self, usage: Usage) -> Any:
        """The JSON value, after the end of every output."""


R = TypeVar("R", bound=TextRequest)


@dataclass(frozen=True)
class Interface(Generic[R]):
    """A wire interface for generated text."""

    id_prefix: str
    parse: Callable[[bytes, ParseOptions], R]
    """Raises BadRequest."""
    stream: Callable[[ResponseHead, R, Callable[[], Usage]], StreamEncoder]
    """The encoder of a stream; the function gives the usage so far."""
    whole: Callable[[ResponseHead, R], BodyEncoder]
    """The encoder of a body."""
    error_body: Callable[[ApiError], Any] = ApiError.body
    """The body of an error response."""
