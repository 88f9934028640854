from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dpsynth_platform.errors import ConfigurationError
from dpsynth_platform.lineage.producers import add_token, load_producers, whose


def test_tokens_are_kept_as_hashes_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    tokens = [add_token(file, producer) for producer in ("search", "reviews", "search")]
    assert len(set(tokens)) == 3
    text = file.read_text()
    assert not any(token in text for token in tokens)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    producers = load_producers(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [whose(token, producers) for token in tokens] == ["search", "reviews", "search"]
    for stranger in ("", "x", producers[0].digest, tokens[0][:-1], tokens[0] + "\udcff"):
        assert whose(stranger, producers) is None


def test_lines_of_another_form_are_refused_without_being_quoted(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# nobody yet\n\n")
    with pytest.raises(ConfigurationError, match="dpsynth lineage token"):
        load_producers(file)
    add_token(file, "search")
    file.write_text(file.read_text().rstrip("\n"))
    add_token(file, "reviews")
    assert [item.name for item in load_producers(file)] == ["search", "reviews"]
    file.write_text("search: plainsecret\n")
    with pytest.raises(ConfigurationError, match="line 1; accepted") as refused:
        load_producers(file)
    assert "plainsecret" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="no such file"):
        load_producers(tmp_path / "none")
    with pytest.raises(ConfigurationError, match="accepted: up to 100 letters"):
        add_token(file, "a b")
