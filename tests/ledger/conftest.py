import pytest
from ledger_cases import KEYS, family
from ledger_forks import Processes

from dpsynth_platform.ledger import Ledger


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger' / 'ledger.db'}"


@pytest.fixture
def ledger(url):
    opened = Ledger(url)
    opened.open_account(family("everyone", mode="family"), KEYS)
    opened.open_account(family("each", mode="per-owner"), KEYS)
    return opened


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    begun = Processes(tmp_path_factory.mktemp("processes"))
    yield begun
    begun.end()
