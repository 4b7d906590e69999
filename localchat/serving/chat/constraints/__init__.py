"""Constraints: the grammar of the output of a request.

    constraint.py      puts the grammar together, from reasoning, text, calls and the response format
    argument_rules.py  the rules of the arguments of calls that are not JSON
    lark.py            the notation of llguidance, and grammars in GBNF

llguidance masks tokens by the grammar while the output is generated (engine/llama/masks.py).
"""
