"""Schemas of objects and arrays, references and combinations, with the values that each accepts and rejects."""

from __future__ import annotations

from .grammar_case import BOOL, INT, NUM, STR, Case, case, obj

OBJECTS = {
    "required in order": case(
        obj("a", "b", a=INT, b=STR),
        '{"a":1,"b":"x"} {"a":_1,_"b":_"x"}',
        '{} {"a":1} {"b":"x"} {"a":1,"b":2}',
        '{"b":"x","a":1}',
    ),
    "optional": case(
        obj(a=INT, b=INT, c=INT),
        '{} {"a":1} {"b":1} {"c":1} {"a":1,"c":2} {"a":1,"b":2,"c":3}',
        '{"a":1,"a":2} {"b":1,"b":1} {,"a":1} {"a":1,}',
        '{"c":1,"a":2}',
    ),
    "optional before required": case(
        obj("c", a=INT, b=INT, c=INT),
        '{"c":1} {"a":1,"c":2} {"b":1,"c":1} {"a":1,"b":2,"c":3}',
        '{} {"a":1} {"b":2} {"a":1,"b":2}',
    ),
    "optional between required": case(
        obj("a", "c", a=INT, b=INT, c=INT), '{"a":1,"c":3} {"a":1,"b":2,"c":3}', '{"a":1} {"c":3}'
    ),
    "names that share a beginning": case(
        obj(a=INT, ab=INT, abc=INT), '{"a":1,"abc":2} {"ab":1}', '{"abc":"x"}', '{"abcd":1} {"":1}'
    ),
    "names with quotes": Case(
        obj('a"b', **{'a"b': INT, "c\\d": INT, "é": INT, "": INT}),
        (r'{"a\"b":1}', r'{"a\"b":1,"c\\d":2,"é":3,"":4}'),
        ("{}",),
    ),
    "required but not declared": case(
        {"type": "object", "required": ["x"]}, '{"x":1} {"x":[],"y":1}', '{} {"y":1}', '{"y":1,"x":2}'
    ),
    "no additional": case({**obj(a=INT), "additionalProperties": False}, '{} {"a":1}', '{"b":1} {"a":1,"b":1}'),
    "additional not mentioned": case(obj(a=INT), '{"a":1}', '{"a":"x"}', '{"b":1} {"a":1,"b":1}'),
    "additional true": case(
        {**obj(a=INT), "additionalProperties": True},
        '{} {"a":1} {"b":"x"} {"a":1,"b":[],"aa":{}} {"":1} {"ab":1}',
        '{"a":"x"} {"a":1,"a":2}',
    ),
    "additional true, no second spelling": Case(
        {**obj(a=INT), "additionalProperties": True}, ('{"b":1}',), ('{"\\u0061":"x"}',)
    ),
    "additional by schema": case(
        {**obj(a=INT), "additionalProperties": STR}, '{"a":1,"b":"x"} {"b":"x","c":"y"}', '{"a":"x"} {"b":1}'
    ),
    "additional alone": case(
        {"type": "object", "additionalProperties": INT}, '{} {"a":1,"b":2}', '{"a":"x"} {"a":null}'
    ),
    "additional excludes required names": case(
        {"type": "object", "required": ["a"], "additionalProperties": INT},
        '{"a":1} {"a":1,"b":2}',
        '{"a":"x"} {"b":1} {"a":1,"a":1}',
    ),
    "names excluded with prefixes": case(
        {**obj(foo=INT, foobar=INT, bar=INT), "additionalProperties": BOOL},
        '{"foo":1,"fo":true} {"foob":true} {"foobarx":true} {"x":true,"ba":false}',
        '{"foo":true} {"foobar":true} {"bar":true} {"fo":1}',
    ),
    "patternProperties": case(
        {"type": "object", "patternProperties": {"^x-": STR}},
        '{} {"x-a":"1"} {"x-":"","x-b":"2"}',
        '{"x-a":1}',
        '{"y":1}',
    ),
    "patternProperties, others by schema": case(
        {"type": "object", "patternProperties": {r"^\d+$": INT}, "additionalProperties": STR},
        '{"12":1} {"a":"x","1":2} {"1a":"x"}',
        '{"12":"x"} {"a":1}',
    ),
    "patternProperties with properties": case(
        {**obj("xa", xa={"minimum": 5}, b=STR), "patternProperties": {"^x": INT}, "additionalProperties": False},
        '{"xa":5} {"xa":7,"b":"s","xb":1}',
        '{"xa":4} {"xa":5.5} {"xb":1} {"xa":5,"xb":"s"} {"xa":5,"c":1}',
    ),
    "two patterns": case(
        {"type": "object", "patternProperties": {"^a": {"minimum": 5}, "z$": INT}, "additionalProperties": False},
        '{"a":5.5} {"bz":1} {"az":7}',
        '{"az":5.5} {"az":4} {"a":1} {"bz":1.5} {"b":1}',
    ),
    "propertyNames pattern": case(
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, '{} {"abc":1}', '{"A":1} {"":1}'
    ),
    "propertyNames enum": case(
        {"type": "object", "propertyNames": {"enum": ["a", "b", 1]}}, '{"a":1} {"a":1,"b":2}', '{"c":1}'
    ),
    "propertyNames with properties": case(
        {**obj(a=INT, bad=INT), "propertyNames": {"maxLength": 1}, "additionalProperties": True},
        '{"a":1,"b":2}',
        '{"bad":1} {"a":1,"cc":1}',
    ),
    "propertyNames anyOf": case(
        {"type": "object", "propertyNames": {"anyOf": [{"const": "a"}, {"pattern": "^x"}]}}, '{"a":1,"xy":2}', '{"b":1}'
    ),
    "propertyNames false": case({"type": "object", "propertyNames": False}, "{}", '{"a":1}'),
    "minProperties of declared": case(
        {**obj(a=INT, b=INT, c=INT), "minProperties": 2},
        '{"a":1,"b":2} {"a":1,"c":2} {"b":1,"c":2} {"a":1,"b":2,"c":3}',
        '{} {"a":1} {"c":1}',
    ),
    "both counts, with required": case(
        {**obj("b", a=INT, b=INT, c=INT), "minProperties": 2, "maxProperties": 2},
        '{"a":1,"b":2} {"b":1,"c":2}',
        '{"b":1} {"a":1,"c":2} {"a":1,"b":2,"c":3}',
    ),
    "minProperties 1": case({"type": "object", "minProperties": 1}, '{"a":1} {"a":1,"b":2}', "{}"),
    "maxProperties of any": case({"type": "object", "maxProperties": 2}, '{} {"a":1,"b":2}', '{"a":1,"b":2,"c":3}'),
    "maxProperties 0": case({"type": "object", "maxProperties": 0}, "{}", '{"a":1}'),
    "maxProperties with additional": case(
        {**obj("a", a=INT), "additionalProperties": INT, "maxProperties": 2},
        '{"a":1} {"a":1,"b":2}',
        '{"a":1,"b":2,"c":3} {"b":1}',
    ),
    "minProperties of which one may be additional": case(
        {**obj(a=INT), "additionalProperties": INT, "minProperties": 2},
        '{"a":1,"b":2} {"a":1,"b":1,"c":2}',
        '{"a":1} {"x":1,"x":2}',  # The last one has a single property.
    ),
    "dependentRequired": case(
        {**obj(card=INT, address=STR, name=STR), "dependentRequired": {"card": ["address"]}},
        '{} {"name":"n"} {"card":1,"address":"x"} {"address":"x"}',
        '{"card":1} {"card":1,"name":"n"}',
    ),
    "dependencies of draft 7": case(
        {**obj(a=INT, b=INT), "dependencies": {"a": ["b"], "b": {"maxProperties": 2}}},
        '{"a":1,"b":2} {"b":1} {}',
        '{"a":1}',
    ),
    "dependentSchemas": case(
        {**obj(a=INT, b={}), "dependentSchemas": {"a": {"properties": {"b": STR}, "required": ["b"]}}},
        '{"a":1,"b":"x"} {"b":5} {}',
        '{"a":1} {"a":1,"b":5}',
    ),
    "property false": case({**obj(a=INT), "properties": {"a": INT, "b": False}}, '{"a":1}', '{"b":1} {"a":1,"b":1}'),
    "property true": case(obj("a", a=True), '{"a":null} {"a":{}}', "{}"),
    "property impossible": case(obj(a=INT, b={"allOf": [INT, STR]}), '{"a":1} {}', '{"b":1}'),
    "not required": case({**obj(a=INT, b=INT), "not": {"required": ["b"]}}, '{} {"a":1}', '{"b":1} {"a":1,"b":2}'),
    "no properties": case({"type": "object", "properties": {}}, "{}", "[]", '{"a":1}'),
    "names like the common rules": case(
        obj("root", "value", "string", root=INT, value=STR, string=BOOL, char=INT),
        '{"root":1,"value":"v","string":true,"char":1}',
        '{"root":1}',
    ),
}

