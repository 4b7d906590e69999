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

How far a response has come, from its first sign to its end. Each property decides a question of its own:

Accumulator.has_choices         a choice was received; unknown JSON before it is no chat completion, and an error
ResponseParser.has_output       the model has generated something; Timeout.stall applies in place of Timeout.first
FinishReason.is_at_end          a choice has a finish reason, and no output after it
Accumulator.has_all_reasons     every requested choice has such a reason; then a defect is a warning, and an error only
                                if the server reports it explicitly
Accumulator.has_known_reasons   the client knows all these reasons; the response is complete without an end mark, and
                                streams.py waits only a few seconds for the usage and [DONE]
ResponseParser.has_end_mark     [DONE], or the end of a body that is one JSON document: the response is complete, also
                                with an unknown finish reason or none
ResponseParser.is_over          no more bytes are needed: after [DONE], an error, or the end of the body
Accumulator.finish              raises if the response is not complete; returns the last events otherwise
"""
