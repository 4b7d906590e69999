"""Structured output: the modes for different servers, validation, and repeated requests."""

import datetime
import pathlib
import types
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple, TypedDict, Union

import pytest

from localchat import BadRequestError, DoesNotFit, IncompleteReply, StatusError, ToolCall
from localchat.events import Choice, Reply
from localchat.schema.response_format import ExpectedValue
from localchat.schema.targets import json_schema
from localchat.schema.validator import validation_errors
from localchat.schema.variants import constraints_of, object_schema, without_constraints
from tests.client.test_schema import Address
from tests.support.scripted import Script, chunk, playing, refusal

ADA = '{"name": "Ada", "age": 36}'


@dataclass
class Person:
    name: str
    age: int


def response_of(text: str, reason: str = "stop") -> list[Any]:
    return [chunk(reason, content=text)]


def formats(script: Script) -> list[Any]:
    """The type of the response format in each request."""
    return [request.get("response_format", {}).get("type") for request in script.requests]


def test_every_method_parses_the_value():
    completion = [{"choices": [{"index": 0, "text": ADA, "finish_reason": "stop"}]}]
    with playing(*[response_of(ADA)] * 3, completion) as (client, _script):
        assert client.chat("Who?", response_format=Person).parsed == Person("Ada", 36)
        with client.stream("Who?", response_format=Person) as stream:
            for event in stream:
                if event.type == "message_stop":  # The last event has come, and the stream has not ended.
                    assert stream.reply.parsed == Person("Ada", 36)
        assert client.run("Who?", response_format=Person).parsed == Person("Ada", 36)
        assert client.complete("Who?", response_format=Person).parsed == Person("Ada", 36)


def test_stream_of_an_invalid_value_raises_instead_of_the_last_event():
    with playing(response_of('{"name": "Ada"}')) as (client, _script):
        types = []
        with client.stream("Who?", response_format=Person) as stream:
            with pytest.raises(DoesNotFit, match="age"):
                types.extend(event.type for event in stream)
            assert "message_stop" not in types
            assert stream.reply.parsed is None
            assert stream.reply.text == '{"name": "Ada"}'


