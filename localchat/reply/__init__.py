"""From the bytes of a response to events and a Reply, without I/O. Each module uses only those below it:

response.py                     ResponseParser: the bytes of a body become events
frames.py                       Frames: bytes become payloads, which are JSON objects
assembly.py                     Accumulator: payloads become events and a Reply
choice.py                       OpenChoice: the fields of one choice become events and a Choice
choice_text.py                  its texts: content, reasoning, refusal, transcript
tool_calls.py, call_arguments.py
                                its calls, and the arguments of each
audio.py, content_parts.py      its sound; content that is a list of parts
text.py                         text in pieces: <think> tags, and characters that are cut in two
fields.py                       KeptFields: the fields that the client does not know, for `Reply.raw`
reported_errors.py              the errors that a payload reports, in the notations of all servers
finish_reason.py                the finish reason, by the names of the client
payloads.py                     numbers, lists and usage in the notations of all servers
truncation.py                   the rule for replies that were cut
"""
