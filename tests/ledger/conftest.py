import pytest
from ledger_cases import KEYS, family

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
