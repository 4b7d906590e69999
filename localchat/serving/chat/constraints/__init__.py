"""Constraints: the grammar of the output of a request.

    constraint.py      whether an output is constrained, and the cache of constraints
    grammar.py         puts the grammar together, from reasoning, text, calls and the response format
    enforced.py        the schemas of a request that the grammar enforces
    argument_rules.py  the rules of the arguments of calls that are not JSON
    lark.py            the notation of llguidance
    gbnf.py            grammars of requests in the notation of llama.cpp

llguidance masks tokens by the grammar while the output is generated (engine/llama/grammars.py).
"""