def test_request_is_repeated_after_an_invalid_value(client_class):
    """The last retry raises the error."""
    invalid = [response_of('{"name": "Ada"}'), response_of("no")]
    options = {"system": "Be brief.", "response_format": Person}
    with playing(*invalid, *invalid, response_of(ADA), client_class=client_class) as (client, script):
        with pytest.raises(DoesNotFit, match="not JSON") as caught:
            client.chat("Who?", retries_on_mismatch=1, **options)
        assert (caught.value.partial.text, len(script.requests)) == ("no", 2)
        assert client.chat("Who?", retries_on_mismatch=2, **options).parsed == Person("Ada", 36)
    messages = script.requests[-1]["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert messages[2]["content"] == '{"name": "Ada"}'
    assert "age" in messages[3]["content"]
    assert "not JSON" in messages[5]["content"]


@pytest.mark.parametrize("method", ["chat", "run"])
def test_value_that_a_filter_cut_is_an_incomplete_reply_and_not_a_mismatch(method, client_class):
    with playing(response_of('{"name": "A', "content_filter"), client_class=client_class) as (client, script):
        retries = {"retries_on_mismatch": 2} if method == "chat" else {}
        with pytest.raises(IncompleteReply) as caught:
            getattr(client, method)("Who?", response_format=Person, **retries)
        assert (caught.value.partial.text, len(script.requests)) == ('{"name": "A', 1)
        for options in ({"allow_truncated": True}, {"max_tokens": 5}):
            with pytest.raises(IncompleteReply, match="has no value for response_format"):
                getattr(client, method)("Who?", response_format=Person, **options)


@pytest.mark.parametrize("options", [{}, {"allow_truncated": True}, {"max_tokens": 1}])
@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_number_that_was_cut_is_no_value(reason, options, client_class):
    """It may be the beginning of a longer number."""
    with playing(response_of("12", reason), client_class=client_class) as (client, _):
        with pytest.raises(IncompleteReply, match="has no value for response_format") as caught:
            client.chat("How many?", response_format=int, **options)
        assert caught.value.partial.text == "12"


def test_refusal_of_the_model_is_not_repeated(client_class):
    """A further request would be refused too."""
    with playing([chunk("stop", refusal="I cannot")], client_class=client_class) as (client, script):
        with pytest.raises(DoesNotFit, match=r"the model declined: .*I cannot"):
            client.chat("Who?", response_format=Person, retries_on_mismatch=2)
        assert len(script.requests) == 1


NO_SCHEMA = refusal("response_format.type json_schema is not supported")
NO_JSON = refusal("'response_format.type' must be 'text'")
OBJECTS_ONLY = refusal("Invalid schema for response_format 'answer': schema must have type 'object'")


def test_server_without_schemas_or_without_response_format_gets_the_schema_in_the_prompt(client_class):
    fenced = response_of(f"```json\n{ADA}\n```")
    responses = NO_SCHEMA, response_of(ADA), NO_JSON, fenced
    with playing(*responses, client_class=client_class) as (client, script):
        replies = [client.chat("Who?", system="Be brief.", response_format=Person) for _ in range(2)]
    assert [reply.parsed for reply in replies] == [Person("Ada", 36)] * 2
    warning = "the server refused the JSON Schema: JSON was requested with response_format json_object"
    assert replies[0].warnings == (warning,)
    assert formats(script) == ["json_schema", "json_object", "json_object", None]
    for request in (script.requests[1], script.requests[3]):
        system, user = request["messages"]
        assert system["content"].startswith("Be brief.\n\nAnswer with JSON alone")
        assert '"age"' in system["content"]
        assert user == {"role": "user", "content": "Who?"}


def test_completion_of_a_server_without_response_format_is_validated():
    texts = [[{"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}] for text in (ADA, "no")]
    with playing(NO_SCHEMA, NO_JSON, *texts) as (client, script):
        assert client.complete("Ada is", response_format=Person).parsed == Person("Ada", 36)
        assert formats(script) == ["json_schema", "json_object", None]
        assert [request["prompt"] for request in script.requests] == ["Ada is"] * 3
        with pytest.raises(DoesNotFit, match="not JSON"):
            client.complete("Ada is", response_format=Person)


@pytest.mark.parametrize("text", ["This model's maximum context length is 4096", "the time is over", "default model"])
def test_words_of_english_that_are_keywords_too_are_no_error_of_the_schema(text: str):
    when = {"type": "string", "format": "time", "default": ""}
    assert not ExpectedValue({"items": {"maximum": 3}, "contains": when}).weaken(StatusError(body=text))


def test_other_errors_and_the_refusal_of_the_last_mode_are_raised():
    ready = {"type": "json_object"}
    with playing(refusal("temperature is too high"), NO_SCHEMA, NO_SCHEMA, NO_JSON, NO_JSON) as (client, script):
        for given, words in ((Person, "temperature"), (ready, "json_schema"), (Person, "must be 'text'")):
            with pytest.raises(BadRequestError, match=words):
                client.chat("Who?", response_format=given)
    assert len(script.requests) == 5


@dataclass
class Visit:
    when: datetime.date
    places: Set[str]
    file: pathlib.Path = pathlib.Path()


@dataclass
class Dated:
    when: datetime.date


VISIT, DATED = '{"when": "2024-05-06", "places": ["a"]}', '{"when": "2024-05-06"}'
# The refusal of each request until one is accepted, and what distinguishes the accepted schema.
REFUSED_SCHEMAS: dict[str, tuple[Any, str, list[str], dict[str, bool]]] = {
    "strict": (Dated, DATED, ["'strict' is not supported"], {"strict": False, "format": True}),
    "strict and a format": (
        Dated,
        DATED,
        ["Invalid schema for response_format: In context=('properties', 'when'), 'date' is not a valid format."] * 2,
        {"strict": False, "format": False},
    ),
    "keyword": (
        Visit,
        VISIT,
        ["Invalid schema: In context=('properties', 'places'), 'uniqueItems' is not permitted."],
        {"strict": False, "format": False, "uniqueItems": False},
    ),
    "format": (Visit, VISIT, ["unknown format: path"], {"format": False, "uniqueItems": False}),
}


@pytest.mark.parametrize(("target", "text", "refusals", "has"), REFUSED_SCHEMAS.values(), ids=REFUSED_SCHEMAS)
def test_refused_schema_is_sent_without_what_was_refused_and_the_client_learns_it(
    target: Any, text: str, refusals: list[str], has: dict[str, bool], client_class: Any
):
    responses = [*map(refusal, refusals), *[response_of(text)] * 4]
    with playing(*responses, client_class=client_class) as (client, script):
        for _ in range(2):
            assert client.chat("When?", response_format=target).parsed.when == datetime.date(2024, 5, 6)
        replies = client.map(["When?"] * 2, response_format=target, concurrency=1)
    assert [reply.parsed.when for reply in replies] == [datetime.date(2024, 5, 6)] * 2
    assert len(script.requests) == len(responses)
    assert formats(script) == ["json_schema"] * len(responses)
    for request in script.requests[len(refusals) :]:
        sent = str(request["response_format"])
        assert {name: name in sent for name in has} == has
        assert "'type': 'object'" in sent
    assert replies[0].warnings == ()


WRONG_SCHEMAS: list[tuple[Any, str, str]] = [
    ({"type": "object", "required": True}, "$.required", "expected a list of names, got true"),
    ({"properties": {"a": {"required": True}}}, "$.properties.a.required", "expected a list of names, got true"),
    ({"properties": []}, "$.properties", "expected an object with a schema for each name, got []"),
    ({"type": 5}, "$.type", "expected one of string, integer, .*, got 5"),
    ({"type": ["string", "text"]}, "$.type", 'got "text"'),
    ({"type": "object", "properties": {"a": "string"}}, "$.properties.a", "a schema is an object or a boolean"),
    ({"items": 3}, "$.items", "a schema is an object or a boolean, not 3"),
    ({"anyOf": {"type": "string"}}, "$.anyOf", "expected a list of schemas"),
    ({"enum": "a"}, "$.enum", "expected a list"),
    ({"minimum": "3"}, "$.minimum", "expected a number"),
    ({"minLength": -1}, "$.minLength", "expected a whole number of at least 0, got -1"),
    ({"maxItems": True}, "$.maxItems", "expected a whole number"),
    ({"multipleOf": 0}, "$.multipleOf", "expected a number above 0, got 0"),
    ({"pattern": 3}, "$.pattern", "expected a text"),
    ({"uniqueItems": 1}, "$.uniqueItems", "expected a boolean"),
    ({"$ref": "#/$defs/a"}, '$["$ref"]', "the schema refers to '#/$defs/a', which it does not have"),
    ({"title": "a", "$ref": "#/title"}, '$["$ref"]', "is no schema, but"),
    ({"required": ["a"], "$ref": "#/required"}, '$["$ref"]', "is no schema, but"),
    ({"$ref": "#"}, '$["$ref"]', "leads back to itself"),
    (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        "$",
        "leads back to itself",
    ),
    ({"$ref": 3}, '$["$ref"]', "expected a reference to a schema"),
    ({"dependentRequired": {"a": "b"}}, "$.dependentRequired.a", "a schema is an object or a boolean"),
    ({"default": float("nan")}, "$.default", "JSON has no number nan"),
    ({"const": {1, 2}}, "$.const", "JSON cannot hold"),
    ({"properties": {3: {}}}, "$.properties", "a name is a text, not 3"),
]


@pytest.mark.parametrize(("schema", "path", "words"), WRONG_SCHEMAS, ids=lambda value: str(value)[:40])
def test_error_of_a_wrong_schema_names_its_place(schema: Any, path: str, words: str):
    with pytest.raises(ValueError, match=words.replace("[", r"\[").replace("$", r"\$")) as caught:
        ExpectedValue(schema)
    assert f"the schema is wrong at {path}" in str(caught.value)


@pytest.mark.parametrize("method", ["chat", "stream", "run", "complete", "map"])
def test_wrong_schema_is_an_error_before_the_request(method: str, client_class: Any):
    with playing(client_class=client_class) as (client, script):
        use = getattr(client, method)
        with pytest.raises(
            ValueError, match=r"the schema is wrong at \$\.required: expected a list of names, got true"
        ):
            use(["a"] if method == "map" else "a", response_format={"type": "object", "required": True})
        assert script.requests == []


def test_schema_that_contains_itself_is_an_error_before_the_request():
    loop: dict[str, Any] = {}
    loop["items"] = loop
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"items": deep}
    for schema in (loop, deep):
        with pytest.raises(ValueError, match="nested too deeply, or contains itself"):
            ExpectedValue(schema)


def test_schema_in_the_prompt_shows_letters_and_no_escapes():
    sent = ExpectedValue({"type": "object", "properties": {"größe": {}}})
    sent.weaken(StatusError(body="schema"))
    assert "größe" in sent.apply({"messages": []})["messages"][0]["content"]


ROOTS: dict[str, tuple[Any, str, Any]] = {
    "list": (List[Person], f"[{ADA}]", [Person("Ada", 36)]),
    "union": (Union[int, Person], ADA, Person("Ada", 36)),
    "number": (int, "3", 3),
}


@pytest.mark.parametrize(("target", "text", "value"), ROOTS.values(), ids=ROOTS)
def test_value_that_is_not_an_object_is_wrapped_for_servers_that_require_objects(target, text, value):
    wrapped = response_of(f'{{"value": {text}}}')
    with playing(OBJECTS_ONLY, wrapped, NO_SCHEMA, wrapped, response_of(text)) as (client, script):
        assert client.chat("Who?", response_format=target).parsed == value
        schema = script.requests[1]["response_format"]["json_schema"]["schema"]
        assert (schema["type"], schema["required"]) == ("object", ["value"])
        assert "$defs" not in schema["properties"]["value"]
        assert client.chat("Who?", response_format=target).parsed == value
        assert formats(script)[2:] == ["json_schema", "json_object"]
        assert client.chat("Who?", response_format=target).parsed == value


def test_references_of_a_wrapped_schema_lead_to_the_same_parts():
    leaf, part = {"type": "integer"}, {"type": "string"}
    schema = {
        "type": "array",
        "items": {"anyOf": [leaf, {"$ref": "#"}, {"$ref": "#/$defs/part"}]},
        "$defs": {"part": part},
    }
    wrapped = object_schema(schema)
    for value in ([1, [2, ["a"]]], ["a", []]):
        assert not any(validation_errors({"value": value}, wrapped))
    for value in ([1.5], [{"value": [1]}], [[None]]):
        assert any(validation_errors({"value": value}, wrapped))


def test_names_of_dependencies_are_no_keywords():
    schema = {"dependencies": {"format": ["x"], "pattern": {"minLength": 1, "required": ["x"]}}}
    assert without_constraints(schema) == {"dependencies": {"format": ["x"], "pattern": {"required": ["x"]}}}
    assert constraints_of(schema) == {"minLength"}


@dataclass
class Amount:
    value: int


def test_object_with_one_property_may_come_without_its_wrapper():
    for text in ('{"value": 3}', '{"value": {"value": 3}}'):
        expected = ExpectedValue(Optional[Amount])
        while expected.weaken(StatusError(body="response_format")):
            pass
        assert expected.read(reply(text)) == Amount(3)


def test_response_format_may_be_a_target_or_ready_made():
    bonn, ready = response_of('{"name": "Bonn"}'), [{"type": "json_object"}, {"type": "x"}]
    with playing(bonn, bonn, bonn, response_of("12")) as (client, script):
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ("name",)}
        nested = types.MappingProxyType({**schema, "properties": types.MappingProxyType(schema["properties"])})
        assert client.chat("x", response_format=nested).parsed == {"name": "Bonn"}
        assert [client.chat("x", response_format=given).parsed for given in ready] == [None, None]
        assert client.chat("x", response_format={"type": ["integer", "null"]}).parsed == 12
    assert script.requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["name"]
    assert [request["response_format"] for request in script.requests[1:3]] == ready


class Named(TypedDict):
    name: str


@dataclass
class Counts:
    counts: Dict[str, int]


def reply(text: str, **fields: Any) -> Reply:
    return Reply((Choice(text=text, **fields),))


def test_value_is_parsed_also_in_a_fenced_block_and_a_reply_that_calls_tools_has_none():
    # Some models do not close the fence, or close it on the same line.
    fences = ["{}", " {}\n", "```json\r\n{}\r\n```", "```JSON\n{}\n```\n", "```json\n{}", "```\n{}\n", "```json\n{}```"]
    fences += ["```json {}```", "```{}```"]
    for text in (fence.format('{"street": "High"}') for fence in fences):
        assert ExpectedValue(Address).read(reply(text)) == Address("High")
    assert ExpectedValue(Address).read(reply('```JSON\n{"street": "```x```"}\n```')) == Address("```x```")
    assert ExpectedValue(Address).read(reply('Here:\n\n```json\n{"street": "High"}\n```\nDone.')) == Address("High")
    assert ExpectedValue(Address).read(reply("", tool_calls=(ToolCall("1", "f", {}, "{}"),))) is None


@pytest.mark.parametrize(
    ("target", "text", "fields", "path", "message"),
    [
        (Address, "Sure! {}", {}, "$", "not JSON"),
        (Address, "One:\n```\n{}\n```\nTwo:\n```\n{}\n```", {}, "$", "not JSON"),
        (Address, '{"street": NaN}', {}, "$", "NaN is not a number"),
        (Address, '{"street": -1e999}', {}, "$", "larger than any float"),
        (Address, "", {"refusal": "I cannot"}, "$", "the model declined"),
        (Address, '{"street": 1}', {}, "$.street", r"^the answer does not fit: \$\.street: expected string, got 1"),
        ({"pattern": r"^\p{L}+$"}, '"abc"', {}, "$", "Python cannot read the pattern"),
        (Address, "[" * 100_000, {}, "$", "not JSON"),
    ],
)
def test_error_has_path_text_and_reply(target: Any, text: str, fields: Any, path: str, message: str):
    invalid = reply(text, **fields)
    with pytest.raises(DoesNotFit, match=message) as caught:
        ExpectedValue(target).read(invalid)
    assert (caught.value.path, caught.value.text, caught.value.partial) == (path, text, invalid)


@pytest.mark.parametrize(
    ("target", "name", "strict"),
    [
        (Address, "Address", True),
        (Named, "Named", True),
        (List[int], None, True),
        ({"title": "A b"}, "A_b", None),
        ({"title": "y" * 65}, "y" * 64, None),
        (Counts, "Counts", None),  # OpenAI refuses a strict schema with other objects, and servers enforce it anyway.
        (List[Any], None, None),
        (Tuple[int, str], None, None),
    ],
)
def test_response_format_has_name_schema_and_strict(target: Any, name: Any, strict: Any):
    described = ExpectedValue(target).apply({})["response_format"]["json_schema"]
    assert described.get("strict") == strict
    assert name in (None, described["name"])
    assert described["schema"] == json_schema(target, strict=bool(strict))


def test_type_and_schema_of_one_text_learn_their_own_modes():
    """A type can be strict, and a schema is sent as it is."""
    learned: Dict[str, str] = {}
    schema = json_schema(Address)
    for mode in ("strict", "schema", "json_object", "prompt"):
        learned.update(dict.fromkeys([*learned, ExpectedValue(schema, learned)._key], mode))
        for target in (Address, schema):
            assert ExpectedValue(target, learned).apply({"messages": []})
