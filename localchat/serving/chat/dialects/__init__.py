"""Dialects: the output formats of the model families, and the parser that reads their outputs.

  the formats, as data
    families.py         the record of each family
    dialect.py          what such a record has: the texts around reasoning, text and calls
    call_format.py      the record of a call format, and the text of earlier calls
    argument_format.py  the same for arguments that are written one by one
    holes.py            the texts of these records, with holes for names and ids
    value_writer.py     writes values in JSON and in other notations

  the readers of outputs
    parser.py           splits an output into reasoning, content and calls
    channels.py         the same for families whose outputs are messages with headers
    call_reader.py      reads a call in any format
    object_reader.py    reads a call that is a JSON object
    argument_reader.py  reads arguments that are written one by one
    element_reader.py   reads arguments that are nested elements
    values.py           reads values in JSON and in other notations
    bare_text.py        makes JSON of a text between tags
    calls.py            emits the events of calls
    raw_text.py         shows the texts of the format in raw outputs

`core/scan.py` has the cursor and the readers of which the parser consists.
"""

from .dialect import Dialect
from .families import DIALECTS, detect

__all__ = ["DIALECTS", "Dialect", "detect"]
