"""Names and reasons: which may be recorded, and who acts."""

import pytest

from dpsynth_platform.cli.terminal import plain
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.people import acting, person_key, recorded, recorded_name, same_person
from dpsynth_platform.foundation.settings import Settings

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
    assert recorded_name(text.rstrip("\u200d"), "NAME") == acting(text.rstrip("\u200d"), "login")


@pytest.mark.parametrize(
    "name",
    [
        "Рита",
        "Ρίτα",
        "Renée Łuczak-Ørsted",
        "山田Taro",
        "김Kim",
        "rita@example.org",
        "Nguyễn Văn",
        "ʻOkina",
        "वि\u200dक",
    ],
)
def test_a_name_is_written_in_one_script(name):
    assert acting(name, "login") == Settings.from_environment({"DPSYNTH_USER": name}).user == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("R\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}ta", "mixes Cyrillic and Latin letters"),
        ("Rita Рита", "mixes Cyrillic and Latin letters"),
        ("Rit\N{GREEK SMALL LETTER ALPHA}", "mixes Greek and Latin letters"),
        ("\N{MATHEMATICAL BOLD CAPITAL R}it\N{MATHEMATICAL BOLD SMALL ALPHA}", "mixes Greek and Latin"),
        ("\N{CHEROKEE LETTER SI}\N{CHEROKEE LETTER GO}", "letters outside of the recommended scripts"),
        ("Ada\N{COMBINING GRAPHEME JOINER}", "invisible characters"),
        ("A\N{ZERO WIDTH JOINER}da", "invisible characters"),
        ("Ada\N{VARIATION SELECTOR-16}", "invisible characters"),
        ("Ada\N{RIGHT-TO-LEFT MARK}", "control characters"),
        ("\N{SOFT HYPHEN}Ada", "control characters"),
        ("Ada\N{HANGUL FILLER}", "invisible characters"),
    ],
)
def test_no_name_mixes_scripts_or_hides_characters(name, why):
    with pytest.raises(ConfigurationError, match=f"^--as: .*{why}.*accepted: "):
        acting(name, "login")
    with pytest.raises(ConfigurationError, match=r"^DPSYNTH_USER: "):
        Settings.from_environment({"DPSYNTH_USER": name})
    if why != "control characters":
        assert recorded(name, "--reason") == name, "a reason is no name"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("aca", "аса"),  # wholly Cyrillic
        ("bob", "ВОВ"),  # in capitals only
        ("bob", "вов"),  # whose capitals look alike
        ("cop", "СОР"),
        ("Iva", "ІVА".replace("V", "Ѵ")),
        ("Avva", "Αννα"),  # wholly Greek
        ("gigi", "ɡıɡı"),  # other Latin letters
        ("user1", "user\N{ARABIC-INDIC DIGIT ONE}"),
        ("Наташа", "НАТАША"),
        ("alice", "aIice"),  # ASCII, as it is written
        ("ana1", "anal"),
        ("BOB", "B0B"),
        ("Bo B", "bо\u200bВ"),
    ],
)
def test_names_that_look_alike_are_one_persons(one, other):
    assert same_person(one, other)
    assert same_person(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ada", "Bo"),
        ("ivan", "иван"),
        ("José", "Jose"),
        ("Рита", "Рина"),
        ("rn", "m"),
        ("Ωmega", "omega"),
    ],
)
def test_other_names_are_other_persons(one, other):
    assert not same_person(one, other)


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
    with pytest.raises(ConfigurationError, match=r"--as: .* is empty"):
        acting(nothing, "login")
    assert recorded(nothing, "--reason", optional=True) == nothing
    assert acting(None, "login") == "login"


@pytest.mark.parametrize("unseen", ["\u034f", "\ufe0f", "\u3164", "\u115f", "\u2800", "\U000e0101", "\u200d", " "])
def test_what_leaves_no_trace_on_a_screen_makes_no_other_person(unseen):
    assert person_key(f"bo{unseen}b") == person_key("bob")
    assert person_key(unseen) == ""
