"""Output events for the tests of encoders."""

from localchat.serving.core import events


def sampled(*tokens: events.OutputToken) -> events.SampledTokens:
    return events.SampledTokens(tokens)


def call(index: int, id: str, name: str, *pieces: str) -> list[events.Event]:
    """A tool call, with its arguments in pieces."""
    return [events.ToolCallStart(index, id, name), *(events.ToolCallArguments(index, piece) for piece in pieces)]
