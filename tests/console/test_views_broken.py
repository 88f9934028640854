"""What was tampered with shows as broken, with what is broken, and what it says is not shown as true."""

import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from line_cases import storage_of
from view_cases import json_of, release_of

from dpsynth_platform.console.roles import ALLOWED
from dpsynth_platform.console.views import candidates, families, ledger, overview, releases
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import ConfigurationError, NotFound
from dpsynth_platform.foundation.signature import public_pem
from dpsynth_platform.release.attestation import Envelope, release_statement
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.withdrawing import withdraw

pytestmark = pytest.mark.end_to_end
REVIEWER = ALLOWED["reviewer"]


@pytest.fixture
def published(changeable):
    """The deployment, the id of its release of people, and where that lies."""
    release = release_of(changeable.settings, "people")
    return changeable.settings, release, Path(changeable.settings.home / "public" / "people" / release)


def states(settings):
    """What the lists say of each release."""
    found = {row.id: row.state for row in releases.releases(settings, REVIEWER).rows}
    assert found == {row.id: row.state for row in overview.overview(settings, REVIEWER).recent}
    return found


def replaced(path, before, after):
    """Changes a file under its old size and date."""
    known, content = path.stat(), path.read_bytes()
    assert content.count(before) >= 1
    assert len(before) == len(after)
    path.chmod(0o644)
    path.write_bytes(content.replace(before, after, 1))
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))


def test_releases_verify_with_a_key_that_a_program_has(published, tmp_path):
    settings, release, _ = published
    known = verification.public_key(settings)
    file = settings.vault / "signing.key"
    (tmp_path / "key").write_text(file.read_bytes().hex())
    program = tmp_path / "keys.sh"
    program.write_text('[ "$1 $2" = "read signing" ] || exit 3\ncat "${0%/*}/key"\n')
    file.unlink()
    assert states(settings)[release] == "published"  # as one whose signer nobody here knows
    with pytest.raises(ConfigurationError, match="holds no signing key"):
        verification.public_key(settings)
    command = settings.vault / "command"
    command.write_text(f"sh {program}")
    command.chmod(0o600)
    assert verification.public_key(settings) == known
    shown = releases.release(settings, REVIEWER, release)
    assert (shown.row.state, shown.verification.ok) == ("published", True)
    assert known[1] in json_of(shown.verification)


def test_a_changed_dossier_is_broken_and_its_words_are_not_shown(published):
    settings, release, directory = published
    before = releases.release(settings, REVIEWER, release)
    assert (before.row.state, before.verification.ok) == ("published", True)
    assert before.dossier.method == "mst"
    replaced(directory / layout.DOSSIER, b'"method": "mst"', b'"method": "aim"')
    assert states(settings)[release] == "damaged"
    shown = releases.release(settings, REVIEWER, release)
    assert (shown.row.state, shown.dossier, shown.comparison) == ("damaged", None, None)
    assert not shown.verification.ok
    found = {(item.kind, item.file, item.where) for item in shown.verification.problems}
    assert ("hash", layout.DOSSIER, "$.contract") in found
    assert all(item.meaning for item in shown.verification.problems)
    assert '"aim"' not in json_of(shown)
    # What the ledger says of it stands.
    assert shown.row.approved_by == ("reviewer",)
    assert shown.row.guarantee == before.row.guarantee
    assert [item.decision for item in shown.decisions] == ["approved"]


def test_another_release_in_its_place_is_broken(published):
    """A whole release, signed by this very deployment, under the other one's name."""
    settings, release, directory = published
    other = release_of(settings, "visits")
    place = settings.home / "public" / "visits" / other
    shutil.rmtree(place)
    shutil.copytree(directory, place)
    assert states(settings) == {release: "published", other: "damaged"}
    shown = releases.release(settings, REVIEWER, other)
    assert (shown.row.state, shown.dossier, shown.verification.ok) == ("damaged", None, False)
    assert "identity" in {item.kind for item in shown.verification.problems}
    assert not verification.verify(settings, other).ok


