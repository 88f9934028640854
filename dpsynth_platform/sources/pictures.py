"""Pictures of one form from encoded files or raw values, and back: each a function of one picture alone.

What belongs here: decoding, turning upright, colours, size, encoding, and columns of pictures. What does not: which
files are accepted and which of their parts the decoder reads (`picture_files`).

A picture is turned upright by its EXIF orientation. Transparent parts show white. Of 16 bits a channel the high byte is
kept. Grey becomes three equal channels; colours become grey by the luma of ITU-R BT.601. CMYK is converted without a
profile, and colour profiles are ignored. Nothing else of a file is used.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.pixels import ImageForm, Pixels
from dpsynth_platform.foundation.process_state import own_warning_filters
from dpsynth_platform.sources.picture_files import PictureFile, PictureProblem, checked

if TYPE_CHECKING:
    from PIL import Image

Resize = Literal["refuse", "fit", "crop"]
"""`refuse`: another size is a problem. `fit`: scaled to lie inside, centred on black. `crop`: scaled to cover, and cut
equally on both sides."""
_WHITE, _BLACK = 255, 0
_BAND = 256
"""Rows that are put on white together, which bounds the memory."""


def decoded(content: bytes, form: ImageForm, resize: Resize) -> npt.NDArray[np.uint8]:
    """The picture of one encoded file; shape (height, width, channels).

    Smaller sizes are means over areas (box filter), larger ones are interpolated by Lanczos' filter.

    Raises:
        PictureProblem: the file is not accepted, or of another size under `refuse`.
    """
    file = checked(content)
    turned = file.orientation >= 5
    size = (file.size[1], file.size[0]) if turned else file.size
    if resize == "refuse" and size != (form.width, form.height):
        raise PictureProblem("wrong-size")
    picture = _plain(file, "L" if form.channels == 1 else "RGB")
    if picture is None:  # raised here: an exception of the decoder is no context of this one
        raise PictureProblem("damaged")
    pixels = np.array(_resized(_upright(picture, file.orientation), form, resize), dtype=np.uint8)
    return pixels.reshape(form.shape)


def encoded(pixels: npt.NDArray[np.uint8], kind: Literal["png", "webp"]) -> bytes:
    """A lossless file of a picture, shape (height, width, channels of 1 or 3), without metadata.

    The same pixels and the same version of the library give the same bytes.

    Raises:
        ValueError: the shape is another one.
    """
    from PIL import Image

    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or not pixels.size or pixels.dtype != np.uint8:
        raise ValueError(f"pixels of shape {pixels.shape} and type {pixels.dtype}; accepted: uint8, (h, w, 1 or 3)")
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    written = io.BytesIO()
    if kind == "png":
        image.save(written, "PNG", optimize=True)
    else:
        image.convert("RGB").save(written, "WEBP", lossless=True, quality=100, method=4)
    return written.getvalue()


def read_pictures(
    column: pa.Array | pa.ChunkedArray, form: ImageForm, resize: Resize, raw: bool
) -> tuple[Pixels, npt.NDArray[np.bool_], Counter[str]]:
    """The good pictures of a column, which rows they are, and how many others have which kind of problem.

    Args:
        column: files as binary, or as a struct of `bytes` (and `path`, which is never opened); with `raw`, values row
            by row and channel last, as binary or lists (or lists of lists) of numbers from 0 to 255.
        form: of every picture.
        resize: for files; raw values have to have the form.
        raw: whether the column has values instead of files.

    Returns:
        Pixels, shape (good pictures, height, width, channels); a mask, shape (rows,); counts by kind.

    Raises:
        SourceError: the column is of another type.
    """
    _check_type(column.type, raw)
    good = np.zeros(len(column), dtype=np.bool_)
    kinds: Counter[str] = Counter()
    pictures: list[npt.NDArray[np.uint8]] = []
    for row, value in enumerate(_values(column)):
        try:
            pictures.append(_raw(value, form) if raw else decoded(_file(value), form, resize))
        except PictureProblem as problem:
            kinds[problem.kind] += 1
        else:
            good[row] = True
    pixels = np.stack(pictures) if pictures else np.zeros((0, *form.shape), dtype=np.uint8)
    return pixels, good, kinds


def _plain(file: PictureFile, mode: Literal["L", "RGB"]) -> Image.Image | None:
    """The picture in grey or colours on white; None where the decoder refuses it."""
    from PIL import Image, ImageFile

    log = logging.getLogger("PIL")
    if log.level != logging.WARNING:  # setting it takes longer than decoding a small picture
        log.setLevel(logging.WARNING)  # lengths of parts are data
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # whatever another library wants
    try:
        with own_warning_filters():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", UserWarning)
            warnings.simplefilter("error", RuntimeWarning)
            with Image.open(io.BytesIO(file.content), formats=[file.format]) as image:
                if image.size != file.size or getattr(image, "n_frames", 1) != 1:
                    return None
                image.load()
                return _coloured(image, mode)
    except MemoryError:
        raise  # the machine's, and no picture's
    except Exception:  # whatever a damaged file makes the decoder raise
        return None


def _coloured(image: Image.Image, mode: Literal["L", "RGB"]) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits
        high = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return Image.fromarray(high).convert(mode)
    if image.mode not in ("LA", "PA", "RGBA", "La", "RGBa") and "transparency" not in image.info:
        return image.convert(mode) if image.mode in ("1", "L") else image.convert("RGB").convert(mode)
    canvas = Image.new(mode, image.size)
    for top in range(0, image.height, _BAND):
        part = image.crop((0, top, image.width, min(top + _BAND, image.height)))
        band = part.convert("RGBA")
        white = Image.new("RGBA", band.size, (_WHITE,) * 4)
        canvas.paste(Image.alpha_composite(white, band).convert("RGB").convert(mode), (0, top))
    return canvas


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    return image.transpose(turns[orientation]) if orientation in turns else image


def _resized(image: Image.Image, form: ImageForm, resize: Resize) -> Image.Image:
    from PIL import Image
    from PIL.Image import Resampling

    width, height = image.size
    if (width, height) == (form.width, form.height):
        return image
    scales = form.width / width, form.height / height
    scale = min(scales) if resize == "fit" else max(scales)
    filtered = Resampling.BOX if scale < 1 else Resampling.LANCZOS
    if resize == "crop":
        cut = form.width / scale, form.height / scale
        left, top = (max(0.0, (side - part) / 2) for side, part in zip((width, height), cut, strict=True))
        box = (left, top, min(left + cut[0], width), min(top + cut[1], height))
        return image.resize((form.width, form.height), filtered, box=box)
    inside = max(1, min(form.width, round(width * scale))), max(1, min(form.height, round(height * scale)))
    canvas = Image.new(image.mode, (form.width, form.height), _BLACK)
    canvas.paste(image.resize(inside, filtered), ((form.width - inside[0]) // 2, (form.height - inside[1]) // 2))
    return canvas


def _check_type(type_: pa.DataType, raw: bool) -> None:
    files = pa.types.is_struct(type_) and type_.get_field_index("bytes") >= 0
    inner = type_.field("bytes").type if files else type_
    if _is_binary(inner) and not (raw and files):
        return
    if raw and is_pixel_list(type_):
        return
    accepted = "binary or lists of whole numbers" if raw else "binary, or a struct with binary `bytes`"
    raise SourceError(
        f"a column of pictures has the type {type_}; accepted for {'raw values' if raw else 'files'}: {accepted}; "
        "convert the column, or declare another type"
    )


def is_pixel_list(type_: pa.DataType) -> bool:
    """Whether a type is a list, or a list of lists, of whole numbers."""
    if not (pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)):
        return False
    return bool(pa.types.is_integer(type_.value_type)) or is_pixel_list(type_.value_type)


def is_file_struct(type_: pa.DataType) -> bool:
    """Whether a type is a struct with `bytes`, as Hugging Face's `datasets` writes pictures."""
    place = type_.get_field_index("bytes") if pa.types.is_struct(type_) else -1
    return place >= 0 and _is_binary(type_.field(place).type)


