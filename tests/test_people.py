"""Names and reasons: which may be recorded, and who acts."""

import pytest

from dpsynth_platform.errors import ConfigurationError
from dpsynth_platform.people import acting, person_key, recorded
from dpsynth_platform.settings import Settings
from dpsynth_platform.terminal import plain

# Escapes, line breaks (of Unicode, too), reversed writing, an invisible mark, a byte that is no character.
CONTROLS = [
    "\x1b[31m",
    "\n",
    "\r",
    "\t",
    "\x00",
    "\x7f",
    "\x9b",
    "\u2028",
    "\u2029",
    "\u202e",
    "\u2066",
    "\ufeff",
    "\udc80",
]


@pytest.mark.parametrize(
    "text", ["Ada Lovelace", "زهرا\u200cسادات", "O'Brien-Müller", "李明", "wave 3: 4 -> 5", "🙂\u200d"]
)
def test_plain_words_are_recorded_as_they_are(text):
    assert recorded(text, "--reason") == text
    assert acting(text, "login") == text


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
def test_control_characters_are_refused_and_shown_harmlessly(control):
    for optional in (False, True):
        with pytest.raises(ConfigurationError, match=r"--reason: .* control characters") as caught:
            recorded(f"third {control}wave", "--reason", optional=optional)
        assert control not in str(caught.value)
    with pytest.raises(ConfigurationError, match="DPSYNTH_USER: "):
        Settings.from_environment({"DPSYNTH_USER": f"Ada{control}"})
    assert plain(f"third {control}wave") == (
        f"third {control}wave" if control in "\n\t" else f"third {chr(0xFFFD)}{control[1:]}wave"
    )


def test_what_is_too_long_is_refused_and_not_shown():
    assert recorded("a" * 1000, "--reason") == "a" * 1000
    with pytest.raises(ConfigurationError) as caught:
        recorded("a" * 1001, "--reason")
    assert str(caught.value) == "--reason: 1001 characters; accepted: at most 1000"


@pytest.mark.parametrize("nothing", ["", " ", "\u3000", "\u200d"])
def test_what_says_nothing_is_no_name(nothing):
    with pytest.raises(ConfigurationError, match=r"--as: .* says nothing"):
        acting(nothing, "login")
    assert recorded(nothing, "--reason", optional=True) == nothing
    assert acting(None, "login") == "login"


@pytest.mark.parametrize("unseen", ["\u034f", "\ufe0f", "\u3164", "\u115f", "\u2800", "\U000e0101", "\u200d", " "])
def test_what_leaves_no_trace_on_a_screen_makes_no_other_person(unseen):
    assert person_key(f"bo{unseen}b") == person_key("bob")
    assert person_key(unseen) == ""
