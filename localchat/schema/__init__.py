"""Python types and JSON Schema, without I/O.

A target is what the program gives: a type, a function, or a JSON Schema as a dict. A shape is what is made of a target,
or of a type in it: two functions, one for its JSON Schema, one for the Python value of valid JSON. A record is a shape
with named fields, of a class or of the parameters of a function. The document is the whole schema of a shape, with the
records that it refers to in `$defs`. A variant is a document that is changed for servers that refuse it.

response_format.py              ExpectedValue: the `response_format` of a call, and the value in the reply
targets.py                      a type, a function or a schema becomes JSON Schema; JSON becomes a value of it
shapes.py                       the same for each form of a type
signatures.py, annotations.py, docstrings.py
                                what functions and classes say about their parameters and fields
variants.py                     a schema for servers that refuse it as it is
keywords.py                     which keywords have schemas as their values: the walk through a schema
validator.py, schema_check.py   is a value valid; is a schema valid
"""
