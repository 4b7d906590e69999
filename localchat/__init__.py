"""A chat client that needs the standard library only, for any server with OpenAI's chat API.

    from localchat import Client, chat

    print(chat("Why is the sky blue?"))

A module is imported when one of its names is first used, so that `import localchat` is fast.
"""

from __future__ import annotations

TYPE_CHECKING = False  # Type checkers treat the name as true. An import of typing takes some ms.

if TYPE_CHECKING:  # For type checkers, and for programs that find modules by their imports.
    from .agent.conversation import *  # noqa: F403
    from .agent.tool_run import *  # noqa: F403
    from .agent.tools import *  # noqa: F403
    from .aio import *  # noqa: F403
    from .client import *  # noqa: F403
    from .embeddings import *  # noqa: F403
    from .errors import *  # noqa: F403
    from .events import *  # noqa: F403
    from .reply.assembly import *  # noqa: F403
    from .request.models import *  # noqa: F403
    from .request.options import *  # noqa: F403
    from .request.prompts import *  # noqa: F403
    from .request.response import *  # noqa: F403
    from .sse import *  # noqa: F403
    from .streams import *  # noqa: F403
    from .testing import *  # noqa: F403
    from .transport.timeouts import *  # noqa: F403

__version__ = "0.1.0"

# The public names by their modules.
_NAMES = {
    "agent.conversation": "AsyncConversation Conversation",
    "agent.tool_run": "AsyncToolRun ToolRun",
    "agent.tools": "Tool ToolResult",
    "aio": "AsyncClient",
    "client": "Client chat",
    "embeddings": "Embeddings",
    "errors": "AuthenticationError BadRequestError Cancelled ConflictError ConnectError DoesNotFit IncompleteReply "
    "IncompleteStream LocalChatError ModelNotNamed NotFoundError PermissionDeniedError ProtocolError "
    "RateLimitError ServerError StatusError StreamError TimedOut TooManyRounds UnprocessableError",
    "events": "Annotations Audio AudioDelta Choice ContentDelta ErrorEvent Logprobs MessageStart MessageStop "
    "ReasoningDelta RefusalDelta Reply StreamEvent ToolCall ToolCallDelta Usage UsageEvent WarningEvent",
    "reply.assembly": "Accumulator",
    "request.models": "Model",
    "request.options": "ChatOptions ClientOptions CompletionOptions EmbeddingOptions MapOptions RequestOptions "
    "RunOptions StreamOptions",
    "request.prompts": "Prompt",
    "request.response": "Response",
    "sse": "ServerSentEvent SSEDecoder SSEError",
    "streams": "AsyncStream Stream",
    "testing": "FakeRequest FakeServer",
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
