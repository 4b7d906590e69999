"""A chat client in the standard library alone, for any server that speaks OpenAI's chat protocol.

    from localchat import Client, chat

    print(chat("Why is the sky blue?"))

Everything is loaded when it is first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Type checkers know the name; importing it from typing would cost some ms.

if TYPE_CHECKING:
    from .aio import AsyncClient, AsyncStream
    from .assembly import Accumulator
    from .client import Client, Stream, chat
    from .conversation import AsyncConversation, Conversation
    from .embeddings import Embeddings
    from .errors import (
        AuthenticationError,
        BadRequestError,
        Cancelled,
        ConflictError,
        ConnectError,
        DoesNotFit,
        IncompleteReply,
        IncompleteStream,
        LocalChatError,
        ModelNotNamed,
        NotFoundError,
        PermissionDeniedError,
        ProtocolError,
        RateLimitError,
        ServerError,
        StatusError,
        StreamError,
        TimedOut,
        TooManyRounds,
        UnprocessableError,
    )
    from .events import (
        Choice,
        ContentDelta,
        ErrorEvent,
        Logprobs,
        MessageStart,
        MessageStop,
        ReasoningDelta,
        RefusalDelta,
        Reply,
        StreamEvent,
        ToolCall,
        ToolCallDelta,
        Usage,
        UsageEvent,
        WarningEvent,
    )
    from .model_list import Model
    from .record import replay
    from .sse import ServerSentEvent, SSEDecoder, SSEError
    from .timeouts import Timeout
    from .tool_run import AsyncToolRun, ToolRun
    from .tools import Tool, ToolResult

__version__ = "0.1.0"

__all__ = [
    # Asking.
    "chat",
    "Client",
    "Stream",
    "AsyncClient",
    "AsyncStream",
    "Timeout",
    "Conversation",
    "AsyncConversation",
    "Tool",
    "ToolRun",
    "AsyncToolRun",
    # The answer.
    "Reply",
    "Choice",
    "Usage",
    "Model",
    "Embeddings",
    # The events of a stream.
    "StreamEvent",
    "MessageStart",
    "ContentDelta",
    "ReasoningDelta",
    "RefusalDelta",
    "ToolCallDelta",
    "ToolCall",
    "Logprobs",
    "UsageEvent",
    "MessageStop",
    "WarningEvent",
    "ErrorEvent",
    "ToolResult",
    # What can go wrong.
    "LocalChatError",
    "ConnectError",
    "TimedOut",
    "Cancelled",
    "StatusError",
    "BadRequestError",
    "AuthenticationError",
    "PermissionDeniedError",
    "NotFoundError",
    "ConflictError",
    "UnprocessableError",
    "RateLimitError",
    "ServerError",
    "StreamError",
    "IncompleteStream",
    "ProtocolError",
    "DoesNotFit",
    "IncompleteReply",
    "ModelNotNamed",
    "TooManyRounds",
    # A recording instead of a server.
    "replay",
    # The parts, for use without the client.
    "Accumulator",
    "SSEDecoder",
    "SSEError",
    "ServerSentEvent",
    "__version__",
]


# Where to look for a name; what costs much to load comes last, or is asked only for what it alone has.
_HOMES = (
    "sse",
    "errors",
    "events",
    "timeouts",
    "assembly",
    "model_list",
    "embeddings",
    "client",
    "tools",
    "tool_run",
    "conversation",
)
_SOLE_HOMES = {"AsyncClient": ("aio",), "AsyncStream": ("aio",), "replay": ("record",)}


def __getattr__(name: str) -> object:
    """Load the module in which a public name lives when the name is first used."""
    if name in __all__:
        from importlib import import_module

        for home in _SOLE_HOMES.get(name, _HOMES):
            value: object = getattr(import_module("." + home, __name__), name, None)
            if value is not None:
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
