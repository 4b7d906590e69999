"""Renders chat templates for tests, and separates the user text from the markup."""

from localchat.serving.chat.prompt.marked import user_ranges
from localchat.serving.chat.prompt.template import ChatTemplate

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>", "</s>")
USER = {"role": "user", "content": "hi"}
CALLS = """{%- for m in messages %}
[{{ m.role }}]{{ m.content }}
{%- for call in m.tool_calls or [] %}<{{ call.function.name }}:{{ ARGUMENTS }}:{{ call.id }}>{% endfor %}
{%- endfor %}"""


def render(source, messages=(USER,), **options):
    return ChatTemplate(source).render(messages, **options)


def user_text(prompt):
    return [str(prompt)[start:stop] for start, stop in user_ranges(prompt)]


def call_message(arguments, call_id="call_1"):
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}
