"""A link to a file in a directory of pictures leads nowhere: no picture from elsewhere becomes a row."""

from pathlib import Path

import numpy as np
import pytest

from dpsynth_platform.contracts.columns import ImageColumn
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.sources.directories import data_files
from dpsynth_platform.sources.image_folders import NAMES, open_folder
from dpsynth_platform.sources.pictures import encoded


def test_no_linked_file_is_read(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere.png", tmp_path / "pictures" / "cats"
    elsewhere.write_bytes(encoded(np.zeros((4, 4, 1), np.uint8), "png"))
    folder.mkdir(parents=True)
    (folder / "one.png").symlink_to(elsewhere)
    column = ImageColumn(type="image", size=[4, 4], channels=1, accept_unscrubbed="black squares only")
    with pytest.raises(SourceError):
        table = open_folder(folder.parent, data_files(folder.parent, NAMES), {"picture": column})
        assert not any(value is not None for batch in table.batches() for value in batch.column("picture").to_pylist())
        raise SourceError("nothing was read")
