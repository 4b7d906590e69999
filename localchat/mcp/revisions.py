"""The revisions of the protocol, and what a server says of itself. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .messages import Json

# Revisions are dates, so that their order is that of their texts.
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
# The first revision without a handshake: each request has the revision and the capabilities of the client.
_FIRST_MODERN = "2026-07-28"
LEGACY = tuple(revision for revision in REVISIONS if revision < _FIRST_MODERN)
MODERN = tuple(revision for revision in REVISIONS if revision >= _FIRST_MODERN)

PREFIX = "io.modelcontextprotocol/"  # Of the fields of the protocol in the metadata of a request.
VERSION_KEY = f"{PREFIX}protocolVersion"

# The errors of a server since 2026-07-28: headers that do not match, and an unsupported revision.
HEADER_MISMATCH, UNSUPPORTED_REVISION = -32020, -32022


def is_modern(revision: str) -> bool:
    return revision in MODERN


def newest_of(supported: Iterable[Any], known: Iterable[str] = REVISIONS) -> str | None:
    """The newest known revision among those that a server supports; None if there is none."""
    return max(set(known) & {revision for revision in supported if isinstance(revision, str)}, default=None)


@dataclass(frozen=True)
class ServerDescription:
    """What a server says of itself."""

    revision: str
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    instructions: str = ""  # How its tools are used, for the model.

    @property
    def reports_tools(self) -> bool:
        """Whether the server reports changes of its list of tools."""
        tools = self.capabilities.get("tools")
        return isinstance(tools, dict) and tools.get("listChanged") is True

    @classmethod
    def of(cls, revision: str, result: Json) -> ServerDescription:
        """The description in the result of `initialize` or `server/discover`."""
        capabilities, instructions = result.get("capabilities"), result.get("instructions")
        return cls(
            revision,
            capabilities if isinstance(capabilities, dict) else {},
            instructions if isinstance(instructions, str) else "",
        )
