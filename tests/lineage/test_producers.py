from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.lineage.producers import add_token, load_producers, owner_of


def test_tokens_are_kept_as_hashes_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    made = [add_token(file, producer) for producer in ("search", "reviews", "search")]
    assert [item.earlier for item in made] == [0, 0, 1]
    tokens = [item.token for item in made]
    assert len(set(tokens)) == 3
    text = file.read_text()
    assert not any(token in text for token in tokens)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    producers = load_producers(file)
    assert [owner_of(token, producers) for token in tokens] == ["search", "reviews", "search"]
    for stranger in ("", "x", producers[0].digest, tokens[0][:-1], tokens[0] + "\udcff"):
        assert owner_of(stranger, producers) is None


def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    add_token(file, "search")
    for mode in ("0644", "0620"):
        file.chmod(int(mode, 8))
        for use in (load_producers, lambda path: add_token(path, "search")):
            with pytest.raises(ConfigurationError, match=f"its mode is {mode}, so others may use it; chmod 600 "):
                use(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o620, "what others may have done is for a person to judge"
    file.chmod(0o600)
    assert len(load_producers(file)) == 1


def test_a_token_can_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    old, other = add_token(file, "search").token, add_token(file, "reviews").token
    file.write_text(f"# kept\n{file.read_text()}")
    made = add_token(file, "search", replace=True)
    producers = load_producers(file)
    assert made.earlier == 1
    assert [owner_of(token, producers) for token in (old, other, made.token)] == [None, "reviews", "search"]
    assert file.read_text().startswith("# kept\n")


def test_lines_of_another_form_are_refused_without_being_quoted(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# nobody yet\n\n")
    file.chmod(0o600)
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
