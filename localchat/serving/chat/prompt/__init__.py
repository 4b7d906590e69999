"""Prompts: renders messages and tools with the chat template of a model; user text never becomes control tokens.

    template.py           `ChatTemplate.render`, which uses the others in this order
    conversation.py       yields the conversation in ever simpler forms, until the template prints one of them whole
    template_messages.py  converts the messages of a form to what the template supports
    control_tokens.py     puts markers around control tokens in texts of the request
    jinja.py              renders the template in Jinja's sandbox
    missing_text.py       finds a text of the conversation that the prompt does not have
    capabilities.py       what the template supports
    messages.py           the types of messages, and how several become one

The capabilities are found once, when a template is compiled, by rendering small test conversations.
"""
