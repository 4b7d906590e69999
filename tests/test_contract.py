"""docs/contract.md is up to date: every row occurs once, and the tests that it names exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from localchat.serving.api import embeddings
from localchat.serving.core.params import UNSUPPORTED

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "contract.md").read_text(encoding="utf-8")
# The number of rows in each group.
ROWS = {"K": 42, "T": 48, "V": 50, "G": 43, "C": 39, "L": 42, "H": 18}

TABLE = re.findall(r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
NAMED = sorted({name for _, _, shown_by in TABLE for name in re.findall(r"`(test_\w+(?:::test_\w+)?)`", shown_by)})


def test_every_row_occurs_once_and_in_order():
    assert [row for row, _, _ in TABLE] == [f"{group}{i}" for group, n in ROWS.items() for i in range(1, n + 1)]


def test_rows_name_their_tests_or_a_reason():
    tests = r"(client: `test_\w+`|`test_\w+::test_\w+`(, `test_\w+::test_\w+`)*)"
    wrong = [row for row, _, shown_by in TABLE if not re.fullmatch(rf"{tests}|no: \S.{{10,}}", shown_by)]
    assert wrong == []
    assert [row for row, behaviour, _ in TABLE if not behaviour.strip()] == []


def test_named_tests_exist():
    assert [name for name in NAMED if not exists(*name.partition("::")[::2])] == []


def exists(file: str, function: str) -> bool:
    names = functions_of(file)
    return function in names if function else any(name.startswith("test_") for name in names)


@functools.cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((TESTS / f"{file}.py").read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_page_lists_the_fields_that_are_refused():
    paragraph = PAGE.partition("A field of a feature")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == {*UNSUPPORTED, *embeddings.UNSUPPORTED}


def test_ids_that_tests_cite_are_rows():
    """A test name such as `test_k99_...` must not cite a row that does not exist."""
    rows = {row.lower() for row, _, _ in TABLE}
    cited = {
        id
        for path in TESTS.glob("test_*.py")
        for name in re.findall(r"def test_(\w+)", path.read_text(encoding="utf-8"))
        for id in re.findall(r"(?:^|_)([ktvgclh]\d+)(?=_)", name)
    }
    assert cited <= rows
