"""Text beside the markers of Functionary and Granite, whose markers also occur in ordinary text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.core.events import ContentDelta, ReasoningDelta, ToolCallStart

from .dialect_outputs import TOOLS
from .test_output import call, parse, parse_every_way, parser

PYTHON = "Type this:\n>>> 1 + 1\n2\n>>> exit()\n"


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param("all\n" + PYTHON, [ContentDelta(PYTHON)], id="Python's prompt"),
        pytest.param(">>>all\n" + PYTHON, [ContentDelta(PYTHON)], id="marker repeated"),
        pytest.param(PYTHON, [ContentDelta(PYTHON)], id="no recipient at all"),
        pytest.param(">>> 1 + 1", [ContentDelta(">>> 1 + 1")], id="at the beginning"),
        pytest.param("all\nHi \n>>>", [ContentDelta("Hi \n>>>")], id="at the end"),
        pytest.param("all\nHi\n>>>weath", [ContentDelta("Hi\n>>>weath")], id="recipient that is cut"),
        pytest.param("all\nHi\n>>>storm\n{}", [ContentDelta("Hi\n>>>storm\n{}")], id="name that was not offered"),
        pytest.param("all\nHi\n>>>now {}", [ContentDelta("Hi\n>>>now {}")], id="name without the end of its line"),
        pytest.param("all\nHi\n>>> now\n{}", [ContentDelta("Hi\n>>> now\n{}")], id="space before a name"),
        pytest.param("all\nHi\n>>>all\nMore", [ContentDelta("HiMore")], id="text twice"),
        pytest.param("all\n<b>>>>now\n{}", [ContentDelta("<b>"), *call("now", "{}")], id="bracket before the marker"),
        pytest.param(
            "all\n" + PYTHON + ">>>now\n{}", [ContentDelta(PYTHON.rstrip()), *call("now", "{}")], id="a call after it"
        ),
        pytest.param("now\n{}\n" + PYTHON, [*call("now", "{}"), ContentDelta(PYTHON)], id="text after a call"),
        pytest.param("now\n{}\n>>> 1", [*call("now", "{}"), ContentDelta(">>> 1")], id="right after a call"),
        pytest.param("now\n{}>>>now\n{}", [*call("now", "{}"), *call("now", "{}", 1)], id="two calls"),
        pytest.param("now\n>>>all\nHi", [*call("now", "{}"), ContentDelta("Hi")], id="call without arguments"),
        pytest.param("now\n>>> f(1)\n>>>all\nHi", [*call("now", ">>> f(1)"), ContentDelta("Hi")], id="raw arguments"),
        pytest.param(
            'now\n{"a": x\n>>>all\nHi', [*call("now", '{"a": x\n'), ContentDelta("Hi")], id="broken arguments"
        ),
        pytest.param("now\n>>> f(1)", call("now", ">>> f(1)"), id="raw arguments to the end"),
    ],
)
def test_functionary_marker_without_a_recipient_is_text(text, events):
    assert parse_every_way(text, DIALECTS["functionary-3.2"], tools=TOOLS) == events


def test_names_are_not_recipients_without_tools():
    text = "Hi\n>>>now\n{}"
    assert parse_every_way("all\n" + text, DIALECTS["functionary-3.2"], tools=()) == [ContentDelta(text)]


def test_only_a_possible_recipient_is_held_back():
    made = parser(DIALECTS["functionary-3.2"], tools=TOOLS)
    assert made.feed("all\nHi\n>>>no") == [ContentDelta("Hi")]
    assert made.feed("t") == [ContentDelta("\n>>>not")]
    assert made.feed(" so \n>>> 1") == [ContentDelta(" so \n>>> 1")]


XML = "<response>\n <status>ok</status>\n</response>"


@pytest.mark.parametrize(
    ("text", "events"),
    [
        pytest.param("<response>\nHi \n</response>\n", [ContentDelta("Hi")], id="around the text"),
        pytest.param(" \n<response>Hi", [ContentDelta("Hi")], id="end left out"),
        pytest.param(
            "<think>hm</think>\n<response>Hi</response>",
            [ReasoningDelta("hm"), ContentDelta("Hi")],
            id="after reasoning",
        ),
        pytest.param(
            "<think>hm</think>\nIt:\n" + XML,
            [ReasoningDelta("hm"), ContentDelta("It:\n" + XML)],
            id="text after reasoning",
        ),
        pytest.param("Write it:\n\n" + XML, [ContentDelta("Write it:\n\n" + XML)], id="at the end of a text"),
        pytest.param(
            XML + "\nThat is it.", [ContentDelta(XML.partition("\n ")[2] + "\nThat is it.")], id="text follows"
        ),
        pytest.param(f"<response>So:\n{XML}\n</response>", [ContentDelta("So:\n" + XML + "\n")], id="within the text"),
        pytest.param("Hi </response>", [ContentDelta("Hi </response>")], id="never opened"),
        pytest.param("<response>Hi\n</respon", [ContentDelta("Hi\n</respon")], id="end that is cut"),
        pytest.param(" <respon", [ContentDelta(" <respon")], id="start that is cut"),
        pytest.param(" <responses>", [ContentDelta(" <responses>")], id="another tag"),
        pytest.param("<response> </response>", [], id="empty"),
        pytest.param(
            '<response>Hi</response>\n<|tool_call|>[{"name": "now"}]',
            [ContentDelta("Hi"), *call("now", "{}")],
            id="a call",
        ),
        pytest.param(
            "<response>Hi</response> <|tool_call|>no",
            [ContentDelta("Hi</response> <|tool_call|>no")],
            id="no call after it",
        ),
        pytest.param(
            "<response>Hi</response> <|tool_", [ContentDelta("Hi</response> <|tool_")], id="opener after it that is cut"
        ),
    ],
)
def test_granite_drops_its_markers_only_around_the_whole_text(text, events):
    assert parse_every_way(text, DIALECTS["granite-3"], tools=TOOLS) == events
    if not any(isinstance(event, ToolCallStart) for event in events):
        assert parse_every_way(text, DIALECTS["granite-3"], tools=()) == events


def test_granite_holds_back_an_end_marker_until_the_next_text():
    made = parser(DIALECTS["granite-3"], tools=())
    assert made.feed(" <response>\nHi \n</resp") == [ContentDelta("Hi")]
    assert made.feed("onse>\n") == []
    assert made.feed("x <response>") == [ContentDelta(" \n</response>\nx <response>")]


@given(text=st.lists(st.sampled_from([">>>", ">", "all", "now", "\n", " ", "x", "all\n"]), max_size=12).map("".join))
def test_functionary_drops_only_its_markers(text):
    first = re.sub(r"\A(>>>)?all\n", "", text)
    expected = [ContentDelta(rest)] if (rest := re.sub(r"\s*>>>all\n", "", first)) else []
    assert parse([text], DIALECTS["functionary-3.2"], tools=()) == expected
    assert parse(text, DIALECTS["functionary-3.2"], tools=()) == expected
    assert parse([text], DIALECTS["functionary-3.2"], tools=TOOLS) == parse(
        text, DIALECTS["functionary-3.2"], tools=TOOLS
    )


@given(
    pieces=st.lists(
        st.sampled_from(["<response>", "</response>", "<|tool_call|>", '[{"name": "now"}]', "<", "\n", " ", "x"]),
        max_size=12,
    )
)
def test_granite_keeps_all_of_a_text_without_a_start_marker(pieces):
    text = "".join(pieces)
    assert parse("x" + text, DIALECTS["granite-3"], tools=()) == [ContentDelta("x" + text)]
    for tools in (TOOLS, ()):
        whole = parse([text], DIALECTS["granite-3"], tools=tools)
        assert parse(text, DIALECTS["granite-3"], tools=tools) == whole
        assert parse(pieces, DIALECTS["granite-3"], tools=tools) == whole