ARRAYS = {
    "items": case({"type": "array", "items": INT}, "[] [1] [1,2,_3]", '["a"] [1,"a"] [1,]'),
    "items false": case({"type": "array", "items": False}, "[]", "[1]"),
    "minItems": case({"type": "array", "items": INT, "minItems": 2}, "[1,2] [1,2,3]", "[] [1]"),
    "minItems without items": case({"type": "array", "minItems": 1}, '[1] ["a",{}]', "[]"),
    "maxItems": case({"type": "array", "items": INT, "maxItems": 2}, "[] [1] [1,2]", "[1,2,3]"),
    "maxItems 0": case({"type": "array", "maxItems": 0}, "[]", "[1]"),
    "maxItems 500": Case(
        {"type": "array", "items": INT, "maxItems": 500},
        ("[]", f"[{','.join('1' * 500)}]"),
        (f"[{','.join('1' * 501)}]",),
    ),
    "minItems 2500": Case(
        {"type": "array", "items": INT, "minItems": 2500},
        (f"[{','.join('1' * 2500)}]",),
        (f"[{','.join('1' * 2499)}]",),
    ),
    "prefixItems": case({"type": "array", "prefixItems": [INT, STR]}, '[] [1] [1,"a"] [1,"a",null]', '["a"] [1,2]'),
    "prefixItems, some of them": case(
        {"type": "array", "prefixItems": [INT, STR, BOOL], "minItems": 1, "items": False},
        '[1] [1,"a"] [1,"a",true]',
        '[] ["a"] [1,"a",true,1]',
    ),
    "prefixItems and items": case(
        {"type": "array", "prefixItems": [INT], "items": STR}, '[] [1] [1,"a","b"]', '["a"] [1,2]'
    ),
    "prefixItems and minItems beyond": case(
        {"type": "array", "prefixItems": [INT], "items": STR, "minItems": 3}, '[1,"a","b"]', '[1,"a"] [1]'
    ),
    "prefixItems and maxItems below": case(
        {"type": "array", "prefixItems": [INT, STR, BOOL], "maxItems": 2}, '[] [1] [1,"a"]', '[1,"a",true]'
    ),
    "prefixItems impossible": case({"type": "array", "prefixItems": [INT, False]}, "[] [1]", "[1,2]"),
    "items as a list": case(
        {"type": "array", "items": [INT, STR], "additionalItems": False}, '[1,"a"] [1]', '["a"] [1,"a",2]'
    ),
    "contains": case({"type": "array", "contains": INT}, '[1] ["a",1] [1,"a",2]', '[] ["a"]'),
    "contains with items": case(
        {"type": "array", "items": {"type": ["integer", "string"]}, "contains": STR},
        '["a"] [1,"a",2]',
        "[] [1,2] [null]",
    ),
    "minContains 2": case(
        {"type": "array", "items": INT, "contains": {"const": 1}, "minContains": 2}, "[1,1] [1,2,1]", "[1] [1,2]"
    ),
    "minContains 0": case({"type": "array", "contains": STR, "minContains": 0}, "[] [1]", "{}"),
    "uniqueItems of an enum": case(
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        '[] ["a"] ["c","a"] ["a","b","c"]',
        '["a","a"] ["a","b","a"] ["d"]',
    ),
    "uniqueItems with counts": case(
        {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 1, "maxItems": 2},
        "[1] [3,2]",
        "[] [1,1] [1,2,3]",
    ),
    "uniqueItems of one constant twice": case(
        {"type": "array", "items": {"anyOf": [{"const": 1}, {"enum": [1, 2]}]}, "uniqueItems": True},
        "[] [1] [2,1]",
        "[1,1] [1,2,1]",
    ),
    "uniqueItems of one": case({"type": "array", "items": INT, "uniqueItems": True, "maxItems": 1}, "[] [5]", "[5,5]"),
    "uniqueItems false": case({"type": "array", "items": INT, "uniqueItems": False}, "[1,1]", '["a"]'),
}

