"""From the bytes of a response to events and a Reply, without I/O. Each module uses only those below it:

response.py                     ResponseParser: the bytes of a body become events
frames.py                       Frames: bytes become payloads, which are JSON objects
assembly.py                     Accumulator: payloads become events and a Reply
choice.py                       OpenChoice: the fields of one choice
choice_text.py, text.py         its texts: <think> tags, and characters that are cut in two
tool_calls.py, call_arguments.py, audio.py
                                its calls and its sound, from their pieces
fields.py                       KeptFields: the fields that the client does not know, for `Reply.raw`
payloads.py, reported_errors.py the notations of different servers: finish reasons, usage, errors
truncation.py                   the rule for replies that were cut
"""
