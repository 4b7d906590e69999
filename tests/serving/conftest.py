"""Fixtures of the tests of the server."""

from collections.abc import Iterator

import pytest

from tests.support.serving import Serving, serving


@pytest.fixture(scope="module")
def running() -> Iterator[Serving]:
    """A server with a fake model that repeats the last message."""
    with serving() as running:
        yield running
