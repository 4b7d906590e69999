"""Schemas of strings, numbers and constants, with the values that each accepts and rejects."""

from __future__ import annotations

from .grammar_case import ANY_ACCEPT, INT, NOT_JSON, Case, case, formatted, pattern

ANYTHING = {
    "empty schema": case({}, ANY_ACCEPT, NOT_JSON),
    "true": case(True, ANY_ACCEPT, NOT_JSON),
    "annotations alone": case(
        {"title": "t", "description": "d", "default": 1, "examples": [2], "$comment": "c", "x-own": {"type": "string"}},
        ANY_ACCEPT,
        NOT_JSON,
    ),
    "$schema and $id": case(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://e.x/s", "type": "null"},
        "null",
        "0 nul",
    ),
    "deprecated readOnly writeOnly": case(
        {"type": "boolean", "deprecated": True, "readOnly": True, "writeOnly": False}, "true false", 'null 0 "true"'
    ),
    "any value, spaces": case({}, '{"a":_1,_"b":_[1,_2]}', '{"a"_:1 [1_2]', '{"a":__1} _{} [1_,2]'),
    "any value, strings": Case(
        {},
        (r'"\"\\\/\b\f\n\r\t"', r'"\u00e9\uD83D\ude00\uffff"', '"é😀\u2028"', '"\x80"'),
        ('"\n"', '"\t"', '"\x00"', '"\x1f"', r'"\a"', r"'a'", '"'),
        ('"\x7f"', r'"\ud800"', r'"\udc00a"', r'"\ud800\u0041"'),
    ),
    "any value, numbers": case(
        {},
        "0 -0 10 -10 123456789012345678901234567890 0.0 1.50 1e5 1E+5 1e-07 1.5e300 -0.1e0",
        "00 -01 1.e5 1e 1e+ 0x1 1_0 --1",
        "1e0001",
    ),
    "true literal types": case({"type": ["null", "boolean"]}, "null true false", "1 0 nulll"),
}

TYPES = {
    "null": case({"type": "null"}, "null", "None 0 false {}"),
    "boolean": case({"type": "boolean"}, "true false", "True 1 null"),
    "integer": case({"type": "integer"}, "0 -7 12345678901234567890 -0", "1.5 01 - 1.", "1.0 1e3"),
    "number": case({"type": "number"}, "0 -1.5 2e10 2E-10 0.000", "1. .5 01 e5 -"),
    "string": case({"type": "string"}, '"" "a" "a_b"', "1 a 'a' null"),
    "array": case({"type": "array"}, '[] [1] [[],{},"x",null]', "{} [1,] [,1] [1_2]"),
    "object": case({"type": "object"}, '{} {"a":1} {"a":{"b":[]},_"c":null}', '[] {"a"} {"a":1,} {1:2}'),
    "type list": case({"type": ["integer", "null"]}, "null 5 -5", 'true "5" 5.5'),
    "type list of one": case({"type": ["string"]}, '"x"', "1"),
    "integer and number": case({"type": ["integer", "number"]}, "1 1.5", '"1"'),
    "type list keeps string keywords": case({"type": ["string", "null"], "maxLength": 2}, '"" "ab" null', '"abc" 1'),
    "type list keeps number keywords": case({"type": ["integer", "null"], "minimum": 3}, "3 99 null", "2 -3"),
    "type list keeps enum": case({"type": ["string", "null"], "enum": ["a", None, 3]}, '"a" null', '3 "b"'),
    "type list keeps properties": case(
        {"type": ["object", "null"], "properties": {"a": INT}, "required": ["a"]}, '{"a":1} null', '{} {"a":"x"} []'
    ),
    "type list keeps items": case({"type": ["array", "string"], "items": INT}, '[1,2] "x" []', '["x"] 1'),
    "no type, string keyword": case({"maxLength": 1}, '"" "a" 12345 null [] {"a":"bcd"}', '"ab"'),
    "no type, object keyword": case({"properties": {"a": INT}}, '{"a":1} {} 5 "x" [1]', '{"a":"x"}', '{"b":1}'),
    "no type, number keyword": case({"minimum": 5}, '5 6.5 "a" null', "4 -5"),
    "nullable": case({"type": "string", "nullable": True}, '"a" null', "1"),
    "nullable false": case({"type": "string", "nullable": False}, '"a"', "null"),
    "nullable integer bounds": case({"type": "integer", "minimum": 0, "nullable": True}, "0 null", "-1 false"),
}

