"""One reader for the YAML that people write: nothing is rewritten in silence, and nothing takes for ever."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpsynth_platform.foundation import yaml_files
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.yaml_files import dump, dump_inline, parse_value, plain_number, read_yaml, text_of

TEXTS = (
    *("01", "08", "010", "1e3", ".5", "1.", "1.10", "+1", "-0", "1_000", "0o17", "0x1F", "0b1", "12:30", "1:2:3.4"),
    *("NO", "no", "yes", "on", "off", "y", "true", "True", "null", "Null", "~", "", "=", "<<", ".inf", "-.INF"),
    *("2026-01-31", "2026-02-30", "2026-01", "a: b", "#x", " x", "*a", "&a", "!b", "- a", "x\ny", "\t", "é", "\u2028"),
    *("\0", ".nan", "\x7f", "\x85", "a,b", "{", "[x]", "'", '"', "\\"),
)


def refused(text: str) -> str:
    with pytest.raises(ContractError) as caught:
        parse_value(text)
    assert caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[NO, SE]", ["NO", "SE"]),
        ("[yes, no, on, off, y]", ["yes", "no", "on", "off", "y"]),
        ("[12:30, 1:2:3]", ["12:30", "1:2:3"]),
        (
            "[2026-02-30, 2026-01-31, 2001-12-14t21:59:43.10-05:00]",
            ["2026-02-30", "2026-01-31", "2001-12-14t21:59:43.10-05:00"],
        ),
        ("[=, 1st, 9E, 0.1.2, 1-2, --1, 'x', '01']", ["=", "1st", "9E", "0.1.2", "1-2", "--1", "x", "01"]),
        ("[1, -3, 0, +4, 1_000, 12345678901234567890]", [1, -3, 0, 4, 1000, 12345678901234567890]),
        ("[1.0, 1.10, .5, 1., 1e3, 1E-3, -2.5e+4, 1_0.5]", [1.0, 1.1, 0.5, 1.0, 1000.0, 0.001, -25000.0, 10.5]),
        ("[true, True, FALSE]", [True, True, False]),
        ("[null, ~, Null]", [None, None, None]),
        ("{a: , b: 1, 1: x}", {"a": None, "b": 1, 1: "x"}),
        (
            "first: &first {a: 1, b: 2}\nsecond: {<<: *first, a: 3}\nthird: *first",
            {"first": {"a": 1, "b": 2}, "second": {"a": 3, "b": 2}, "third": {"a": 1, "b": 2}},
        ),
        (
            "a: &x {p: 1}\nb: &y {p: 2, q: 3}\nc: {<<: [*x, *y], '<<': 4}",
            {"a": {"p": 1}, "b": {"p": 2, "q": 3}, "c": {"<<": 4, "p": 1, "q": 3}},
        ),
        ("%YAML 1.1\n---\na: NO", {"a": "NO"}),
        ("\ufeffa: 1", {"a": 1}),
        ("", None),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: Any) -> None:
    found = parse_value(text)
    assert found == value
    kinds = [type(plain_number(item)) for item in found] if isinstance(found, list) else []
    assert kinds == ([type(item) for item in value] if isinstance(value, list) else [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[01]", "line 1: 01 is read differently by versions of YAML; accepted: '01' in quotes for a text, or a dec"),
        ("min: 01000", "01000 is read differently"),
        ("a: 1\nb: 08", "line 2: 08 is read differently"),
        ("[0x1F]", "'0x1F' in quotes"),
        ("[0o17]", "'0o17' in quotes"),
        ("[-007]", "'-007' in quotes"),
        (".inf", ".inf is no finite number; accepted: a number, or quotes for a text"),
        ("-.Inf", "no finite number"),
        (".NaN", "no finite number"),
        ("1e999", "1e999 is no finite number"),
        ("9" * 10_000, "a number of 10,000 characters; accepted: up to 300"),
        ("0." + "1" * 5000, "a number of 5,002 characters"),
        ("!!str 1", "the tag '!!str'; accepted: none (quote what is a text)"),
        ("!x {a: 1}", "the tag '!x'"),
        ("!!python/object/apply:os.system ['true']", "the tag '!!python/object/apply:os.system'"),
        ("{a: 1, 'a': 2}", "duplicate key 'a', first in line 1; accepted: once"),
        ("a: 1\ntrue: 1\nTrue: 2", "line 3: not valid YAML: duplicate key 'True', first in line 2"),
        ("? [a]\n: 1", "a list as a key; accepted: a text"),
        ("<<: 3", "a merge (<<) of something else; accepted: mappings"),
        ("&a [1, *a]", "the alias *a is inside of its own anchor"),
        ("&a {b: {c: *a}}", "the alias *a is inside of its own anchor"),
        ("[*a]", "the alias *a has no anchor before it"),
        ("[" * 100_000, "more than 40 levels deep; accepted: fewer"),
        ("{a: " * 41, "more than 40 levels deep"),
        ("- " * 50 + "a", "more than 40 levels deep"),
        (
            "a: &a " + "[" * 30 + "]" * 30 + "\nb: &b [*a]\nc: " + "[" * 9 + "*b" + "]" * 9,
            "line 3: more than 40 levels",
        ),
        ("a: 1\n---\nb: 2", "line 2: a second document; accepted: one"),
        ('"\\ud800"', "not valid YAML: found invalid Unicode character escape code"),
        ("a: b: c", "not valid YAML: mapping values are not allowed"),
        ("[1, 2", "not valid YAML"),
        ("\x00", "not valid YAML"),
        ("\ud800", "not valid YAML (UnicodeEncodeError)"),
    ],
)
def test_what_would_be_guessed_or_cannot_end_well_is_refused(text: str, said: str) -> None:
    assert said in refused(text)


def test_an_alias_bomb_is_counted_before_it_is_made() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
    assert "line 6: more than 1,000,000 keys and values, with aliases written out" in refused(bomb)


def test_a_list_as_long_as_a_column_may_have_values_is_read() -> None:
    assert len(parse_value(f"values: [{', '.join(f'value {n}' for n in range(10_000))}]")["values"]) == 10_000


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_is_written_is_read_back(tmp_path: Path, text: str) -> None:
    document = {"a": [text, 1, 1.5, 1e-7, 1e300, True, None], f"key {text}": {"b": text}}
    (tmp_path / "written.yaml").write_text(dump(document), encoding="utf-8")
    assert read_yaml(tmp_path / "written.yaml") == document
    assert parse_value(f"[{dump_inline(text)}, {{a: {dump_inline(text)}}}]") == [text, {"a": text}]


def test_a_number_in_a_draft_is_as_it_was_written() -> None:
    assert [dump_inline(value) for value in parse_value("[1.10, +1, 3, 0.5]")] == ["1.10", "+1", "3", "0.5"]
    assert dump_inline(parse_value("[1.10, 1_000]")) == "[1.1, 1000]"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("1.10", "1.10 without quotes is a number, not a text; accepted: quote it: '1.10'"),
        ("1.0", "quote it: '1.0'"),
        ("1e3", "quote it: '1e3'"),
        ("+1", "quote it: '+1'"),
        ("1_000", "quote it: '1_000'"),
        ("-0", "quote it: '-0'"),
        ("true", "true without quotes is no text; accepted: quote it, in the spelling of the data"),
        ("~", "null without quotes is no text"),
        ("[a]", "a list; accepted: texts or whole numbers"),
    ],
)
def test_what_is_no_text_is_not_made_one(written: str, said: str) -> None:
    with pytest.raises(ValueError, match="accepted") as caught:
        text_of(parse_value(written))
    assert said in str(caught.value)


def test_texts_and_usual_whole_numbers_are_texts() -> None:
    assert [text_of(value) for value in parse_value("[NO, '01', 12:30, 1, -3, 2026-01-31]")] == [
        *("NO", "01", "12:30", "1", "-3", "2026-01-31")
    ]


def of_each_kind(directory: Path) -> dict[str, str]:
    """Places in a directory that are no file, or none that can be read, and what is said of each."""
    (directory / "directory.yaml").mkdir()
    (directory / "dangling.yaml").symlink_to(directory / "nowhere")
    (directory / "loop.yaml").symlink_to(directory / "loop.yaml")
    os.mkfifo(directory / "pipe.yaml")
    (directory / "device.yaml").symlink_to("/dev/zero")
    (directory / "latin.yaml").write_bytes("a: \xe4".encode("latin-1"))
    (directory / "utf16.yaml").write_text("a: 1", encoding="utf-16")
    with (directory / "huge.yaml").open("wb") as file:
        file.truncate(2**40)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / "s.yaml"))
    return {
        "directory": "is a directory",
        "dangling": "a link to a file that does not exist",
        "loop": "too many levels of symbolic links",
        "pipe": "it is a named pipe; accepted: a regular file",
        "device": "it is a device; accepted: a regular file",
        "latin": "cannot be read as UTF-8 text",
        "utf16": "cannot be read as UTF-8 text",
        "huge": "it is larger than 8,388,608 bytes",
        "s": "it is a socket; accepted: a regular file",
        "nowhere": "no such file",
    }


def test_only_regular_files_of_some_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    for name, said in of_each_kind(Path()).items():
        with pytest.raises(ContractError, match=said) as caught:
            read_yaml(Path(f"{name}.yaml"))
        assert str(caught.value).startswith(f"{name}.yaml: ")
    with pytest.raises(ContractError, match=r"x.yaml: cannot be read: it is no text|cannot be read"):
        read_yaml(Path("nul\0x.yaml"))


def test_a_file_that_may_not_be_read_is_its_own_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "closed.yaml"
    path.write_text("a: 1")

    def denied(*_: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(yaml_files, "read_regular", denied)
    with pytest.raises(ContractError, match=r"closed\.yaml: cannot be read: permission denied"):
        read_yaml(path)


def test_a_file_has_as_many_bytes_as_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(tmp_path / "file", 4)


@pytest.mark.parametrize(
    "text",
    [
        "base: &base {a: 1, b: 2}\nmade: {b: 3, c: 4, <<: *base}",
        "x: &x {a: 1, b: 2}\ny: &y {c: 3, a: 4}\nmade: {d: 5, <<: [*x, *y], b: 6}",
    ],
)
def test_merged_keys_stand_where_pyyaml_put_them(tmp_path: Path, text: str) -> None:
    """The order of columns is part of a plan."""
    path = tmp_path / "merged.yaml"
    path.write_text(text)
    expected = yaml.safe_load(text)["made"]
    assert list(read_yaml(path)["made"].items()) == list(expected.items())