REFERENCES = {
    "$defs": case({"$defs": {"n": INT}, "$ref": "#/$defs/n"}, "1", '"a"'),
    "recursive root": case(
        {**obj("v", v=INT, next={"$ref": "#"})},
        '{"v":1} {"v":1,"next":{"v":2,"next":{"v":3}}}',
        '{"v":1,"next":1} {"next":{"v":1}}',
    ),
    "recursive array": case({"type": "array", "items": {"$ref": "#"}}, "[] [[],[[]]]", "[1] {}"),
    "mutual recursion": case(
        {
            "$defs": {
                "a": obj("b", b={"$ref": "#/$defs/b"}),
                "b": {"type": ["object", "null"], "properties": {"a": {"$ref": "#/$defs/a"}}},
            },
            "$ref": "#/$defs/a",
        },
        '{"b":null} {"b":{"a":{"b":null}}} {"b":{}}',
        '{} {"b":{"a":{}}} {"b":1}',
    ),
    "recursion through anyOf": case(
        {"$defs": {"e": {"anyOf": [INT, {"type": "array", "items": {"$ref": "#/$defs/e"}}]}}, "$ref": "#/$defs/e"},
        "1 [1,[2,[]]]",
        '"a" [null]',
    ),
    "pointer escapes": case(
        {
            "$defs": {"a/b": INT, "c~d": STR, "e%f": BOOL, "g h": {"type": "null"}},
            "anyOf": [
                {"$ref": "#/$defs/a~1b"},
                {"$ref": "#/$defs/c~0d"},
                {"$ref": "#/$defs/e%25f"},
                {"$ref": "#/$defs/g%20h"},
            ],
        },
        '1 "a" true null',
        "1.5 []",
    ),
    "pointer into a list": case(
        {"prefixItems": [INT, {"$ref": "#/prefixItems/0"}], "type": "array", "minItems": 2, "items": False},
        "[1,2]",
        '[1,"a"]',
    ),
    "anchor": case({"$defs": {"x": {"$anchor": "num", **INT}}, "$ref": "#num"}, "1", '"a"'),
    "id of the root": case({"$id": "https://e.x/s", "$defs": {"n": INT}, "$ref": "https://e.x/s#/$defs/n"}, "1", '"a"'),
    "siblings of $ref": case({"$defs": {"n": INT}, "$ref": "#/$defs/n", "minimum": 5}, "5 99", '4 "a"'),
    "optional recursion that never ends": case(
        {**obj(a=INT, b={"$ref": "#/$defs/loop"}), "$defs": {"loop": obj("x", x={"$ref": "#/$defs/loop"})}},
        '{"a":1} {}',
        '{"b":{}}',
    ),
    "anyOf with an endless branch": case(
        {"anyOf": [STR, {"$ref": "#/$defs/loop"}], "$defs": {"loop": obj("x", x={"$ref": "#/$defs/loop"})}},
        '"a"',
        "{} 1",
    ),
    "pydantic recursive model": case(
        {
            "$defs": {
                "Node": {
                    "properties": {
                        "name": STR,
                        "children": {"default": [], "items": {"$ref": "#/$defs/Node"}, "type": "array"},
                        "parent": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "default": None},
                    },
                    "required": ["name"],
                    "title": "Node",
                    "type": "object",
                }
            },
            "$ref": "#/$defs/Node",
        },
        '{"name":"a"} {"name":"a","children":[{"name":"b","parent":null}],"parent":{"name":"c"}}',
        '{"children":[]} {"name":"a","children":[1]} {"name":"a","parent":1}',
    ),
}

