"""Patterns for the values of JSON Schema's `format` that are enforced. Other values of `format` are annotations.

A pattern matches the whole text. Where the exact pattern of a standard would be too large, the pattern here matches a
subset: every generated text is valid, but some valid texts are never generated.
"""

from __future__ import annotations

_YEAR = r"(?:\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})"
_LEAP_YEAR = r"(?:\d{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
# RFC 3339 requires the offset. Leap seconds are left out: most parsers reject them.
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"

_HOURS = r"(?:\d+H(?:\d+M)?(?:\d+S)?|\d+M(?:\d+S)?|\d+S)"
_DAYS = r"(?:\d+Y(?:\d+M)?(?:\d+D)?|\d+M(?:\d+D)?|\d+D)"
_DURATION = f"P(?:\\d+W|{_DAYS}(?:T{_HOURS})?|T{_HOURS})".replace(r"\d+", r"\d{1,9}")

# At most 253 characters in all, and 63 in a label: four labels of 62, or ten of 24.
_LABEL_62 = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,60}[A-Za-z0-9])?"
_LABEL_24 = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,22}[A-Za-z0-9])?"
_HOSTNAME = rf"(?:{_LABEL_62}(?:\.{_LABEL_62}){{0,3}}|{_LABEL_24}(?:\.{_LABEL_24}){{0,9}})"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@(?:{_LABEL_24}\.){{1,4}}[A-Za-z]{{2,24}}"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    """Eight groups, the last two perhaps as an IPv4 address; `::` stands for one or more groups of zeros."""
    whole = f"(?:{_GROUP}:){{6}}(?:{_GROUP}:{_GROUP}|{_IPV4})"
    shortened = [f"{_before(n)}::(?:{_after(7 - n)})?" for n in range(8)]
    return f"(?:{whole}|{'|'.join(shortened)})"


def _before(n: int) -> str:
    return f"{_GROUP}(?::{_GROUP}){{{n - 1}}}" if n else ""


def _after(most: int) -> str:
    """Up to `most` groups; an IPv4 address takes the place of two."""
    groups = f"{_GROUP}(?::{_GROUP}){{0,{most - 1}}}" if most else "(?:)"
    return groups if most < 2 else f"{groups}|(?:{_GROUP}:){{0,{most - 2}}}{_IPV4}"


_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_PATH = f"(?:/{_PCHAR}*)*"
_USER = r"(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?"
_AUTHORITY = rf"{_USER}(?:{_HOSTNAME}|\[{_ipv6()}\])?(?::\d{{0,5}})?"
_SUFFIX = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}{_PATH}|/(?:{_PCHAR}+{_PATH})?|{_PCHAR}+{_PATH}|){_SUFFIX}"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": _URI,
}
