"""A chat client that needs the standard library only, for any server with OpenAI's chat API.

    from localchat import Client, chat

    print(chat("Why is the sky blue?"))

A module is imported when one of its names is first used, so that `import localchat` is fast.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Type checkers treat the name as true. An import of typing takes some ms.

if TYPE_CHECKING:  # Public names, which type checkers do not find in the table below.
    from .agent.conversation import AsyncConversation as AsyncConversation
    from .agent.conversation import Conversation as Conversation
    from .agent.tool_run import AsyncToolRun as AsyncToolRun
    from .agent.tool_run import ToolRun as ToolRun
    from .agent.tools import Tool as Tool
    from .agent.tools import ToolResult as ToolResult
    from .aio import AsyncClient as AsyncClient
    from .aio import AsyncStream as AsyncStream
    from .client import Client as Client
    from .client import Stream as Stream
    from .client import chat as chat
    from .errors import AuthenticationError as AuthenticationError
    from .errors import BadRequestError as BadRequestError
    from .errors import Cancelled as Cancelled
    from .errors import ConflictError as ConflictError
    from .errors import ConnectError as ConnectError
    from .errors import DoesNotFit as DoesNotFit
    from .errors import IncompleteReply as IncompleteReply
    from .errors import IncompleteStream as IncompleteStream
    from .errors import LocalChatError as LocalChatError
    from .errors import ModelNotNamed as ModelNotNamed
    from .errors import NotFoundError as NotFoundError
    from .errors import PermissionDeniedError as PermissionDeniedError
    from .errors import ProtocolError as ProtocolError
    from .errors import RateLimitError as RateLimitError
    from .errors import ServerError as ServerError
    from .errors import StatusError as StatusError
    from .errors import StreamError as StreamError
    from .errors import TimedOut as TimedOut
    from .errors import TooManyRounds as TooManyRounds
    from .errors import UnprocessableError as UnprocessableError
    from .events import Annotations as Annotations
    from .events import Choice as Choice
    from .events import ContentDelta as ContentDelta
    from .events import ErrorEvent as ErrorEvent
    from .events import Logprobs as Logprobs
    from .events import MessageStart as MessageStart
    from .events import MessageStop as MessageStop
    from .events import ReasoningDelta as ReasoningDelta
    from .events import RefusalDelta as RefusalDelta
    from .events import Reply as Reply
    from .events import StreamEvent as StreamEvent
    from .events import ToolCall as ToolCall
    from .events import ToolCallDelta as ToolCallDelta
    from .events import Usage as Usage
    from .events import UsageEvent as UsageEvent
    from .events import WarningEvent as WarningEvent
    from .extras.embeddings import Embeddings as Embeddings
    from .reply.assembly import Accumulator as Accumulator
    from .reply.payloads import Model as Model
    from .sse import ServerSentEvent as ServerSentEvent
    from .sse import SSEDecoder as SSEDecoder
    from .sse import SSEError as SSEError
    from .transport.timeouts import Timeout as Timeout

__version__ = "0.1.0"

# The public names by their modules.
_NAMES = {
    "agent.conversation": "AsyncConversation Conversation",
    "agent.tool_run": "AsyncToolRun ToolRun",
    "agent.tools": "Tool ToolResult",
    "aio": "AsyncClient AsyncStream",
    "client": "Client Stream chat",
    "errors": "AuthenticationError BadRequestError Cancelled ConflictError ConnectError DoesNotFit IncompleteReply "
    "IncompleteStream LocalChatError ModelNotNamed NotFoundError PermissionDeniedError ProtocolError "
    "RateLimitError ServerError StatusError StreamError TimedOut TooManyRounds UnprocessableError",
    "events": "Annotations Choice ContentDelta ErrorEvent Logprobs MessageStart MessageStop ReasoningDelta "
    "RefusalDelta Reply StreamEvent ToolCall ToolCallDelta Usage UsageEvent WarningEvent",
    "extras.embeddings": "Embeddings",
    "reply.assembly": "Accumulator",
    "reply.payloads": "Model",
    "sse": "ServerSentEvent SSEDecoder SSEError",
    "transport.timeouts": "Timeout",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULE_OF, "__version__"]


def __getattr__(name: str) -> object:
    """Import the module of a public name when the name is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module("." + _MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
