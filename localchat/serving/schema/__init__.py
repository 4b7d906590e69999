"""JSON Schema: all that the server knows of it.

    walk.py           the schemas inside a schema, their places, and where references lead
    check.py          whether a schema is well-formed: an interface refuses others
    types.py          what a schema says of a value where that is plain: its types, its listed values
    patterns.py       the syntax of regular expressions
    simplify.py       a schema in fewer keywords
    exclusion.py      whether two branches of `oneOf` have no value in common
    prepare.py        a schema in the keywords that llguidance knows
    source_places.py  the places in a schema of the parts of its prepared one
    compiler.py       llguidance: the grammar of a prepared schema, and the reason if it refuses one
    finite.py         whether a schema has a finite value
    combined.py       whether too many patterns apply to one text: llguidance's memory doubles with each
    refuse.py         the parts of a prepared schema that no grammar enforces, each with its place

A schema goes from `check.checked`, when a request is parsed, to `prepare.prepared` and to `refuse.refusal`. What is not
refused becomes a rule of a grammar (`compiler.json_rule`), which llguidance enforces while the output is generated.

What `check.py`, `prepare.py` and `refuse.py` do for one keyword is in a table in each, by the keyword.
"""