CONSTANTS = {
    "enum strings": case({"enum": ["red", "green"]}, '"red" "green"', '"blue" red "" "redgreen"'),
    "enum with common prefixes": case({"enum": ["a", "ab", "abc"]}, '"a" "ab" "abc"', '"abcd" "b" ""'),
    "enum mixed": case(
        {"enum": [1, "1", None, True, 1.5, [], {}]}, '1 "1" null true 1.5 [] {}', 'false 2 "" [1] {"a":1}', "1.0"
    ),
    "enum quotes and backslashes": Case(
        {"enum": ['say "hi"', "C:\\new", "a/b"]}, (r'"say \"hi\""', r'"C:\\new"', '"a/b"'), (r'"C:\new"', '"say "hi""')
    ),
    "enum controls": Case(
        {"enum": ["a\nb", "\t", "\x01", "\x7f"]}, (r'"a\nb"', r'"\t"', r'"\u0001"', r'"\u007f"'), ('"a\nb"',)
    ),
    "enum unicode": Case(
        {"enum": ["é", "日本", "😀", ""]}, ('"é"', '"日本"', '"😀"', '""'), ('"e"', '"日"'), (r'"\u00e9"',)
    ),
    "enum of characters of GBNF": Case(
        {"enum": ["[a-z]", "a]b", "x::=y", "#", "(|)", "^-"]},
        ('"[a-z]"', '"a]b"', '"x::=y"', '"#"', '"(|)"', '"^-"'),
        ('"a"', '"^"'),
    ),
    "enum big integer": case(
        {"enum": [12345678901234567890123]}, "12345678901234567890123", "12345678901234567890124 1"
    ),
    "enum float": case({"enum": [0.1, -2.5, 1e-07]}, "0.1 -2.5 1e-07", "0.10001 2.5 0", "0.10 0.0000001"),
    "enum of one": case({"enum": [None]}, "null", "0"),
    "const string": case({"const": "x"}, '"x"', '"y" x "xx"'),
    "const null": case({"const": None}, "null", "0 false"),
    "const false": case({"const": False}, "false", "0 null true"),
    "const object": case({"const": {"a": 1, "b": [2]}}, '{"a":1,"b":[2]}', '{"a":1} {"a":1,"b":[]}', '{"b":[2],"a":1}'),
    "const with type": case({"type": "string", "const": "v1"}, '"v1"', '"v2"'),
    "enum filtered by type": case({"type": "string", "enum": ["a", 1, None]}, '"a"', "1 null"),
    "enum filtered by length": case({"enum": ["a", "bb", "ccc", 5], "maxLength": 2}, '"a" "bb" 5', '"ccc"'),
    "enum filtered by pattern": case({"enum": ["a1", "b", "c2"], "pattern": r"\d"}, '"a1" "c2"', '"b"'),
    "enum filtered by bounds": case({"enum": [1, 5, 10], "minimum": 2, "exclusiveMaximum": 10}, "5", "1 10"),
    "enum filtered by const": case({"enum": [1, 2], "const": 2}, "2", "1"),
    "enum filtered by format": case(
        {"enum": ["2024-02-30", "2024-02-29"], "format": "date"}, '"2024-02-29"', '"2024-02-30"'
    ),
    "enum filtered by items": case({"enum": [[1], ["a"], [1, 2]], "items": INT, "maxItems": 1}, "[1]", '["a"] [1,2]'),
    "enum filtered by properties": case(
        {"enum": [{"a": 1}, {"a": "x"}, {}], "properties": {"a": INT}, "required": ["a"]}, '{"a":1}', '{"a":"x"} {}'
    ),
    "enum filtered by not": case({"enum": [1, 2, 3], "not": {"const": 2}}, "1 3", "2"),
    "enum with integer type": case({"type": "integer", "enum": [1, 1.5]}, "1", "1.5"),
    "enum in allOf": case({"allOf": [{"enum": [1, 2, 3]}, {"enum": [3, 2, 9]}]}, "2 3", "1 9"),
    "boolean const in enum of 0": case({"enum": [0], "type": "integer"}, "0", "false"),
}

