"""Prompts: renders messages and tools with the chat template of a model; user text never becomes control tokens.

    template.py           `ChatTemplate.render`, which does the following in this order
    conversation.py       yields the conversation in ever simpler forms, until the template prints one of them whole
    template_messages.py  converts the messages of a form to what the template supports
    control_tokens.py     puts markers around control tokens in texts of the request
    jinja.py              renders the template in Jinja's sandbox
    missing_text.py       finds a text of the conversation that the prompt does not have
    capabilities.py       found out, when the template was compiled, what it supports
"""
