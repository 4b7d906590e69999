"""Docstrings in the style of Google, NumPy or reST: the text, and the description of each parameter. No I/O.

Google                      NumPy                       reST

Weather of a city.          Weather of a city.          Weather of a city.

Args:                       Parameters                  :param city: The name of
    city: The name of       ----------                      the city.
        the city.           city : str
                                The name of the city.
"""

from __future__ import annotations

import inspect
import re

# A title that begins a section. The group `parameters` is set for sections that describe parameters.
_SECTION = re.compile(
    r"""
    (?: (?:\w+[ ])? (?P<parameters> Args|Arguments|Parameters|Params|Attributes|Fields )
      | Returns?|Raises|Yields?|Examples?|Notes?|See[ ]Also|Warnings?
    ) \s*:\s*
    """,
    re.VERBOSE,
)
# An entry of a section.
_ENTRY = re.compile(
    r"""
    (?: [-*+\u2022] \s+ )?                                     # a bullet
    (?P<names> [`*]*\w+[`*]* (?: \s*,\s* [`*]*\w+[`*]* )* )   # one or more names
    \s* (?: \( (?: [^()] | \([^()]*\) )* \) | \[[^\]]*\] )?   # a type in parentheses or brackets
    (?: \s*:(?!:) | \s+[-\u2013\u2014]{1,2}(?=\s) )            # a colon or a dash
    \s* (?P<text> .* )
    """,
    re.VERBOSE,
)
_DASH = re.compile(r"\s[-\u2013\u2014]{1,2}\s*$")
_UNDERLINE = re.compile("-{3,}")  # The line below a title in NumPy's style.
# A field of reST: its kind, its arguments, the last of which is the name of a parameter, and its text. A role, as in
# :class:`Name`, is no field.
_FIELD = re.compile(r":(\w+)\b([^:]*):(?!`)\s*(.*)")
_PARAMETER_FIELDS = ("param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text outside the sections, and the description of each parameter."""
    lines = inspect.cleandoc(doc).splitlines()
    described: dict[str, str] = {}
    if any(_is_title(*pair) for pair in zip(lines, lines[1:])):
        summary = _read_numpy(lines, described)
    elif any(field and field[1] in _PARAMETER_FIELDS for field in map(_FIELD.match, lines)):
        summary = _read_rest(lines, described)
    else:
        summary = _read_google(lines, described)
    return "\n".join(summary).strip(), described


def _is_title(line: str, following: str) -> bool:
    """Whether a line is the title of a section in NumPy's style."""
    return bool(_UNDERLINE.fullmatch(following.strip()) and _SECTION.fullmatch(f"{line.strip()}:"))


def _read_numpy(lines: list[str], described: dict[str, str]) -> list[str]:
    """Describe the parameters and return the other lines. A section ends with the next one."""
    summary: list[str] = []
    section: re.Match[str] | None = None
    names: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""]):
        if _is_title(line, following):
            section, names = _SECTION.fullmatch(f"{line.strip()}:"), []
        elif section is None:
            summary.append(line)
        elif section["parameters"] and line[:1].strip() and not _UNDERLINE.fullmatch(line):
            # `name : type` above an indented text; a text may also be on the line of the names, after a dash.
            entry = _ENTRY.fullmatch(line)
            names = re.findall(r"\w+", entry["names"] if entry else line.partition("(")[0])
            is_text = entry is not None and (_DASH.search(line[: entry.start("text")]) or entry["text"].endswith("."))
            described.update(dict.fromkeys(names, entry["text"] if entry and is_text else ""))
        else:
            described.update({name: f"{described[name]} {line.strip()}".strip() for name in names})
    return summary


def _read_rest(lines: list[str], described: dict[str, str]) -> list[str]:
    """Describe the parameters and return the other lines. A field ends where its indentation ends."""
    summary: list[str] = []
    name: str | None = None
    for line in lines:
        field = _FIELD.match(line)
        if field:
            is_parameter = field[1] in _PARAMETER_FIELDS and field[2].strip()
            name = field[2].split()[-1].lstrip("*") if is_parameter else ""
            described[name] = field[3]
        elif name is not None and (line[:1].isspace() or not line):
            described[name] = f"{described[name]} {line.strip()}".strip()
        else:
            name = None
            summary.append(line)
    described.pop("", None)  # The fields of returns, exceptions and types.
    return summary


def _read_google(lines: list[str], described: dict[str, str]) -> list[str]:
    """Describe the parameters and return the other lines. A section ends where its indentation ends."""
    summary: list[str] = []
    section: re.Match[str] | None = None
    names: list[str] = []
    indent = 0
    for number, line in enumerate(lines, 1):
        following = next((other for other in lines[number:] if other.strip()), "")
        title = _SECTION.fullmatch(line)
        # A title without indented text below it is no section, except above parameters, which some do not indent.
        has_entries = title is not None and title["parameters"] and _ENTRY.match(following)
        # Without indentation, only entries belong to a section.
        is_outside = bool(line[:1].strip()) if indent else not _ENTRY.match(line)
        if title and (following.startswith(" ") or has_entries):
            section, names, indent = title, [], len(following) - len(following.lstrip())
        elif section is None or is_outside:
            section = None
            summary.append(line)
        elif section["parameters"] and line.strip():
            entry = _ENTRY.match(line.strip()) if len(line) - len(line.lstrip()) <= indent else None
            if entry:
                names = re.findall(r"\w+", entry["names"])
                described.update(dict.fromkeys(names, entry["text"]))
            else:
                described.update({name: f"{described[name]} {line.strip()}".strip() for name in names})
    return summary
