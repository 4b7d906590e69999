"""Wrong fields in the requests of each interface, whose path the error names, and values at the limits of fields."""

import re
from dataclasses import fields
from typing import Any

import pytest

from localchat.serving.api import completions, embeddings, ollama
from localchat.serving.api.chat import MAX_N, parse_chat
from localchat.serving.api.messages import parse_messages
from localchat.serving.chat.constraints.constraint import constraint_for
from localchat.serving.chat.prompt.jinja import TemplateError
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.core import params, request
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.fields import MAX_CONSTRAINT_CHARS, Fields, parse_body
from localchat.serving.core.params import MAX_LISTED_TOKENS, MAX_STOPS, MAX_TOKEN_ID_DIGITS, MAX_TOP_LOGPROBS
from localchat.serving.core.server_options import Options
from tests.support.chat_requests import ALLOWED, HI, TOOL, parse, parse_responses, read

# The parser of each interface, and the fields of a request that it accepts.
INTERFACES: dict[str, tuple[Any, dict[str, Any]]] = {
    "chat": (parse_chat, {"messages": HI}),
    "messages": (parse_messages, {"messages": HI, "max_tokens": 9}),
    "responses": (parse_responses, {"input": "hi"}),
    "ollama": (ollama.parse_ollama, {"messages": HI}),
    "generate": (ollama.parse_generate, {"prompt": "a"}),
    "completions": (completions.parse_completion, {"prompt": "a"}),
    "infill": (completions.parse_infill, {"input_prefix": "x"}),
    "embeddings": (embeddings.parse_embeddings, {"input": "a"}),
    "ollama embeddings": (ollama.parse_old_embed, {"prompt": "a"}),
    "rerank": (embeddings.parse_rerank, {"query": "q", "documents": ["a"]}),
}

TOKENS = [1] * MAX_LISTED_TOKENS
BIASES = [[1, 100]] * MAX_LISTED_TOKENS
STOPS = ["a"] * MAX_STOPS
# For each field of chat completions the values at its limits, and wrong values.
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "stream": ([], ["yes", 1]),
    "stream_options": ([], [[]]),
    "n": ([1, MAX_N], [0, MAX_N + 1]),
    "max_tokens": ([1, 2**31], [0, -2, 1.5, True]),
    "min_tokens": ([0, 2**31], [-1]),
    "temperature": ([0, 100], [-0.1, "hot", False]),
    "top_p": ([0, 1], [1.1]),
    "top_k": ([-1, 2**31 - 1], [-2, 2**31]),
    "seed": ([-(2**63), 2**64 - 1], [2**64]),
    "repeat_penalty": ([0.01, 100], []),
    "presence_penalty": ([-2, 2], []),
    "penalty_last_n": ([-1, 2**31 - 1], []),
    "mirostat": ([0, 2], []),
    "adaptive_decay": ([0, 0.99], []),
    "stop": ([STOPS, "a" * 1000], [["a", 5], {"a": 1}, [*STOPS, "a"], ["a" * 1001]]),
    "stop_token_ids": ([[0], TOKENS], [["5"], [-1], 5, [True], [*TOKENS, 1]]),
    "logit_bias": ([{"9" * MAX_TOKEN_ID_DIGITS: 1}, [[0, -100]], BIASES], [5, {"9" * 5000: 1}, [*BIASES, [1, 1]]]),
    "dry_sequence_breakers": ([["a"], STOPS], [[], "x", ["a", ""], ["a\0b"]]),
    "samplers": ([["top_k", "tfs_z"]], [["top_k", "magic"], ["top_k", "top_k"], "k", 5]),
    "truncate_prompt_tokens": ([-1], [-2]),
    "prompt_logprobs": ([], [0]),
    "n_probs": ([0, MAX_TOP_LOGPROBS], []),
    "grammar": (["x" * MAX_CONSTRAINT_CHARS], []),
    "modalities": ([], [["audio"]]),
    "allowed_token_ids": ([], [[5]]),
    "guided_choice": ([], [[""]]),
    "chat_template": ([], ["x"]),
    "continue_final_message": ([], ["all", True]),
    "reasoning_format": ([], ["deepseek-legacy"]),
    "reasoning_effort": ([], [3]),
    "reasoning_budget_tokens": ([-1, 0], [-2]),
    "reasoning_control": ([], [True]),
    "include_reasoning": ([True], [False]),
    "use_beam_search": ([], [True]),
    "request_id": ([], [5]),
    "top_logprobs": ([], [2]),
    "tools": ([], [{}]),
    "tool_choice": ([], ["maybe", 5, {"type": "function"}, "required"]),
    "chat_template_kwargs": ([], [[]]),
    # In draft 4, exclusive bounds are booleans.
    "json_schema": ([{"exclusiveMaximum": True}, {"exclusiveMinimum": True}], ["x"]),
    "choice": ([], [["a", ""]]),
    "messages": ([], [None, [], "hi"]),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (good, _) in VALUES.items() for value in good])
