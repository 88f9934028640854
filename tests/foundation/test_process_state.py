"""Changes of what all threads share: the umask, filters of warnings, standard error, limits and precision."""

import csv
import io
import re
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.permissions import private_files
from dpsynth_platform.foundation.pixels import ImageForm
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.pictures import decoded
from dpsynth_platform.synth.text.base_models import no_bars
from dpsynth_platform.training.precision import exact_products

ROOT = Path(__file__).parents[2]
# What a process does once, at its start or as its only thread, and a context that keeps the threads in order.
ALONE = {
    "dpsynth_platform/foundation/permissions.py": {"os.umask"},
    "dpsynth_platform/foundation/process_state.py": {"warnings.catch_warnings"},
    "dpsynth_platform/sources/dialect.py": {"csv.field_size_limit"},
    "dpsynth_platform/synth/text/base_models.py": {"sys.stderr ="},
    "dpsynth_platform/training/precision.py": {"set_float32_matmul_precision"},
    "dpsynth_platform/worker/__main__.py": {"os.umask"},
    "dpsynth_platform/worker/rank.py": {"os.umask"},
    "dpsynth_platform/worker/ranks.py": {"set_num_threads"},
}
OF_ALL_THREADS = re.compile(
    r"os\.umask|os\.chdir|warnings\.catch_warnings|redirect_std(?:out|err)(?=\()|csv\.field_size_limit|setdefaulttimeout"
    r"|(?:np|numpy)\.random\.seed|setlocale|(?:set_num_threads|set_float32_matmul_precision|set_default_dtype)(?=\()"
    r"|sys\.std(?:out|err)(?:, \w+)* =(?!=)"
)


def test_what_all_threads_share_is_changed_in_known_places_only():
    found = {}
    for place in ("dpsynth", "dpsynth_platform", "assets", "resources", "sensors"):
        for path in (ROOT / place).rglob("*.py"):
            code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
            if used := {re.sub(r", \w+", "", one) for one in OF_ALL_THREADS.findall(re.sub(r"`[^`\n]*`", "", code))}:
                found[path.relative_to(ROOT).as_posix()] = used
    assert found == ALONE


def shown_umask():
    status = Path("/proc/self/status").read_text()
    return re.search(r"Umask:\s*(\d+)", status)[1]


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        (private_files, shown_umask),
        (no_bars, lambda: sys.stderr),
        (exact_products, lambda: (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone shows the umask without setting it")
def test_a_change_lasts_until_the_last_thread_leaves_and_no_longer(changed, state, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = state()
    entered, left, seen = threading.Event(), threading.Event(), []

    def other():
        with changed():
            entered.set()
            assert left.wait(120)
            seen.append(state())

    thread = threading.Thread(target=other)
    with changed():
        inside = state()
        thread.start()
        assert entered.wait(120)
    left.set()
    thread.join()
    assert seen == [inside]
    assert inside != before
    assert state() == before


def test_files_with_long_fields_are_read_by_two_threads_at_once(tmp_path, monkeypatch):
    """By default `csv` refuses a field of more than 131,072 characters."""
    path, limit = tmp_path / "long.csv", csv.field_size_limit()
    path.write_text('note,other\n"x ""y"" z, ' + "a" * 200_000 + '",1\n')
    plain, begun, left, problems = csv.reader, threading.Event(), threading.Event(), []

    def reader(text, **options):
        """The thread begins while this one reads, and reads when this one has left."""
        if threading.current_thread() is thread:
            begun.set()
            assert left.wait(120)
        else:
            thread.start()
            assert begun.wait(120)
        return plain(text, **options)

    def check():
        try:
            Dialect().check_quotes(path)
        except SourceError as error:
            problems.append(error)

    monkeypatch.setattr(csv, "reader", reader)
    monkeypatch.setattr(Dialect, "_quotes_fit", lambda *_: False)
    thread = threading.Thread(target=check)
    check()
    left.set()
    thread.join()
    assert not problems
    assert csv.field_size_limit() == limit


def test_pictures_are_decoded_in_threads_and_filters_of_warnings_stay(monkeypatch):
    """Answers of an endpoint are decoded in its threads: a filter that stays would make all later warnings errors."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(file, "png")
    plain, form = Image.open, ImageForm(2, 2, 1)
    begun, left = threading.Event(), threading.Event()

    def opened(*args, **options):
        """If both can decode at once, the thread begins while this one does, and ends later."""
        if threading.current_thread() is thread:
            begun.set()
            left.wait(120)
        else:
            thread.start()
            begun.wait(0.5)
        return plain(*args, **options)

    def decode():
        return decoded(file.getvalue(), form, "refuse").tolist()

    monkeypatch.setattr(Image, "open", opened)
    before = list(warnings.filters)
    thread = threading.Thread(target=decode)
    assert decode() == [[[0], [0]]] * 2
    left.set()
    thread.join()
    assert warnings.filters == before