LENGTHS = {
    "minLength": case({"type": "string", "minLength": 2}, '"ab" "abc"', '"a" ""'),
    "maxLength": case({"type": "string", "maxLength": 3}, '"" "abc"', '"abcd"'),
    "exact length": case({"type": "string", "minLength": 2, "maxLength": 2}, '"ab"', '"a" "abc"'),
    "maxLength 0": case({"type": "string", "maxLength": 0}, '""', '"a"'),
    "length counts characters": Case(
        {"type": "string", "minLength": 2, "maxLength": 2},
        ('"é😀"', r'"\n\u00e9"', r'"\ud83d\ude00x"'),
        ('"😀"', '"éé😀"', r'"\ud83d\ude00"'),
    ),
    "maxLength 100": Case({"type": "string", "maxLength": 100}, (f'"{"x" * 100}"',), (f'"{"x" * 101}"',)),
    "maxLength 101": Case({"type": "string", "maxLength": 101}, ('""', f'"{"x" * 101}"'), (f'"{"x" * 102}"',)),
    "maxLength 250": Case(
        {"type": "string", "maxLength": 250},
        ('""', f'"{"x" * 50}"', f'"{"x" * 51}"', f'"{"x" * 250}"'),
        (f'"{"x" * 251}"',),
    ),
    "minLength 250": Case(
        {"type": "string", "minLength": 250}, (f'"{"x" * 250}"', f'"{"x" * 999}"'), (f'"{"x" * 249}"',)
    ),
    "lengths 150 to 350": Case(
        {"type": "string", "minLength": 150, "maxLength": 350},
        (f'"{"x" * 150}"', f'"{"x" * 200}"', f'"{"x" * 350}"'),
        (f'"{"x" * 149}"', f'"{"x" * 351}"'),
    ),
    "maxLength 2001": Case({"type": "string", "maxLength": 2001}, (f'"{"x" * 2001}"',), (f'"{"x" * 2002}"',)),
    "maxLength 5000": Case({"type": "string", "maxLength": 5000}, (f'"{"x" * 5000}"',), (f'"{"x" * 5001}"',)),
    "minLength 2500": Case({"type": "string", "minLength": 2500}, (f'"{"x" * 2500}"',), (f'"{"x" * 2499}"',)),
    "float count": case({"type": "string", "maxLength": 2.0}, '"ab"', '"abc"'),
    "lengths merged": case(
        {"allOf": [{"minLength": 1, "maxLength": 5}, {"maxLength": 3}], "type": "string"}, '"a" "abc"', '"" "abcd"'
    ),
}

