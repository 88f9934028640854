"""A killed process leaves no picture in a file."""

import multiprocessing
import os
import signal

import numpy as np

from dpsynth_platform.foundation.image_form import ImageForm
from dpsynth_platform.synth.images.layout import Pictures
from dpsynth_platform.synth.images.picture_codecs import AsPixels
from dpsynth_platform.synth.images.picture_training import read_records


def _read_and_die(directory):
    def batches():
        yield Pictures(np.full((5, 64, 64, 3), 77, np.uint8), np.zeros(5, np.int64))
        os.kill(os.getpid(), signal.SIGKILL)

    read_records(batches(), AsPixels(ImageForm(64, 64, 3)), directory, owners=False, draws=1)


def test_a_process_that_is_killed_while_it_reads_leaves_no_picture(tmp_path):
    child = multiprocessing.get_context("fork").Process(target=_read_and_die, args=(tmp_path / "examples",))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
