from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_broker import FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        yield fake
