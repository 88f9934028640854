"""The terminal shows what it is given: names are names, whatever a library makes of colons."""

from dpsynth_platform.cli.terminal import Shown


def test_names_are_no_pictures(capfd):
    Shown(as_json=False).say("paid-by: dpsynth:ledger:c3ca")
    assert "dpsynth:ledger:c3ca" in capfd.readouterr().out
