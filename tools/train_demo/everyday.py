"""Plain requests to tools that programs have, written by hand: how the model does outside of its generators.

None of these tools or requests is trained. Each request is asked with its tool alone and beside one and two others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}


def _tool(name: str, description: str, /, **parameters: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = {
    tool["function"]["name"]: tool
    for tool in (
        _tool(
            "create_ticket",
            "Create a support ticket.",
            title=_STRING,
            priority={"type": "string", "enum": ["low", "normal", "high"]},
        ),
        _tool("book_flight", "Book a flight.", origin=_STRING, destination=_STRING, date=_STRING),
        _tool("find_restaurant", "Find a restaurant in a city.", cuisine=_STRING, city=_STRING),
        _tool("cancel_order", "Cancel an order.", order_id=_STRING),
        _tool("add_contact", "Add a person to the contacts.", name=_STRING, email=_STRING),
        _tool("start_timer", "Start a timer.", minutes=_INTEGER),
        _tool("play_song", "Play a song.", title=_STRING, artist=_STRING),
        _tool("track_package", "Track a package by its number.", tracking_number=_STRING),
        _tool("reserve_table", "Reserve a table.", restaurant=_STRING, people=_INTEGER, time=_STRING),
        _tool("delete_file", "Delete a file.", path=_STRING),
    )
}


class Asked(NamedTuple):
    """A request, and the call that it asks for."""

    text: str
    name: str
    arguments: dict[str, Any]


ASKED = (
    Asked(
        'Create a ticket with the title "Printer is broken" and priority high.',
        "create_ticket",
        {"title": "Printer is broken", "priority": "high"},
    ),
    Asked(
        'Please open a ticket, title "No sound in room 4", priority low.',
        "create_ticket",
        {"title": "No sound in room 4", "priority": "low"},
    ),
    Asked(
        "Book a flight from Oslo to Madrid on 2027-03-14.",
        "book_flight",
        {"origin": "Oslo", "destination": "Madrid", "date": "2027-03-14"},
    ),
    Asked(
        "I need a flight from Boston to New York on May 3.",
        "book_flight",
        {"origin": "Boston", "destination": "New York", "date": "May 3"},
    ),
    Asked("Find an Italian restaurant in Chicago.", "find_restaurant", {"cuisine": "Italian", "city": "Chicago"}),
    Asked(
        "Can you find me a restaurant in Kyoto with cuisine Thai?",
        "find_restaurant",
        {"cuisine": "Thai", "city": "Kyoto"},
    ),
    Asked("Cancel the order A-10472, please.", "cancel_order", {"order_id": "A-10472"}),
    Asked("I want to cancel my order 88213.", "cancel_order", {"order_id": "88213"}),
    Asked(
        "Add Maria Lopez to my contacts, her email is maria.lopez@mail.com.",
        "add_contact",
        {"name": "Maria Lopez", "email": "maria.lopez@mail.com"},
    ),
    Asked(
        "Add a contact with name John Smith and email js@example.org.",
        "add_contact",
        {"name": "John Smith", "email": "js@example.org"},
    ),
    Asked("Start a timer for 25 minutes.", "start_timer", {"minutes": 25}),
    Asked("Set a timer: 8 minutes.", "start_timer", {"minutes": 8}),
    Asked("Play the song Yesterday by The Beatles.", "play_song", {"title": "Yesterday", "artist": "The Beatles"}),
    Asked(
        'Could you play "Blue Train" by John Coltrane?', "play_song", {"title": "Blue Train", "artist": "John Coltrane"}
    ),
    Asked("Track the package 1Z999AA1.", "track_package", {"tracking_number": "1Z999AA1"}),
    Asked("Where is my package with number 40055512?", "track_package", {"tracking_number": "40055512"}),
    Asked(
        "Reserve a table at Luigi for 4 people at 19:30.",
        "reserve_table",
        {"restaurant": "Luigi", "people": 4, "time": "19:30"},
    ),
    Asked(
        "Please reserve a table: restaurant Green Garden, 2 people, time 8 pm.",
        "reserve_table",
        {"restaurant": "Green Garden", "people": 2, "time": "8 pm"},
    ),
    Asked("Delete the file notes/old.txt.", "delete_file", {"path": "notes/old.txt"}),
    Asked("Please delete /tmp/report.pdf.", "delete_file", {"path": "/tmp/report.pdf"}),
)


class EverydayRequest(NamedTuple):
    """A request among tools."""

    text: str
    tools: list[dict[str, Any]]
    call: tuple[str, dict[str, Any]]


def everyday_requests(n_tools: int) -> Iterator[EverydayRequest]:
    """Each request beside `n_tools` - 1 other tools, in any order; the same every time."""
    rng = random.Random(n_tools)
    for asked in ASKED:
        names = [asked.name, *rng.sample([name for name in TOOLS if name != asked.name], n_tools - 1)]
        rng.shuffle(names)
        yield EverydayRequest(asked.text, [TOOLS[name] for name in names], (asked.name, asked.arguments))