PATTERNS = {
    "anchored literal": pattern("^abc$", "abc", "ab abcd xabc"),
    "unanchored": pattern("b", "b abc bb", "a ac"),
    "unanchored start": pattern("b$", "b ab bb", "ba a"),
    "unanchored end": pattern("^b", "b ba", "ab"),
    "empty pattern": pattern("", "a abc"),
    "digits": pattern(r"^\d{3}-\d{4}$", "123-4567", "123-456 12-34567 abc-defg"),
    "words": pattern(r"^\w+$", "az aZ09", "a-b é a!"),
    "underscore is a word character": Case({"type": "string", "pattern": r"^\w$"}, ('"_"',), ('"-"', '"é"')),
    "spaces": Case(
        {"type": "string", "pattern": r"^\s$"},
        ('" "', r'"\t"', r'"\n"', '"\u00a0"', '"\u3000"'),
        ('"a"', '""', r'"\b"'),
    ),
    "not digits": pattern(r"^\D+$", "abc é", "1 a1"),
    "not words": pattern(r"^\W+$", "-!é", "a -a"),
    "not spaces": pattern(r"^\S+$", "abc", "a_b _"),
    "class": pattern("^[a-c]+$", "abc", "abcd d"),
    "class of several": pattern("^[a-cx0-9_.-]+$", "ax9.- c-", "d A"),
    "class negated": pattern("^[^a-c]+$", "def é", "a da"),
    "class with escapes": Case({"type": "string", "pattern": r'^[\]\[\\"\-^]+$'}, (r'"][\\\"-^"',), ('"a"', '"x]"')),
    "class with class escapes": pattern(r"^[\d\s.]+$", "1.5 1_2", "a"),
    "class with dash first": pattern("^[-a]+$", "-a", "b"),
    "class with dash last": pattern("^[a-]+$", "-a", "b"),
    "negated class with quote": Case(
        {"type": "string", "pattern": '^[^"]$'}, ('"a"', r'"\\"', r'"\n"', r'"\u0001"'), (r'"\""',)
    ),
    "dot": Case(
        {"type": "string", "pattern": "^.$"},
        ('"a"', '"é"', r'"\""', r'"\t"', '"😀"'),
        (r'"\n"', '""', '"ab"', '"\u2028"'),
    ),
    "alternation": pattern("^(a|bc|)d$", "ad bcd d", "abcd bd"),
    "alternation at the top": pattern("^a$|^b$", "a b", "ab c"),
    "alternation, anchored on one side": pattern("^a|b$", "a ax b xb", "xay xa"),
    "groups": pattern("^(?:ab)+(?<x>c)?(?P<y>d)$", "abd ababcd", "d abc"),
    "star plus question": pattern("^a*b+c?$", "b aabbc", "a ac bcc"),
    "counts": pattern("^a{2}b{1,}c{0,2}$", "aab aabbcc", "ab aabccc aac"),
    "count zero": pattern("^ab{0}c$", "ac", "abc"),
    "lazy": pattern("^a+?b*?c{1,2}?$", "ac aabcc", "b"),
    "nullable inside repetition": pattern("^(a*)*$", "a aaa", "b"),
    "nullable inside count": pattern("^(a?b?){2}$", "ab ba abab a", "aaa ababa"),
    "nested repetition": pattern("^((ab)+c)+$", "abc ababcabc", "ab abcc"),
    "repetition in repetition counted": pattern("^(\\d{1,3},){2,3}$", "1,2, 123,4,5,", "1, 1234,5,"),
    "long count": Case(
        {"type": "string", "pattern": "^a{300}$"}, (f'"{"a" * 300}"',), (f'"{"a" * 299}"', f'"{"a" * 301}"')
    ),
    "escapes": Case(
        {"type": "string", "pattern": r"^\.\*\+\?\(\)\[\]\{\}\|\^\$\/\-$"}, (r'".*+?()[]{}|^$/-"',), ('"a"',)
    ),
    "control escapes": Case({"type": "string", "pattern": r"^\t\n\r\f\v\cA$"}, (r'"\t\n\r\f\u000b\u0001"',), ('"a"',)),
    "hex escapes": pattern(r"^\x41\u0042\u{43}\u{1F600}$", "ABC😀", "ABC"),
    "surrogate escapes": pattern(r"^\ud83d\ude00$", "😀", "a"),
    "unicode": pattern("^[д-ж]+é?$", "деж жé", "abc"),
    "quote and backslash": Case({"type": "string", "pattern": r'^"\\$'}, (r'"\"\\"',), ('"a"',)),
    "anchors in the middle": pattern("^a$|b(?:^|c)", "a bc xbcx", "b ab"),
    "optional with an anchor": pattern("^a(b$)?", "a ab ax", "ba"),
    "optional that never matches": pattern("^(b$c)?a*$", "a aa", "b bc bca"),
    "pattern with maxLength": pattern("^[a-z]+(-[a-z]+)*$", "a ab-cd", "-a a- abcd-ef abcdefg", maxLength=6),
    "class repetition with lengths": pattern("^[a-z]+$", "ab abc", "a abcd AB", minLength=2, maxLength=3),
    "class repetition with long lengths": Case(
        {"type": "string", "pattern": "^[a-z]*$", "maxLength": 1000},
        (f'"{"a" * 1000}"', '""'),
        (f'"{"a" * 1001}"', '"A"'),
    ),
    "lengths implied by the pattern": pattern("^[A-Z]{3}$", "ABC", "AB ABCD", minLength=1, maxLength=10),
    "lengths against the pattern": case(
        {"type": ["string", "null"], "pattern": "^a{5}$", "maxLength": 4}, "null", '"aaaaa" "aaaa"'
    ),
    "unanchored with lengths": pattern("a", "a ba xxa", "x xxxa aaaa", maxLength=3),
    "two patterns": case(
        {"type": "string", "allOf": [{"pattern": "^[a-z0-9]+$"}, {"pattern": r"\d"}, {"pattern": "^[^0-9]"}]},
        '"a1" "ab12c"',
        '"abc" "1a" "A1"',
    ),
    "pattern and format": case(
        {"type": "string", "format": "date", "pattern": "^2024-"}, '"2024-01-31"', '"2023-01-31" "2024-1-1"'
    ),
    "format and length": case({"type": "string", "format": "ipv4", "maxLength": 7}, '"1.2.3.4"', '"10.20.30.40"'),
    "not constant strings": case({"type": "string", "not": {"enum": ["a", "bc"]}}, '"" "b" "aa" "bcd"', '"a" "bc"'),
    "not constant with pattern": case(
        {"type": "string", "pattern": "^[ab]{1,2}$", "not": {"const": "ab"}}, '"a" "ba" "bb"', '"ab" "c"'
    ),
}

