"""The terminal shows what it is given: names are names, whatever a library makes of colons."""

import os
import signal
import sys
import time

import pytest

from dpsynth_platform.cli.terminal import TerminalOutput, listed, workspace


def test_names_are_no_pictures(capfd):
    TerminalOutput(as_json=False).print("paid-by: dpsynth:ledger:c3ca")
    assert "dpsynth:ledger:c3ca" in capfd.readouterr().out


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


class Dropping:
    """Ends the process where Python drops what is raised."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_process_whose_ending_was_dropped_can_still_be_ended(place, monkeypatch):
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: dropped.append(found.exc_type))
    with pytest.raises(SystemExit) as ended, workspace("dpsynth-test-", place):
        Dropping()
        assert len(dropped) == 1 and issubclass(dropped[0], SystemExit)
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the second signal was ignored")
    assert ended.value.code == 128 + signal.SIGTERM
    assert not list(place.iterdir())


def test_an_ending_that_was_dropped_is_raised_again(place, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda found: None)
    with pytest.raises(SystemExit) as ended, workspace("dpsynth-test-", place):
        Dropping()
        time.sleep(60)
        pytest.fail("the signal was lost")
    assert ended.value.code == 128 + signal.SIGTERM
    assert not list(place.iterdir())


def test_it_is_not_raised_where_another_error_is_handled(place, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda found: None)
    tidied = []
    with pytest.raises(SystemExit), workspace("dpsynth-test-", place):
        Dropping()
        try:
            raise ValueError
        except ValueError:
            time.sleep(1)
            tidied.append(True)
        time.sleep(60)
        pytest.fail("the signal was lost")
    assert tidied


def test_a_second_signal_does_not_interrupt_what_tidies_up(place):
    tidied = []
    with pytest.raises(SystemExit) as ended, workspace("dpsynth-test-", place):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            tidied.append(True)
    assert ended.value.code == 128 + signal.SIGTERM
    assert tidied and not list(place.iterdir())


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a, b", ["a", "b"]),
        ('Full name,"x=1,y"," lead"', ["Full name", "x=1,y", " lead"]),
        ('"a ""b""",quo"te', ['a "b"', 'quo"te']),
        (",", ["", ""]),
        ('"a,b', ['"a', "b"]),
    ],
)
def test_values_of_a_list_may_be_in_quotes(text: str, values: list[str]) -> None:
    assert listed([text]) == values
    assert listed([text, "z"]) == [*values, "z"]
