"""Values of which all rooms of the server speak, and small tools.

    request.py         a request, as a value without its wire format
    params.py          the sampling and generation parameters of a request, each declared once
    fields.py          reads the fields of a JSON body, by name and type
    events.py          what responses are encoded from: text, calls, log probabilities, the end, usage
    errors.py          the errors that become responses, with their statuses
    tool_results.py    which results of tools belong to which calls
    media.py           images and sounds of a request, and the markers that stand for them
    model_options.py   the options of models
    server_options.py  the other options of the server
    scan.py            the cursor and the readers of streaming parsers
    reasoning.py       where reasoning begins and ends in an output
    text.py            JSON, patterns of many texts, text that is safe in a log
    mailbox.py         messages for the thread of a request

This room imports no other one.
"""