FORMATS = {
    "date": formatted(
        "date",
        "2024-02-29 2023-12-31 1999-04-30 2000-02-29 0001-01-01",
        "2023-02-29 1900-02-29 2023-04-31 2023-13-01 2023-00-10 23-01-01 2023-1-1 2023-01-01T00:00:00Z",
    ),
    "time": formatted(
        "time", "00:00:00Z 23:59:59.123+02:00 12:30:00-00:30", "24:00:00Z 12:60:00Z 12:30Z 12:30:00 1:00:00Z 12:30:00.Z"
    ),
    "date-time": formatted(
        "date-time",
        "2024-02-29T12:00:00Z 2023-01-01T00:00:00.5-08:00",
        "2023-02-29T12:00:00Z 2024-01-01 2024-01-01_00:00:00Z 2024-01-01T00:00:00",
        "2024-01-01t00:00:00z",
    ),
    "duration": formatted("duration", "P1D PT1H30M P1Y2M3DT4H5M6S P3W PT0S", "P PT 1D P1DT P1H PT1D P1S"),
    "uuid": formatted(
        "uuid",
        "123e4567-e89b-12d3-a456-426614174000 ABCDEF00-0000-0000-0000-000000000000",
        "123e4567e89b12d3a456426614174000 123e4567-e89b-12d3-a456-42661417400 g23e4567-e89b-12d3-a456-426614174000",
    ),
    "email": formatted("email", "a@b.co john.doe+tag@sub.example.org", "a@b @b.co a@ a..b@c.de a@-b.co a_b@c.de"),
    "hostname": formatted(
        "hostname", "localhost example.com a-b.c1.example", "-a.com a-.com a..b .a a. ex_mple.com a!b"
    ),
    "ipv4": formatted("ipv4", "0.0.0.0 255.255.255.255 192.168.1.10", "256.1.1.1 1.2.3 1.2.3.4.5 01.2.3.4 1.2.3.a"),
    "ipv6": formatted(
        "ipv6",
        ":: ::1 1:: 1:2:3:4:5:6:7:8 fe80::1:2 2001:DB8::42:8329 ::ffff:192.0.2.1 1:2:3:4:5:6:7:: 1:2:3:4:5:6:1.2.3.4",
        ": 1:2:3:4:5:6:7 1:2:3:4:5:6:7:8:9 1::2::3 12345:: g:: 1:2:3:4:5:6:7:1.2.3.4 ::1.2.3.256",
    ),
    "uri": formatted(
        "uri",
        "https://example.com/a?b=c#d mailto:a@b.co http://[::1]:8080/ urn:isbn:123 http://u@h/%20 file:///etc/x",
        "example.com //x/y http//x http://a_b 1http://x http://x/%zz http://x/<",
    ),
    "unknown format": case({"type": "string", "format": "color"}, '"red" ""', "1"),
    "format of a number": case({"type": "integer", "format": "int32"}, "5", "1.5"),
    "format without type": case({"format": "ipv4"}, '"1.2.3.4" 5 null', '"x"'),
}

