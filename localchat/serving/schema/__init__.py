"""JSON Schema: all that the server knows of it.

    walk.py        the schemas inside a schema, their places, and where references lead
    check.py       whether a schema is well-formed: an interface refuses others
    types.py       what a schema says of a value where that is plain: its types, its listed values
    patterns.py    the syntax of regular expressions
    exclusion.py   whether two schemas have no value in common
    prepare.py     a schema in the keywords that llguidance knows
    enforce.py     the parts that no grammar enforces, each with its place
    compiler.py    what llguidance says of a grammar

llguidance enforces a schema. What it does not enforce is written in other keywords (`prepare.py`) or refused
(`enforce.py`). Each keyword has one function in the table of such a module, which finds it by the keyword.
"""
