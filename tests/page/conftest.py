from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import CHROMIUM, Browser, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium for all tests of a process."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: apt install chromium")
    with chromium() as browser:
        yield browser
