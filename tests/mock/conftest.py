"""A simulated server for all tests of this folder that only ask."""

from collections.abc import Iterator

import pytest
from tests.mock.asking import QUICK, Answer, Ask, ask

from knee.mock.config import MockConfig
from knee.mock.running import Running, mock_server


@pytest.fixture(scope="session")
def quick_server() -> Iterator[Running]:
    """One server for all tests that only ask."""
    with mock_server(MockConfig(engine=QUICK, model="./tiny", dev_mode=True)) as server:
        yield server


@pytest.fixture
def quick(quick_server: Running) -> Ask:
    """`ask` of the shared server."""

    def shared(path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        return ask(quick_server.url, path, body, headers)

    return shared