NUMBERS = {
    "minimum 0": case({"type": "integer", "minimum": 0}, "0 5 123456789012345678", "-1 1.5", "-0"),
    "minimum 37": case({"type": "integer", "minimum": 37}, "37 40 99 100 3700", "36 9 0 -37 037"),
    "minimum negative": case({"type": "integer", "minimum": -37}, "-37 -9 0 1000", "-38 -99 -100"),
    "maximum": case({"type": "integer", "maximum": 37}, "37 0 -1 -1000 9", "38 99 100"),
    "maximum negative": case({"type": "integer", "maximum": -5}, "-5 -10 -99", "-4 0 5"),
    "range 0 to 255": case(
        {"type": "integer", "minimum": 0, "maximum": 255}, "0 9 10 99 100 199 200 249 255", "256 300 1000 -1 00"
    ),
    "range across zero": case({"type": "integer", "minimum": -12, "maximum": 3}, "-12 -1 0 3", "-13 4 10"),
    "range negative": case({"type": "integer", "minimum": -120, "maximum": -15}, "-15 -99 -120 -100", "-14 -121 15 0"),
    "range of many digits": case(
        {"type": "integer", "minimum": 998, "maximum": 100001}, "998 999 1000 99999 100000 100001", "997 100002 99"
    ),
    "exclusive": case({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6}, "4 5", "3 6"),
    "exclusive as draft 4": case(
        {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 6, "exclusiveMaximum": False}, "4 5 6"
    ),
    "fractional bounds of integers": case({"type": "integer", "minimum": 1.5, "maximum": 3.5}, "2 3", "1 4"),
    "huge bounds": case(
        {"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807},
        "9223372036854775807 -9223372036854775808 0",
        "9223372036854775808 -9223372036854775809",
    ),
    "bounds beyond all digits": case(
        {"type": "number", "maximum": 1.7976931348623157e308, "minimum": 0}, "0 1.5 123456", "-1"
    ),
    "number minimum": case({"type": "number", "minimum": 0}, "0 0.5 12.25 100", "-1 -0.5 -0.0001", "1e5"),
    "number exclusive minimum": case({"type": "number", "exclusiveMinimum": 0}, "0.1 1 0.001 10.0", "0 0.0 0.000 -1"),
    "number range 0 to 1": case(
        {"type": "number", "minimum": 0, "maximum": 1}, "0 0.0 0.5 0.999 1 1.0 1.000", "1.1 1.0001 -0.1 2 10"
    ),
    "number range of decimals": case(
        {"type": "number", "minimum": 1.25, "maximum": 3.5},
        "1.25 1.250 1.3 1.26 2 2.999 3 3.5 3.50 3.49",
        "1.2 1.249 1 1.0 3.51 3.6 4 0",
    ),
    "number range within one unit": case(
        {"type": "number", "minimum": 2.25, "exclusiveMaximum": 2.75},
        "2.25 2.3 2.7 2.749 2.5",
        "2 2.2 2.24 2.75 2.750 2.8 3",
    ),
    "number range negative": case(
        {"type": "number", "minimum": -3.5, "maximum": -1.25}, "-1.25 -2 -3.5 -3.49", "-1.2 -3.51 0 2"
    ),
    "number range across zero": case(
        {"type": "number", "minimum": -0.5, "maximum": 0.5}, "-0.5 0 0.5 -0.25 0.0", "-0.51 0.6 1 -1"
    ),
    "number maximum": case({"type": "number", "maximum": 2.5}, "2.5 0 -100.75 2", "2.51 3 10"),
    "number range of exact value": case({"type": "number", "minimum": 1.5, "maximum": 1.5}, "1.5 1.50", "1 1.51 1.4"),
    "number tiny bound": case({"type": "number", "minimum": 1e-07}, "0.0000001 0.5 1", "0.00000001 0"),
    "number far maximum": case(
        {"type": "number", "minimum": 0, "maximum": 9007199254740991},
        "0 19.99 0.12345678901234 1234567.125 9007199254740990.5 9007199254740991 9007199254740991.0",
        "-0.01 9007199254740991.5 9007199254740992",
    ),
    "number far exclusive maximum": case(
        {"type": "number", "exclusiveMaximum": 1e20},
        "0.01 19.99 -5.25 99999999999999983616",
        "100000000000000000000 100000000000000000000.5 99999999999999999999.5",  # As doubles, these equal the bound.
        "99999999999999999999",
    ),
    "number far bounds": case(
        {"type": "number", "minimum": -1e18, "maximum": 1e18},
        "0.01 -19.99 1000000000000000000 -1000000000000000000.0",
        "-1000000000000000001",
        "1000000000000000000.01",
    ),
    "number close to an exclusive bound beside a tiny one": case(
        {"type": "number", "minimum": 1e-20, "exclusiveMaximum": 100},
        "99.9999999999999 0.00000000000000000001",
        "0 100 99.99999999999999999999",
    ),
    "number exclusive maximum 0": case({"type": "number", "exclusiveMaximum": 0}, "-1 -0.5", "0 1 0.5"),
    "multipleOf 1": case({"type": "number", "multipleOf": 1}, "5 -5 0", "1.5"),
    "multipleOf 10": case({"type": "integer", "multipleOf": 10}, "0 10 -20 100", "1 5 15"),
    "multipleOf 1000 below a maximum": case(
        {"type": "integer", "multipleOf": 1000, "maximum": 99000}, "99000 0 -5000", "100000 5 0000", "-0"
    ),
    "multipleOf 100 in a range": case(
        {"type": "integer", "multipleOf": 100, "minimum": 150, "maximum": 990000},
        "200 989900 990000",
        "100 150 990100 0",
    ),
    "multipleOf 5 in a range": case(
        {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 20}, "0 5 10 15 20", "1 25 -5 3"
    ),
    "multipleOf 7": case({"type": "integer", "multipleOf": 7}, "0 7 14 -21 7000 1001", "1 8 -20 15"),
    "multipleOf 3, not negative": case({"type": "integer", "multipleOf": 3, "minimum": 0}, "0 3 12 111", "-3 4"),
    "multipleOf 3, positive": case({"type": "integer", "multipleOf": 3, "minimum": 1}, "3 12", "0 -3 4"),
    "multipleOf 0.01": case({"type": "number", "multipleOf": 0.01}, "1 1.5 1.25 -0.01", "1.255 0.001", "1.250"),
    "multipleOf 0.01 in a range": case(
        {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99.99},
        "0 99.99 1.5 50.05",
        "100 99.995 -0.01 0.001",
    ),
    "multipleOf 0.5 in a range": case(
        {"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 5}, "0 0.5 3 4.5 5", "0.25 5.5 -0.5", "1.0"
    ),
    "multipleOf 2.5 of integers": case(
        {"type": "integer", "multipleOf": 2.5, "minimum": 0, "maximum": 20}, "0 5 20", "2 3", ""
    ),
    "multipleOf twice": case(
        {"allOf": [{"multipleOf": 4}, {"multipleOf": 6}], "type": "integer", "minimum": 0, "maximum": 40},
        "0 12 36",
        "4 6 8",
    ),
    "bounds merged": case(
        {"allOf": [{"minimum": 2}, {"minimum": 5, "maximum": 9}, {"maximum": 7}], "type": "integer"}, "5 7", "4 8 2"
    ),
}
