"""docs/contract.md is up to date: every row occurs once, and the tests that it names exist."""

import re
from pathlib import Path

from localchat.serving.api import embeddings
from localchat.serving.core.params import UNSUPPORTED

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "contract.md").read_text(encoding="utf-8")
# The number of rows in each group.
ROWS = {"K": 42, "T": 48, "V": 50, "G": 43, "C": 39, "L": 42, "H": 21, "M": 14, "A": 12}

TABLE = re.findall(r"^\| ([A-Z]\d+) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)


def test_every_row_occurs_once_and_in_order():
    assert [row for row, _, _ in TABLE] == [f"{group}{i}" for group, n in ROWS.items() for i in range(1, n + 1)]


def test_rows_name_their_tests_or_a_reason():
    tests = r"(client: `test_\w+`|`test_\w+::test_\w+`(, `test_\w+::test_\w+`)*)"
    wrong = [row for row, _, shown_by in TABLE if not re.fullmatch(rf"{tests}|no: \S.{{10,}}", shown_by)]
    assert wrong == []
    assert [row for row, behaviour, _ in TABLE if not behaviour.strip()] == []


def test_named_tests_exist():
    named = {name for *_, shown_by in TABLE for name in re.findall(r"`(test_\w+)(?:::(test_\w+))?`", shown_by)}
    assert named
    texts = {path.stem: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    assert [(file, name) for file, name in named if not re.search(f"^def {name or 'test_'}", texts[file], re.M)] == []


def test_page_lists_the_fields_that_are_refused():
    paragraph = PAGE.partition("A field of a feature")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == {*UNSUPPORTED, *embeddings.UNSUPPORTED}
