"""Pictures in a scrubbed table: pixels only; rows without a readable one are left out, each by itself."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.validation import validated
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.fingerprints import FingerprintKeys
from dpsynth_platform.scrub.owners import LEAST_OWNERS
from dpsynth_platform.scrub.scrub import ScrubKeys, ScrubReport, scrub_batches

KEYS = ScrubKeys(FingerprintKeys(b"a" * 32, (b"b" * 32,)), b"c" * 32, b"d" * 32)
SECRET = b"Ada Lovelace, 12 St James's Square"


def contract(**image: Any) -> DataContract:
    column = {"type": "image", "size": [4, 6], "channels": 1, "accept_unscrubbed": "made up for tests"} | image
    return validated(
        DataContract,
        {
            "dataset": "photos",
            "description": "Photographs for tests.",
            "owners": ["tests@example.org"],
            "source": {"uri": "/nowhere", "key": ["person", "photo_id"]},
            "family": "tests",
            "privacy": {
                "unit": "user",
                "owner_columns": ["person"],
                "namespace": "person",
                "max_contributions": 2,
                "guarantee": {"epsilon": 1.0, "delta": 1e-6},
                "expected_units": 1000,
            },
            "columns": {
                "person": {"type": "identifier"},
                "photo_id": {"type": "identifier"},
                "place": {"type": "categorical", "values": ["in", "out"]},
                "photo": column,
            },
            "generate": {"method": "image_moments"},
            "release": {"uri": "/elsewhere", "approvals": 1},
        },
        "photos",
    )


def photo(shade: int, size: tuple[int, int] = (6, 4), **saved: Any) -> bytes:
    written = io.BytesIO()
    Image.new("L", size, shade).save(written, "PNG", **saved)
    return written.getvalue()


def rows(photos: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    number = len(photos)
    return pa.table(
        {
            "person": [f"P{at}" for at in range(number)],
            "photo_id": list(range(number)),
            "place": ["in", "out"] * (number // 2) + ["in"] * (number % 2),
            "photo": pa.array(photos, kind or pa.binary()),
        }
    )


def scrubbed(table: pa.Table, **image: Any) -> tuple[pa.Table, ScrubReport]:
    schema, batches, report = scrub_batches(table.to_batches(), contract(**image), table.schema, KEYS, processes=1)
    return pa.Table.from_batches(list(batches), schema), report


def test_only_pixels_remain() -> None:
    from PIL.PngImagePlugin import PngInfo

    words = PngInfo()
    words.add_text("Author", SECRET.decode())
    table, report = scrubbed(rows([photo(7, pnginfo=words), photo(9)]))
    assert table.schema.field("photo").type == pa.binary()
    assert table["photo"].to_pylist() == [bytes([7] * 24), bytes([9] * 24)]
    assert SECRET not in b"".join(table["photo"].to_pylist())
    assert report.as_dict()["pictures_left_out"] == {}


def test_a_row_without_a_readable_picture_is_left_out_whatever_the_others_are() -> None:
    good = [photo(shade) for shade in range(1, 11)]
    whole, _ = scrubbed(rows(good))
    for bad in (None, b"", SECRET, photo(3, (5, 4)), good[0][:-9]):
        mixed = list(good)
        mixed[4] = bad
        table, report = scrubbed(rows(mixed))
        kept = [at for at in range(10) if at != 4]
        assert table["photo"].to_pylist() == [whole["photo"][at].as_py() for at in kept]
        assert table["_owner"].to_pylist() == [whole["_owner"][at].as_py() for at in kept]
        (shown,) = report.as_dict()["pictures_left_out"].values()
        assert shown == "fewer than 10"  # one damaged picture is a person
        assert report.pictures is not None and sum(report.pictures.values()) == 1


def test_another_size_is_scaled_where_the_contract_says_so() -> None:
    table, _ = scrubbed(rows([photo(7, (12, 8)), photo(9, (60, 4))]), resize="crop")
    assert [set(pixels) for pixels in table["photo"].to_pylist()] == [{7}, {9}]
    fitted, _ = scrubbed(rows([photo(200, (60, 4))]), resize="fit")
    assert set(fitted["photo"][0].as_py()) == {0, 200}


def test_raw_values_are_pictures_of_the_form() -> None:
    table, report = scrubbed(rows([bytes(range(24)), b"12"]), stored="raw")
    assert table["photo"].to_pylist() == [bytes(range(24))]
    lists = rows([list(range(24)), [1] * 24], pa.list_(pa.int64()))
    assert scrubbed(lists, stored="raw")[0]["photo"].to_pylist() == [bytes(range(24)), bytes([1] * 24)]
    assert report.pictures == {"wrong-length": 1}


def test_structs_of_bytes_and_path_are_pictures_and_paths_are_not_opened() -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    photos = [{"bytes": photo(7), "path": "/etc/passwd"}, {"bytes": None, "path": "/etc/passwd"}]
    table, report = scrubbed(rows(photos, kind))
    assert table["photo"].to_pylist() == [bytes([7] * 24)] and report.pictures == {"path-only": 1}


def test_a_column_without_pictures_stops_the_run_only_by_enough_owners() -> None:
    with pytest.raises(SourceError, match="none, or hardly any, of its values is a picture") as stopped:
        scrubbed(rows([SECRET] * LEAST_OWNERS))
    assert SECRET.decode() not in str(stopped.value) and str(LEAST_OWNERS) not in str(stopped.value)
    table, _ = scrubbed(rows([SECRET] * (LEAST_OWNERS - 1)))
    assert table.num_rows == 0
    table, _ = scrubbed(rows([SECRET] * 100 + [photo(1)] * LEAST_OWNERS))
    assert table.num_rows == LEAST_OWNERS


def test_a_directory_whose_metadata_names_no_picture_says_what_a_name_is() -> None:
    known = contract()
    known = known.model_copy(update={"source": known.source.model_copy(update={"format": "images"})})
    table = rows([None] * LEAST_OWNERS)
    _, batches, _ = scrub_batches(table.to_batches(), known, table.schema, KEYS, processes=1)
    with pytest.raises(SourceError, match=r"a file_name of metadata\.csv is a path below the directory") as stopped:
        list(batches)
    assert "stored" not in str(stopped.value)


def test_damaged_refuse_stops_by_enough_owners_and_by_no_fewer() -> None:
    some = [photo(1)] * 50
    table, _ = scrubbed(rows([*some, *[SECRET] * (LEAST_OWNERS - 1)]), damaged="refuse")
    assert table.num_rows == 50
    with pytest.raises(SourceError, match=r"accepted: .*damaged: leave-out"):
        scrubbed(rows([*some, *[SECRET] * LEAST_OWNERS]), damaged="refuse")


def test_large_pictures_come_in_small_chunks() -> None:
    """A chunk's pixels are bounded, so that a table of large pictures needs no memory for all of them."""
    from dpsynth_platform.scrub import scrub

    size = {"size": [512, 512], "stored": "raw"}
    table = rows([np.zeros(512 * 512, np.uint8).tobytes()] * 100)
    known = contract(**size)
    schema, batches, _ = scrub_batches(table.to_batches(), known, table.schema, KEYS, processes=1)
    most = max(batch.num_rows for batch in batches)
    assert schema.field("photo").type == pa.binary() and most * 512 * 512 <= scrub.CHUNK_BYTES


def test_a_text_is_no_picture() -> None:
    with pytest.raises(SourceError, match=r"columns\.photo: declared image, found Arrow type string; accepted: binary"):
        scrubbed(rows(["a.png", "b.png"], pa.string()))
