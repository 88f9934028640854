import datetime as dt
import json
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.foundation.errors import GrantRefused
from dpsynth_platform.ledger import grants
from dpsynth_platform.ledger.grants import issue_grant, verify_grant

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw()
NAMED = {
    "plan_digest": "a" * 64,
    "data_digest": "b" * 64,
    "participants_digest": "c" * 64,
    "model_directory": "0123abcd",
}


def grant(**changes):
    return issue_grant(KEY, entry_id="e" * 32, canaries_digest="d" * 64, **(NAMED | changes))


def test_a_grant_gives_back_what_it_names():
    found = verify_grant(grant(), PUBLIC, **NAMED)
    assert found.entry_id == "e" * 32
    assert found.plan_digest == NAMED["plan_digest"]
    assert found.canaries_digest == "d" * 64
    assert found.issued_at < found.expires_at


@pytest.mark.parametrize(
    ("name", "other", "told"),
    [
        ("plan_digest", "0" * 64, "another plan"),
        ("data_digest", "0" * 64, "another data"),
        ("participants_digest", "0" * 64, "another participants"),
        ("model_directory", "elsewhere", "another model directory"),
    ],
)
def test_a_grant_is_for_nothing_else(name, other, told):
    with pytest.raises(GrantRefused, match=told):
        verify_grant(grant(), PUBLIC, **(NAMED | {name: other}))


def test_another_key_does_not_do():
    stranger = Ed25519PrivateKey.generate()
    with pytest.raises(GrantRefused, match="signature"):
        verify_grant(grant(), stranger.public_key().public_bytes_raw(), **NAMED)
    with pytest.raises(GrantRefused, match="cannot be read"):
        verify_grant(grant(), b"short", **NAMED)


@pytest.mark.parametrize("field", ["entry_id", "plan_digest", "expires_at", "model_directory"])
def test_a_changed_field_breaks_the_signature(field):
    document = json.loads(grant())
    document["grant"][field] += "0"
    with pytest.raises(GrantRefused, match="signature"):
        verify_grant(json.dumps(document), PUBLIC, **NAMED)


@given(st.one_of(st.text(), st.binary().map(repr), st.recursive(st.none() | st.text(), st.lists).map(json.dumps)))
def test_garbage_is_refused_safely(text):
    with pytest.raises(GrantRefused):
        verify_grant(text, PUBLIC, **NAMED)


def test_grants_expire(monkeypatch):
    text = grant(lifetime=dt.timedelta(hours=1))
    now = grants._now()
    monkeypatch.setattr(grants, "_now", lambda: now + dt.timedelta(minutes=59))
    verify_grant(text, PUBLIC, **NAMED)
    monkeypatch.setattr(grants, "_now", lambda: now + dt.timedelta(minutes=61))
    with pytest.raises(GrantRefused, match="expired"):
        verify_grant(text, PUBLIC, **NAMED)
    monkeypatch.setattr(grants, "_now", lambda: now - dt.timedelta(hours=1))
    with pytest.raises(GrantRefused, match="future"):
        verify_grant(text, PUBLIC, **NAMED)


@pytest.mark.parametrize(
    "changes",
    [{"plan_digest": "short"}, {"data_digest": "A" * 64}, {"model_directory": "../up"}, {"model_directory": ""}],
)
def test_grants_of_bad_shape_are_not_issued(changes):
    with pytest.raises(GrantRefused):
        grant(**changes)


def test_the_worker_needs_no_database_to_check_a_grant():
    program = (
        "import sys, dpsynth_platform.ledger.grants; "
        "print([name for name in ('sqlalchemy', 'alembic', 'dp_accounting') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
