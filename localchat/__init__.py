"""A chat client that needs the standard library only, for any server with OpenAI's chat API.

    from localchat import Client, chat

    print(chat("Why is the sky blue?"))

A module is imported when one of its names is first used, so that `import localchat` is fast.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Type checkers treat the name as true. An import of typing takes some ms.

if TYPE_CHECKING:
    from .agent.conversation import AsyncConversation, Conversation
    from .agent.tool_run import AsyncToolRun, ToolRun
    from .agent.tools import Tool, ToolResult
    from .aio import AsyncClient, AsyncStream
    from .client import Client, Stream, chat
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
    from .extras.embeddings import Embeddings
    from .extras.record import replay
    from .reply.assembly import Accumulator
    from .reply.models import Model
    from .sse import ServerSentEvent, SSEDecoder, SSEError
    from .transport.timeouts import Timeout

__version__ = "0.1.0"

__all__ = [
    # Requests.
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
    # Results.
    "Reply",
    "Choice",
    "Usage",
    "Model",
    "Embeddings",
    # Events of a stream.
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
    # Errors.
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
    # A recording in place of a server.
    "replay",
    # Parts for use without the client.
    "Accumulator",
    "SSEDecoder",
    "SSEError",
    "ServerSentEvent",
    "__version__",
]


# The modules in which a public name is searched; those with a slow import come last.
_MODULES = (
    "sse",
    "errors",
    "events",
    "transport.timeouts",
    "reply.assembly",
    "reply.models",
    "extras.embeddings",
    "client",
    "agent.tools",
    "agent.tool_run",
    "agent.conversation",
)
# The modules of these names, which are not searched for other names: their imports are slow.
_SLOW_MODULES = {"AsyncClient": ("aio",), "AsyncStream": ("aio",), "replay": ("extras.record",)}


def __getattr__(name: str) -> object:
    """Import the module of a public name when the name is first used."""
    if name in __all__:
        from importlib import import_module

        for module in _SLOW_MODULES.get(name, _MODULES):
            value: object = getattr(import_module("." + module, __name__), name, None)
            if value is not None:
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
