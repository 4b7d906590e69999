"""JSON Schema: all that the server knows of it.

What a schema says:
    walk.py                the schemas inside a schema, their places, and where references lead
    types.py               what a schema says of a value where that is plain: its types, its listed values
    patterns.py            the syntax of regular expressions
When a request is parsed:
    check.py               whether a schema is well-formed: an interface refuses others
A schema in the keywords that llguidance knows:
    prepare.py             a schema prepared for llguidance
    simplify.py            a schema in fewer keywords
    exclusion.py           whether two branches of `oneOf` have no value in common
    closing.py             objects without other names than those that they declare
    source_places.py       the places in a schema of the parts of its prepared one
    compiler.py            llguidance: the grammar of a prepared schema, and the reason if it refuses one
What no grammar enforces:
    refuse.py              the first part of a prepared schema that is not enforced, with its place
    sizes.py               whether a schema is too large
    combined_patterns.py   whether too many patterns apply to one text: llguidance's memory doubles with each
    keywords.py            the keywords of one schema that are not enforced
    control_characters.py  whether a schema needs them
    finite.py              whether a schema has a finite value
    loosen.py              a schema without what is not enforced

A schema goes from `check.checked`, when a request is parsed, to `prepare.prepared` and to `refuse.refusal`. What is not
refused becomes a rule of a grammar (`compiler.json_rule`), which llguidance enforces while the output is generated.

What `check.py`, `prepare.py` and `keywords.py` do for one keyword is in a table in each, by the keyword.
"""