def _is_binary(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_binary_view(type_)
    )


def _values(column: pa.Array | pa.ChunkedArray) -> Iterator[Any]:
    """Each row's bytes, mapping or array of values; None where it is null."""
    for scalar in column:
        if not scalar.is_valid:
            yield None
        elif isinstance(scalar, (pa.ListScalar, pa.LargeListScalar, pa.FixedSizeListScalar)):
            values = scalar.values
            while not pa.types.is_integer(values.type):
                values = values.flatten()
            yield values
        else:
            yield scalar.as_py()


def _file(value: Any) -> bytes:
    if value is None:
        raise PictureProblem("missing")
    if isinstance(value, bytes):
        return value
    content: bytes | None = value["bytes"]
    if content is None:
        raise PictureProblem("path-only" if value.get("path") else "missing")
    return content


def _raw(value: Any, form: ImageForm) -> npt.NDArray[np.uint8]:
    if value is None or (isinstance(value, pa.Array) and value.null_count):
        raise PictureProblem("missing")
    if len(value) != form.values:
        raise PictureProblem("wrong-length")
    if isinstance(value, bytes):
        return np.frombuffer(value, dtype=np.uint8).reshape(form.shape)
    values = np.asarray(value)
    if values.min() < 0 or values.max() > _WHITE:
        raise PictureProblem("wrong-value")
    return values.astype(np.uint8).reshape(form.shape)
