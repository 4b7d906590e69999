"""Python types and JSON Schema, without I/O.

response_format.py              ExpectedValue: the `response_format` of a call, and the value in the reply
targets.py                      a type, a function or a schema becomes JSON Schema; JSON becomes a value of it
shapes.py                       the same for each form of a type
signatures.py, annotations.py, docstrings.py
                                what functions and classes say about their parameters and fields
variants.py                     a schema for servers that refuse it as it is
validator.py, schema_check.py   is a value valid; is a schema valid
"""