def test_value_at_a_limit_is_accepted(name: str, value: Any):
    parse(**{name: value})


def using(*tools: Any, mode: str = "auto") -> dict[str, Any]:
    """A `tool_choice` with allowed tools."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def said(role: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, **fields}]}


ASSISTANT = {"role": "assistant", "content": "Once"}
OPEN = {"role": "assistant", "content": "", "reasoning_content": "So"}
CONTINUED, REASONING = "continue_final_message", {"continue_final_message": "reasoning_content"}
LOOK = {"type": "function", "name": "look"}
SCHEMA = {"type": "json_schema", "name": "a", "schema": 1}
# For each interface wrong fields, which replace those above, and the path that the error names.
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "chat": [
        *(({name: value}, name) for name, (_, wrong) in VALUES.items() for value in wrong),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"logit_bias": {"": 1}}, "logit_bias."),
        ({"logit_bias": {"5": True}}, "logit_bias.5"),
        ({"logit_bias": [[5, 1], [-1, 1]]}, "logit_bias[1]"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "regex": "b"}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"documents": ["x"]}, "documents[0]"),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"thinking_budget": 0.5}}, "chat_template_kwargs.thinking_budget"),
        ({"functions": [{}]}, "functions[0].name"),
        ({"tools": [TOOL, {"type": 5}]}, "tools[1].type"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"tools": [{"function": {"name": "f", "parameters": {"type": "x"}}}]}, "tools[0].function.parameters#/type"),
        ({"tools": [{"function": {"name": "f", "strict": "true"}}]}, "tools[0].function.strict"),
        ({"functions": [{"name": "f", "strict": 1}]}, "functions[0].strict"),
        ({"json_schema": {"properties": {"a": 1}}}, "json_schema#/properties/a"),
        ({"json_schema": {"items": {"required": True}}}, "json_schema#/items/required"),
        ({"json_schema": {"$defs": {"a/b": {"maxLength": -1}}}}, "json_schema#/$defs/a~1b/maxLength"),
        ({"tools": [TOOL], "tool_choice": using(mode="none")}, "tool_choice.allowed_tools.mode"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
        ({"tools": [TOOL], "tool_choice": using({"name": "other"})}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        (said("bot", content="x"), "messages[0].role"),
        (said("user"), "messages[0].content"),
        (said("user", content=["x"]), "messages[0].content[0]"),
        (said("user", content=[{"text": "x"}]), "messages[0].content[0].type"),
        (said("assistant", tool_calls=[{"function": {}}]), "messages[0].tool_calls[0].function.name"),
        (said("assistant", function_call={"name": "f", "arguments": 5}), "messages[0].function_call.arguments"),
        (said("tool", content="x", tool_call_id=5), "messages[0].tool_call_id"),
        # Assistant prefills.
        ({"messages": [*HI, ASSISTANT], CONTINUED: True, "add_generation_prompt": True}, CONTINUED),
        ({"messages": HI, CONTINUED: True}, CONTINUED),
        ({**said("assistant", tool_calls=[{"function": {"name": "f"}}]), CONTINUED: True}, CONTINUED),
        ({"messages": [*HI, {**OPEN, "content": "x"}], **REASONING}, CONTINUED),
        ({"messages": [*HI, OPEN], "response_prefix": "x", **REASONING}, CONTINUED),
        ({"response_prefix": "x", "add_generation_prompt": False}, "response_prefix"),
    ],
    "messages": [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        (said("user"), "messages[0].content"),
        (said("user", content=[{"type": "tool_result"}]), "messages[0].content[0].tool_use_id"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "x", "input_schema": {}, "strict": "true"}]}, "tools[0].strict"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
    ],
    "responses": [
        ({"input": None}, "input"),
        ({"include": ["reasoning.encrypted_content", 5]}, "include"),
        ({"input": [1]}, "input[0]"),
        ({"input": [{"type": "song"}]}, "input"),
        ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{**LOOK, "type": "function_call", "call_id": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
        ({"tools": [{"name": "a"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**LOOK, "strict": "true"}]}, "tools[0].strict"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"name": "a"}]}]}, "tools[0].tools[0].type"),
        ({"tools": [LOOK], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"text": {"format": SCHEMA}}, "text.format.schema"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": "long"}}, "reasoning.generate_summary"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
    "ollama": [
        ({"messages": [{"role": "king"}]}, "messages[0].role"),
        (said("control", content="citations"), "messages[0].content"),
        (said("user", content=5), "messages[0].content"),
        (said("user", content=[{"type": "song"}]), "messages[0].content[0]"),
        (
            said("assistant", tool_calls=[{"function": {"name": "f", "arguments": 5}}]),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (said("assistant", tool_calls=[{}]), "messages[0].tool_calls[0].function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "f", "strict": "true"}}]}, "tools[0].function.strict"),
        ({"format": "xml"}, "format"),
        ({"think": "a lot"}, "think"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"num_predict": "x"}}, "options.num_predict"),
        ({"options": {"logit_bias": {"5": 1000}}}, "options.logit_bias.5"),
        ({"options": {"logit_bias": [[5]]}}, "options.logit_bias[0]"),
        ({"options": {"min_tokens": 9, "num_predict": 1}}, "options.min_tokens"),
    ],
    "generate": [({"template": "{{ .Prompt }}"}, "template"), ({"context": [1, 2]}, "context")],
    "completions": [
        ({"prompt": None}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["AAAA"]}}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": [1, -1]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 99}, "logprobs"),
        ({"logprobs": 0, "echo": True}, "logprobs"),
        ({"n_probs": 2, "echo": True}, "n_probs"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"prompt": [1], "suffix": "b"}, "suffix"),
        ({"add_special_tokens": 1}, "add_special_tokens"),
    ],
    "infill": [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra[0].text"),
        ({"input_extra": ["a"]}, "input_extra[0]"),
    ],
    "embeddings": [
        *(({"input": wrong}, "input") for wrong in (None, "", [], ["a"] * 2049)),
        ({"input": [{"a": 1}]}, "input[0]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"embd_normalize": -1}, "embd_normalize"),
    ],
    "ollama embeddings": [({"prompt": ""}, "prompt")],
    "rerank": [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        *(({"documents": wrong}, "documents") for wrong in (None, [], "a", ["a", 1])),
        ({"top_n": 0}, "top_n"),
    ],
}


@pytest.mark.parametrize(
    ("interface", "fields", "param"), [(interface, *row) for interface, rows in WRONG.items() for row in rows]
)
def test_wrong_field_is_named(interface: str, fields: dict[str, Any], param: str):
    parse, given = INTERFACES[interface]
    with pytest.raises(BadRequest) as caught:
        read(parse, {**given, **fields})
    assert (caught.value.param, f"'{param}'" in caught.value.message) == (param, True)


WITH_RESULTS = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "f", "input": {}} for id in "ab"]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": id} for id in "ab"]},
    *HI,
]
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
ITEMS = [*HI, {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}, CALL]
RESULT = {"type": "function_call_output", "call_id": "c", "output": "R"}
# For each interface with chats: a body, the paths of its messages, the field that has the conversation, and the path of
# a parameter.
PLACES: dict[str, tuple[str, dict[str, Any], list[str], str, str]] = {
    "chat": ("chat", {"messages": [*HI, *HI]}, ["messages[0]", "messages[1]"], "messages", "lora"),
    "messages": ("messages", {"messages": HI}, ["messages[0]"], "messages", "lora"),
    "system and results": (
        "messages", {"system": "S", "messages": WITH_RESULTS},
        ["system", "messages[0]", "messages[1]", "messages[1]", "messages[2]"], "messages", "lora",
    ),
    "a text": ("responses", {"input": "hi"}, ["input"], "input", "lora"),
    "items": (
        "responses", {"instructions": "I", "input": [*ITEMS, RESULT]},
        ["instructions", "input[0]", "input[2]", "input[3]"], "input", "lora",
    ),
    "ollama": ("ollama", {"messages": [*HI, *HI]}, ["messages[0]", "messages[1]"], "messages", "options.lora"),
    "generate": ("generate", {"system": "S", "prompt": "a"}, ["system", "prompt"], "prompt", "options.lora"),
    "image": ("generate", {"prompt": "", "images": ["aaaa"]}, ["images"], "images", "options.lora"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES.values(), ids=PLACES)
def test_errors_of_the_model_name_the_fields_of_the_body(case: Any):
    """The parser cannot know these errors, such as a template that leaves out a message."""
    interface, sent, paths, messages_field, lora = case
    parse, given = INTERFACES[interface]
    chat = read(parse, {**given, **sent})
    assert (chat.messages_field, chat.params.at("lora")) == (messages_field, lora)
    assert list(chat.message_paths) == ([] if interface == "chat" else paths)
    messages = [{**message, "content": f"text {i};"} for i, message in enumerate(chat.messages)]
    for index, path in enumerate(paths):
        source = f"{{{{ (messages | map(attribute='content') | join).split('text {index};')[0] }}}}"
        with pytest.raises(TemplateError, match="leaves out") as caught:
            ChatTemplate(source).render(messages, paths=chat.message_paths)
        assert caught.value.param == path


def test_parameter_that_excludes_a_constraint_is_named_as_in_the_body():
    for name, value in (("min_tokens", 5), ("ignore_eos", True)):
        chat = read(ollama.parse_ollama, {"messages": HI, "format": "json", "options": {name: value}})
        with pytest.raises(BadRequest, match="cannot be combined") as caught:
            constraint_for(chat, ChatTemplate(None), "closed")
        assert caught.value.param == f"options.{name}"


@pytest.mark.parametrize("name", ["stop", "dry_sequence_breakers"])
def test_text_with_a_nul_is_not_called_empty(name: str):
    with pytest.raises(BadRequest, match="NUL") as caught:
        parse(**{name: ["a", "b\0"]})
    assert "empty" not in caught.value.message


REQUESTS = (request.ChatRequest, request.CompletionRequest, request.EmbeddingsRequest, request.RerankRequest)


def test_fields_of_a_request_have_the_names_of_the_body(monkeypatch: pytest.MonkeyPatch):
    """The docstring of core/request.py lists all others."""
    names, get = set(), Fields.get

    def noted(body: Fields, name: str) -> Any:
        names.add(name)
        return get(body, name)

    monkeypatch.setattr(Fields, "get", noted)
    choice = {"messages": HI, "tools": [TOOL], "tool_choice": ALLOWED}
    tei = {"query": "q", "texts": ["a"]}
    for parser, body in (*INTERFACES.values(), (parse_chat, choice), (embeddings.parse_rerank, tei)):
        read(parser, body)
    declared = {field.name for declaration in (*REQUESTS, params.GenerationParams) for field in fields(declaration)}
    listed = re.findall(r"^ {4}([a-z_, ]+?)  ", request.__doc__ or "", re.MULTILINE)
    assert declared - names - {"sampling"} == {name for row in listed for name in row.split(", ")}
    assert {field.name for field in fields(params.SamplingParams)} <= names


# Fields that the error says to be needed, with the values that it names: the parser, the fields, the path, the values.
NEEDED: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "a type of a tool": (
        parse_responses, {"input": "a", "tools": [{"name": "f"}]}, "tools[0].type", '"function" or "custom"'),
    "a type of a part": (parse_chat, {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
                         "messages[0].content[0].type", '"text"'),
    "an image": (
        ollama.parse_ollama, {"messages": [{**HI[0], "images": [5]}]}, "messages[0].images",
        "a list of images in base64"),
    "a schema": (parse_chat, {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {}}},
                 "response_format.json_schema.schema", "a JSON schema"),
}  # fmt: skip


@pytest.mark.parametrize("case", NEEDED.values(), ids=NEEDED)
def test_error_names_the_values_that_a_field_may_have(case: Any):
    parser, body, path, expected = case
    with pytest.raises(BadRequest, match=re.escape(f"'{path}' must be {expected}, got ")) as caught:
        read(parser, body)
    assert caught.value.param == path


def test_body_that_is_nested_beyond_any_stack_is_refused_for_its_nesting():
    with pytest.raises(BadRequest, match=r"nested too deeply|at most 200 levels"):
        parse_body(b"[" * 100_000 + b"]" * 100_000)


def test_default_limit_of_a_body_is_the_documented_one():
    """docs/server.md: 16 MB for the whole body."""
    assert Options(port=0).max_body_bytes == 2**24
