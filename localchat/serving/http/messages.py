"""The endpoints of Anthropic's Messages API."""

from __future__ import annotations

from ..api.messages import parse_count_tokens
from ..api.messages_events import INTERFACE, PING
from ..chat.chat_prompt import prepare_chat
from .endpoints import Endpoints, Table
from .exchange import Exchange
from .stream import StreamFormat, encode_named

STREAM = StreamFormat("text/event-stream", encode_named, None, encode_named(PING))


def messages_table(endpoints: Endpoints) -> Table:
    """The handlers by path and method."""

    def count_tokens(exchange: Exchange) -> None:
        request, model = endpoints.parsed(exchange, parse_count_tokens)
        with endpoints.compiling(exchange):
            prompt = prepare_chat(model, request).sequences[0].prompt
        exchange.send_json(200, {"input_tokens": len(prompt)})

    return {
        "/messages": {"POST": endpoints.text_handler(INTERFACE, prepare_chat, STREAM)},
        "/messages/count_tokens": {"POST": count_tokens},
    }
