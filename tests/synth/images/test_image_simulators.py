"""What makes candidates: shapes, glyphs of fonts and a public table, each from numbers only."""

import numpy as np
import pytest

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.synth.images import simulators_deformations as deformations
from dpsynth_platform.synth.images.encoders import AveragedPixels
from dpsynth_platform.synth.images.foundations import Genes
from dpsynth_platform.synth.images.simulators import Fonts, Ink, font_files, glyphs_of
from dpsynth_platform.synth.images.simulators_deformations import Deformation, read_at
from dpsynth_platform.synth.images.simulators_shapes import Shapes
from dpsynth_platform.synth.images.simulators_table import PublicTable

ENCODER = AveragedPixels(7)
FORMS = [ImageForm(28, 28, 1), ImageForm(5, 40, 3), ImageForm(64, 33, 3)]


def seeded(seed=1):
    return np.random.default_rng(seed)


def table(number=40, labels=None, of=None, form=(9, 8, 3)):
    pictures = seeded().integers(0, 256, (number, *form), dtype=np.uint8)
    return PublicTable(pictures, labels, ENCODER, of or {})


@pytest.fixture(scope="module")
def fonts_of(tmp_path_factory):
    """A directory with the font that Pillow has in itself."""
    image_font = pytest.importorskip("PIL.ImageFont")
    found = image_font.load_default(20)
    if not getattr(found, "font_bytes", None):
        pytest.skip("this Pillow has no font in itself")
    directory = tmp_path_factory.mktemp("fonts")
    (directory / "within").mkdir()
    (directory / "within" / "own.ttf").write_bytes(found.font_bytes)
    (directory / "broken.otf").write_bytes(b"no font")
    (directory / "text.txt").write_bytes(found.font_bytes)

    def fonts(characters, form=FORMS[0], **changes):
        return Fonts(directory, form, characters, **changes)

    return fonts


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["shapes", "table", "fonts"])
def test_random_samples_variations_and_their_pixels(form, kind, request):
    simulator = {
        "shapes": lambda: Shapes(form),
        "table": lambda: table(form=form.shape),
        "fonts": lambda: request.getfixturevalue("fonts_of")({"seven": "7"}, form),
    }[kind]()
    label = "seven"
    samples = simulator.random(label, 60, seeded())
    assert simulator.random(label, 0, seeded()) == []
    pixels = simulator.pixels(samples)
    assert pixels.shape == (60, *form.shape)
    assert pixels.dtype == np.uint8
    assert len(np.unique(pixels.reshape(60, -1), axis=0)) > 55
    assert (simulator.pixels(samples[7:9]) == pixels[7:9]).all()
    assert simulator.pixels([]).shape == (0, *form.shape)
    assert [simulator.from_json(simulator.to_json(sample)) for sample in samples] == samples

    assert simulator.variation(samples, label, 0.0, seeded()) == samples
    distances = []
    for strength in (0.1, 0.5, 1.0):
        varied = simulator.pixels(simulator.variation(samples, label, strength, seeded(2)))
        distances.append(np.abs(varied.astype(int) - pixels).mean())
    assert 0 < distances[0] < distances[1] < distances[2]
    assert simulator.digest == simulator.digest
    assert len(simulator.digest) == 64


def test_variations_have_the_distribution_of_random_samples():
    """Genes stay standard normal, so that no chain of variations leaves what a simulator makes."""
    shapes = Shapes(FORMS[0])
    samples = shapes.random("x", 400, seeded())
    for seed in range(20):
        samples = shapes.variation(samples, "x", 0.6, seeded(seed))
    values = np.array([sample.values for sample in samples])
    # 400 draws of about 70 genes, fixed by their seeds.
    assert abs(values.mean()) < 0.05
    assert values.std() == pytest.approx(1, abs=0.05)


# Deformations


def test_without_changes_a_picture_is_read_as_it_is():
    form = ImageForm(6, 9, 2)
    pictures = seeded().random((3, *form.shape)).astype(np.float32)
    genes = np.zeros((3, deformations.GENES), dtype=np.float32)
    places = Deformation().coordinates(genes, form.height, form.width)
    assert read_at(pictures, np.arange(3), places, 0) == pytest.approx(pictures, abs=1e-5)
    shifted = np.zeros_like(genes)
    shifted[:, 4] = 1  # one pixel to the right
    places = Deformation(shift=2 / 9).coordinates(shifted, form.height, form.width)
    found = read_at(pictures, np.arange(3), places, 5.0)
    assert found[:, :, 1:] == pytest.approx(pictures[:, :, :-1], abs=1e-4)
    assert found[:, :, 0] == pytest.approx(np.full((3, 6, 2), 5.0), abs=1e-4)