def test_what_lies_beside_a_dossier_is_broken_and_the_dossier_is_shown(published):
    settings, release, directory = published
    releases.release(settings, REVIEWER, release)
    table = next((directory / layout.DATA).rglob("*.parquet"))
    content = table.read_bytes()
    replaced(table, content[len(content) // 2 : len(content) // 2 + 4], b"\0\1\2\3")
    # A list does not read the table; the release's own page does, and says so at once.
    assert states(settings)[release] == "published"
    shown = releases.release(settings, REVIEWER, release)
    assert (shown.row.state, shown.verification.ok) == ("damaged", False)
    assert {item.file for item in shown.verification.problems} == {f"{layout.DATA}/{table.name}"}
    assert shown.dossier.method == "mst"
    table.unlink()
    assert states(settings)[release] == "damaged"


def test_a_dossier_that_somebody_else_signed_is_broken(published):
    """Whole by itself, but not under the deployment's key."""
    settings, release, directory = published
    dossier = json.loads((directory / layout.DOSSIER).read_text())
    dossier["mechanism"]["method"] = "aim"
    key = Ed25519PrivateKey.generate()
    (directory / layout.DOSSIER).chmod(0o644)
    (directory / layout.DOSSIER).write_text(json.dumps(dossier))
    (directory / layout.PUBLIC_KEY).write_bytes(public_pem(key.public_key()))
    (directory / layout.ATTESTATION).unlink()
    (directory / layout.ATTESTATION).write_bytes(Envelope.seal(release_statement(directory, dossier), key).to_bytes())
    assert states(settings)[release] == "damaged"
    shown = releases.release(settings, REVIEWER, release)
    assert shown.dossier is None
    assert {item.kind for item in shown.verification.problems} == {"signature"}


def test_a_release_that_is_gone_and_one_that_nobody_recorded(published):
    settings, release, directory = published
    strange = directory.with_name("people-0123456789abcdef")
    shutil.copytree(directory, strange)
    assert states(settings) | {strange.name: "unrecorded"} == states(settings)
    shown = releases.release(settings, REVIEWER, strange.name)
    assert (shown.row.state, shown.row.guarantee, shown.row.approved_by) == ("unrecorded", None, ())
    shutil.rmtree(directory)
    assert states(settings)[release] == "missing"
    shown = releases.release(settings, REVIEWER, release)
    assert (shown.row.state, shown.verification, shown.dossier) == ("missing", None, None)
    with pytest.raises(NotFound, match="its directory is missing"):
        releases.verify(settings, REVIEWER, release)
    with pytest.raises(NotFound, match="there is none"):
        releases.release(settings, REVIEWER, "people-ffffffffffffffff")


def test_a_withdrawn_release_says_so_and_by_whom(published):
    settings, release, directory = published
    withdraw(settings, release, "second reader", "a mistake in the source")
    assert states(settings)[release] == "withdrawn"
    shown = releases.release(settings, REVIEWER, release)
    assert (shown.row.withdrawn.by, shown.row.withdrawn.reason) == ("second reader", "a mistake in the source")
    assert shown.verification.ok
    assert shown.dossier is not None
    # Rows that come back are not as the tombstone says.
    (directory / layout.DATA).mkdir()
    (directory / layout.DATA / "rows.parquet").write_bytes(b"rows")
    assert states(settings)[release] == "withdrawal-unfinished"


def test_verifying_reads_everything_again(published):
    settings, release, _ = published
    first = releases.verify(settings, REVIEWER, release)
    assert (first.ok, first.rows) == (True, 200)
    assert first.key_note.startswith("Signed by this deployment's own key")
    assert releases.release(settings, REVIEWER, release).verification == first


def test_a_changed_candidate_is_none_any_more(changeable):
    settings = changeable.settings
    assert candidates.candidate(settings, REVIEWER, "second").state == "waiting"
    table = next((storage_of(changeable).root / "second").rglob("synthetic/*/table/*.parquet"))
    content = table.read_bytes()
    replaced(table, content[-12:-8], bytes(byte ^ 1 for byte in content[-12:-8]))
    shown = candidates.candidate(settings, REVIEWER, "second")
    assert (shown.state, shown.candidate, shown.audit) == ("none", None, None)
    assert "not what was recorded" in shown.standing


def test_a_rewritten_ledger_does_not_verify(changeable):
    settings = changeable.settings
    whole = ledger.verify(settings, REVIEWER)
    assert (whole.ok, whole.problems, whole.dossiers) == (True, (), 2)
    with sqlite3.connect(settings.home / "ledger" / "ledger.db") as database:
        database.execute(
            "update event set payload = replace(payload, 'as planned', 'as wished') where kind = 'approved'"
        )
    broken = ledger.verify(settings, REVIEWER)
    assert not broken.ok
    assert any("does not match its hash" in problem for problem in broken.problems)
    assert "not as written" in broken.words


def test_another_ledger_in_its_place_is_read_from_its_beginning(changeable):
    """A ledger that was cut back: what was read before is forgotten, and what it records no more is broken."""
    settings = changeable.settings
    known = {row.sequence for row in ledger.entries(settings, REVIEWER, kind="released").rows}
    assert len(known) == 2
    assert set(states(settings).values()) == {"published"}
    with sqlite3.connect(settings.home / "ledger" / "ledger.db") as database:
        database.execute("delete from event where sequence >= ?", (max(known),))
    assert len(ledger.entries(settings, REVIEWER, kind="released").rows) == 1
    assert sorted(states(settings).values()) == ["published", "unrecorded"]


def test_a_contract_that_is_unsound_is_named_and_stops_no_page(changeable):
    settings = changeable.settings
    file = settings.contracts / "second.yaml"
    file.write_text(file.read_text().replace("max_contributions: 2", "max_contributions: none"))
    (settings.families / "broken.yaml").write_text("family: broken\n")
    faults = overview.overview(settings, REVIEWER).faults
    assert len(faults) == 2
    assert any("max_contributions" in fault for fault in faults)
    assert all(fault.startswith(("${DPSYNTH_DEPLOY}/contracts/", "${DPSYNTH_DEPLOY}/families/")) for fault in faults)
    assert str(settings.deploy) not in "".join(faults)
    assert {row.family for row in families.budgets(settings, REVIEWER)} == {"clinic", "tests"}
    with pytest.raises(NotFound, match=r"broken\.yaml"):
        families.family(settings, REVIEWER, "broken")