CAT = obj("kind", "lives", kind={"const": "cat"}, lives=INT)
DOG = obj("kind", "bark", kind={"const": "dog"}, bark=STR)

COMBINATIONS = {
    "anyOf types": case({"anyOf": [INT, STR, {"type": "null"}]}, '1 "a" null', "1.5 true"),
    "anyOf overlapping": case(
        {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "integer", "maximum": 7}]}, "5 6 7 0 100"
    ),
    "anyOf of objects": case({"anyOf": [obj("a", a=INT), obj("b", b=INT)]}, '{"a":1} {"b":1}', '{} {"a":"x"}'),
    "anyOf with siblings": case(
        {"type": "string", "anyOf": [{"maxLength": 1}, {"pattern": "^x"}]}, '"" "a" "xyz"', '"ab" 1'
    ),
    "anyOf with true": case({"anyOf": [INT, True]}, "1 [] null"),
    "anyOf with false": case({"anyOf": [INT, False]}, "1", '"a"'),
    "anyOf with an impossible branch": case({"anyOf": [INT, {"allOf": [STR, INT]}]}, "1", '"a"'),
    "anyOf of one": case({"anyOf": [INT]}, "1", '"a"'),
    "anyOf adds to properties": case(
        {**obj("a", a=INT, b=INT, c=INT), "anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
        '{"a":1,"b":2} {"a":1,"c":3} {"a":1,"b":2,"c":3}',
        '{"a":1} {"b":1}',
    ),
    "oneOf types": case({"oneOf": [INT, STR]}, '1 "a"', "1.5 null"),
    "oneOf constants": case(
        {"oneOf": [{"const": 1, "title": "one"}, {"const": 2}, {"enum": ["x", "y"]}]}, '1 2 "x"', '3 "z"'
    ),
    "oneOf discriminated": case(
        {"oneOf": [CAT, DOG], "discriminator": {"propertyName": "kind"}},
        '{"kind":"cat","lives":9} {"kind":"dog","bark":"woof"}',
        '{"kind":"cat","bark":"x"} {"kind":"cow"}',
    ),
    "oneOf by the names generated": case(
        {"oneOf": [obj("a", a=INT), obj("b", b=INT)]}, '{"a":1} {"b":1}', '{} {"a":"x"} {"a":1,"b":1}'
    ),
    "oneOf by closed names": case(
        {"oneOf": [{**obj(name, **{name: INT}), "additionalProperties": False} for name in "ab"]},
        '{"a":1} {"b":1}',
        '{} {"a":1,"b":1}',
    ),
    "oneOf ranges": case(
        {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 7}]}, "3 7 -1 10", "4 6"
    ),
    "oneOf patterns": case(
        {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}, '"a" "bx"', '"c" ""'
    ),
    "oneOf array lengths": case(
        {"oneOf": [{"type": "array", "items": INT, "maxItems": 1}, {"type": "array", "items": INT, "minItems": 3}]},
        "[] [1] [1,2,3]",
        "[1,2]",
    ),
    "oneOf first items": case(
        {"oneOf": [{"type": "array", "prefixItems": [{"const": n}], "minItems": 1} for n in ("a", "b")]},
        '["a"] ["b",1]',
        '[] ["c"]',
    ),
    "oneOf nested constants": case(
        {"oneOf": [obj("h", h=obj("t", t={"const": n})) for n in (1, 2)]},
        '{"h":{"t":1}} {"h":{"t":2}}',
        '{"h":{"t":3}} {"h":{}}',
    ),
    "oneOf with null": case({"oneOf": [{"type": "null"}, obj("a", a=INT)]}, 'null {"a":1}', "{} 1"),
    "allOf types": case({"allOf": [{"type": ["integer", "string"]}, {"type": ["string", "null"]}]}, '"a"', "1 null"),
    "allOf number and integer": case({"allOf": [NUM, INT]}, "1", "1.5"),
    "allOf objects": case(
        {"allOf": [obj("a", a=INT), obj(b=STR)]}, '{"a":1} {"a":1,"b":"x"}', '{} {"b":"x"} {"a":1,"b":2}'
    ),
    "allOf keeps optional properties optional": case(
        {"allOf": [obj(a=INT), obj("b", b=INT)]}, '{"b":1} {"a":1,"b":2}', '{"a":1}'
    ),
    "allOf same property": case(
        {"allOf": [obj(a={"minimum": 3}), obj("a", a={"type": "integer", "maximum": 5})]},
        '{"a":3} {"a":5}',
        '{"a":2} {"a":6} {} {"a":"x"}',
    ),
    "allOf with closed names": case(
        {"allOf": [{**obj(a=INT), "additionalProperties": False}, obj(a={"minimum": 2}, b=INT)]},
        '{} {"a":2}',
        '{"a":1} {"b":1}',
    ),
    "allOf with additional by schema": case(
        {"allOf": [{**obj(a=INT), "additionalProperties": INT}, obj(b={"minimum": 3})]},
        '{"a":1,"b":3}',
        '{"b":"x"} {"b":2} {"b":3.5}',
    ),
    "allOf of anyOf": case(
        {
            "allOf": [
                {"anyOf": [INT, STR]},
                {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 5}]},
            ]
        },
        '5 "ab"',
        '4 "abc" null',
    ),
    "allOf arrays": case(
        {
            "allOf": [
                {"type": "array", "items": {"minimum": 1}, "minItems": 1},
                {"items": {"type": "integer", "maximum": 3}, "maxItems": 2},
            ]
        },
        "[1] [3,2]",
        "[] [0] [4] [1,1,1] [1.5]",
    ),
    "allOf prefixItems with items": case(
        {
            "type": "array",
            "allOf": [{"prefixItems": [INT, INT]}, {"items": {"minimum": 5}}],
            "minItems": 3,
            "maxItems": 3,
        },
        "[5,6,7]",
        "[4,5,6] [5,6,4] [5.5,5,5]",
        "",
    ),
    "allOf empty": case({"allOf": [{}, True], "type": "integer"}, "1", '"a"'),
    "not type": case({"not": {"type": ["object", "array"]}}, '1 "a" null', "{} []"),
    "not number": case({"type": ["number", "string"], "not": {"type": "number"}}, '"a"', "1 1.5"),
    "not null constant": case({"type": ["null", "string"], "not": {"const": None}}, '"a"', "null"),
    "not true constant": case({"type": ["boolean", "string"], "not": {"const": True}}, 'false "a"', "true"),
    "not an irrelevant constant": case({"type": "string", "not": {"const": 5}}, '"a"', "5"),
    "not false": case({"not": False, "type": "null"}, "null", "1"),
    "deep allOf": case({"allOf": [{"allOf": [{"allOf": [INT]}]}, {"maximum": 3}]}, "3", '4 "a"'),
}