def test_places_far_outside_have_the_value_outside():
    pictures = np.ones((1, 4, 4, 1), dtype=np.float32)
    places = np.array([[[[9.0, 0], [-9, 0], [0, 9], [0, -9], [0, 0], [9e6, -9e6]]]], dtype=np.float32)
    found = read_at(pictures, np.array([0]), places, 0.0)[0, 0, :, 0]
    assert found.tolist()[4] == 1
    assert max(found.tolist()[:4] + found.tolist()[5:]) < 1e-2


def test_a_turn_by_a_quarter():
    picture = np.arange(9, dtype=np.float32).reshape(1, 3, 3, 1)
    genes = np.zeros((1, deformations.GENES), dtype=np.float32)
    genes[0, 0] = 1
    places = Deformation(rotation=np.pi / 2).coordinates(genes, 3, 3)
    found = read_at(picture, np.array([0]), places, 0.0)[0, :, :, 0]
    turned = (np.rot90(picture[0, :, :, 0], turns) for turns in (1, -1))
    assert any(np.allclose(found, own, atol=1e-3) for own in turned)


# Fonts


def test_a_glyph_is_where_it_is_said_to_be(fonts_of):
    """An undeformed glyph is centred, and its larger side takes the declared share."""
    fonts = fonts_of({"1": "1", "minus": "-"}, ink=Ink(fill=0.5, softness=0.02))
    for label in ("1", "minus"):
        genes = [Genes(int(fonts.sources(label)[0]), (0.0,) * fonts.genes)]
        ink = np.argwhere(fonts.pixels(genes)[0, :, :, 0] > 127)
        low, high = ink.min(axis=0), ink.max(axis=0)
        assert max(high - low + 1) == pytest.approx(14, abs=1)
        assert (low + high) / 2 == pytest.approx([13.5, 13.5], abs=1)


def test_strokes_get_thicker_and_colours_are_declared(fonts_of):
    fonts = fonts_of({"o": "O"}, ImageForm(20, 20, 3), ink=Ink(paper=250, ink=10))
    source, genes = int(fonts.sources("o")[0]), np.zeros((3, fonts.genes))
    genes[:, -2] = (-1, 0, 1)
    pixels = fonts.pixels([Genes(source, tuple(own)) for own in genes.tolist()])
    dark = (250 - pixels.astype(int)).sum(axis=(1, 2, 3))
    assert dark[0] < dark[1] < dark[2]
    assert pixels.max() == 250
    assert pixels.min() >= 10


def test_labels_have_their_characters_and_damaged_files_are_left_out(fonts_of):
    fonts = fonts_of({"vowel": "AEI", "b": "B"})
    assert len(fonts.sources("vowel")) == 3
    assert len(fonts.sources("b")) == 1
    assert len(font_files(fonts.directory)) == 2
    assert glyphs_of(b"nothing", ["a"]) == {}
    with pytest.raises(ConfigurationError, match="no glyph for the label 'none'"):
        fonts_of({"b": "B", "none": "\U0010fffd"}).sources("b")
    with pytest.raises(ConfigurationError, match="no glyph"):
        fonts_of({"blank": " "}).sources("blank")
    assert fonts.digest != fonts_of({"vowel": "AEI", "b": "B"}, ink=Ink(fill=0.5)).digest
    assert fonts.digest != fonts_of({"vowel": "AEI", "b": "C"}).digest


# A public table


def test_labels_of_a_public_table():
    labels = ["cat"] * 10 + ["dog"] * 30
    found = table(40, labels, {"pet": ["cat", "dog"], "cat": ["cat"]})
    assert len(found.sources("pet")) == 40
    assert found.sources("cat").tolist() == list(range(10))
    assert len(found.sources("any")) == 40
    varied = found.variation(found.random("cat", 50, seeded()), "cat", 1.0, seeded())
    assert {sample.source for sample in varied} <= set(range(10))
    with pytest.raises(ConfigurationError, match="no picture has a label"):
        table(40, labels, {"x": ["cow"]})
    with pytest.raises(ConfigurationError, match="no picture"):
        table(0)
    assert table(3).random("a", 5, seeded())
    one = table(1)
    assert one.pixels(one.variation(one.random("a", 5, seeded()), "a", 1.0, seeded())).shape == (5, 9, 8, 3)


def test_an_unchanged_sample_is_the_public_picture_and_neighbours_are_near():
    found = table(30)
    whole = found.pixels([Genes(at, (0.0,) * found.genes) for at in range(30)])
    assert np.abs(whole.astype(int) - found.pictures).max() <= 1
    features = found._features.astype(int)
    distances = ((features[:, None] - features[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distances, distances.max() + 1)
    near = found._near(np.arange(30), np.arange(30))
    assert (near[:, 0] == distances.argmin(axis=1)).all()
    assert near.shape == (30, 16)
