"""The declaration of a wire interface for generated text: a request parser, a stream encoder and a body encoder.

To add an interface, write a module with these three, declare an Interface, and add a line to the table in
serving/endpoints.py. If its errors have another format, set it in serving/routes.py.
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
    """The time of the request, in seconds since 1970."""
    model: str
    prompts: tuple[tuple[int, ...], ...] = ()
    """The token ids of each prompt."""


class StreamEncoder(Protocol):
    """Encodes output events as chunks. A chunk is the JSON text of one event or line of the stream."""

    def add(self, index: int, event: OutputEvent) -> None:
        """Add the next event of output number `index`."""

    def take(self) -> list[str]:
        """The chunks since the last call."""

    def finish(self) -> list[str]:
        """The last chunks. Called after the end of every output."""

    def failed(self, error: ApiError) -> list[str]:
        """The last chunks of a request that fails during the stream."""


class BodyEncoder(Protocol):
    """Encodes output events as one response body."""

    def add(self, index: int, event: OutputEvent) -> None: ...

    def body(self, usage: Usage) -> Any:
        """The body as a JSON value. Called after the end of every output."""


R = TypeVar("R", bound=TextRequest)


@dataclass(frozen=True)
class Interface(Generic[R]):
    """A wire interface for generated text."""

    id_prefix: str
    parse: Callable[[bytes, ParseOptions], R]
    """Parses a request body; raises BadRequest."""
    stream: Callable[[ResponseHead, R, Callable[[], Usage]], StreamEncoder]
    """Makes a stream encoder. The last argument returns the usage so far."""
    whole: Callable[[ResponseHead, R], BodyEncoder]
    """Makes a body encoder."""
