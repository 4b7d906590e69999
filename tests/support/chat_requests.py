"""Chat requests for tests of the parser."""

import json
from functools import partial

from localchat.serving.api.chat import parse_chat
from localchat.serving.api.responses import ResponseStore, parse_response
from localchat.serving.core.fields import Fields, parse_body

parse_responses = partial(parse_response, ResponseStore())

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "look"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}


class Recorded(dict):
    """Fields that note the names by which a parser reads them."""

    def get(self, name, default=None):
        self[name] = super().get(name, default)
        return self[name]


_RECORDED = Recorded(messages=HI)
parse_chat(Fields(_RECORDED))
# The names of all fields that the parser of chats reads, apart from the messages.
FIELD_NAMES = [name for name in _RECORDED if name != "messages"]


def read(parser, fields, *, strict=False):
    """The request that a parser of any interface reads from these fields."""
    return read_with_ignored(parser, fields, strict)[0]


def ignored(parser, fields):
    """What the parser ignores in these fields."""
    return read_with_ignored(parser, fields)[1]


def read_with_ignored(parser, fields, strict=False):
    body = parse_body(json.dumps(fields).encode())
    request = parser(body)
    body.report_unknown()
    return request, body.ignored(strict=strict)


def values_of(request, names):
    """The values of fields of a request, or of its parameters."""
    return {name: getattr(request if hasattr(request, name) else request.params, name) for name in names}


def parse(*, strict=False, **fields):
    return read(parse_chat, {"messages": HI, **fields}, strict=strict)
