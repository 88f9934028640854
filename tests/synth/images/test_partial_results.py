"""What a killed process leaves in a directory of noisy results."""

import itertools
import os

import numpy as np
import pytest

from dpsynth_platform.foundation import storage
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.images import noisy_results
from dpsynth_platform.synth.images.exact_sums import Batch
from dpsynth_platform.synth.images.moments_measuring import measure
from dpsynth_platform.synth.images.moments_plan import planned

ONE = Guarantee(1.0, 1e-5, "example", "add-or-remove", 1)
FORM = ImageForm(5, 5, 1)


def batches_of(number=40):
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (number, *FORM.shape), dtype=np.uint8)
    return lambda: iter([Batch(pixels, np.zeros(number, dtype=np.int64))])


def test_a_killed_process_leaves_no_second_draw(tmp_path, monkeypatch):
    """A noisy sum that was written aside, and never used, is deleted before the query is drawn again."""
    plan = planned(FORM, 1, 1000, ONE)
    written, count = storage.Path.replace, itertools.count()

    class Killed(BaseException):
        pass

    def killed(self, target):
        if target.name == "class-means.npz" and next(count) == 0:
            os.link(self, self.with_suffix(".kept"))  # what remains of a process that ended here without cleaning up
            raise Killed
        return written(self, target)

    monkeypatch.setattr(storage.Path, "replace", killed)
    with pytest.raises(Killed):
        measure(plan, batches_of(), tmp_path)
    for left in tmp_path.glob(".*.kept"):
        left.rename(left.with_suffix(".0123456789abcdef"))
    measure(plan, batches_of(), tmp_path)
    assert noisy_results.is_complete(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".class-means")] == []
