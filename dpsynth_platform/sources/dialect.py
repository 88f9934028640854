"""The dialect of a CSV file (separator, quotes, decimal mark, encoding, blanks), and the names in its first line.

What belongs here: the declared dialect, signs of another dialect in a first line, and whether that line is a header.
What does not: rows (`table_files`), and the values of fields (`csv_texts`).

A dialect is declared and never inferred from rows. A file that looks like another dialect is refused, with the option
to set. A header cannot be told from a row of ordinary words. So a first line counts as header only by declaration: it
holds a known column name, or `header` is set. Any other first line is never shown, since it may hold data.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsynth_platform.compute.plain_types import bare
from dpsynth_platform.foundation.errors import ContractError, SourceError, file_problem
from dpsynth_platform.foundation.process_state import ChangedWhileNeeded
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import check_regular

SEPARATORS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}
"""The usual separators, and their names as an option's value."""
_LONGEST_HEADER = 1 << 24
_QUOTES_BLOCK = 1 << 22
_LONGEST_FIELD = 1 << 30
"""More than Arrow accepts."""
_LONG_FIELDS = ChangedWhileNeeded(lambda: partial(csv.field_size_limit, csv.field_size_limit(_LONGEST_FIELD)))


HEADER_ACCEPTED = (
    "--csv-header, if it holds the names of the columns, or a declaration of one of them (--schema, where there is "
    "that option)"
)


@dataclass(frozen=True)
class Dialect:
    """A dialect of CSV. All of it is public.

    Attributes:
        separator: one character, or `tab`; None: a comma, and a first line with another separator is refused.
        quote: around fields that hold separators, one character; empty: none.
        decimal: the decimal mark of numbers, `.` or `,`.
        skip_blanks: whether blanks around fields are removed; None: they are not, and names with blanks are refused.
        header: declares that the first line holds the columns' names. It changes no value.
    """

    separator: str | None = None
    quote: str = '"'
    decimal: str = "."
    encoding: str = "utf-8"
    skip_blanks: bool | None = None
    header: bool = False

    def __post_init__(self) -> None:
        """Raises `ContractError` for an impossible dialect."""
        if self.separator is not None and (not _is_mark(self.delimiter) or self.delimiter == self.quote):
            raise ContractError(
                f"--csv-separator {self.separator!r}; accepted: one character other than the quote, such as ';', or tab"
            )
        if self.quote and not _is_mark(self.quote):
            raise ContractError(f"--csv-quote {self.quote!r}; accepted: one character, or '' where there are none")
        if self.decimal not in (".", ","):
            raise ContractError(f"--csv-decimal {self.decimal!r}; accepted: '.' or ','")
        try:
            "a".encode(self.encoding).decode(self.encoding)
            return
        except (LookupError, UnicodeError, ValueError, TypeError, AttributeError):
            pass
        raise ContractError(
            f"--csv-encoding {self.encoding!r}; accepted: a text encoding, such as utf-8, cp1252, utf-16"
        )

    @property
    def delimiter(self) -> str:
        return "," if self.separator is None else {"tab": "\t", "\\t": "\t"}.get(self.separator, self.separator)

    @property
    def declared(self) -> dict[str, Any]:
        """The settings that differ from the default."""
        found = asdict(self) | {"separator": self.delimiter, "encoding": codecs.lookup(self.encoding).name}
        del found["header"]
        usual = asdict(Dialect()) | {"separator": ",", "skip_blanks": False}
        return {key: value for key, value in found.items() if (value or False) != (usual[key] or False)}

    @property
    def in_words(self) -> str:
        """The dialect for a statement."""
        quoted = f"quoted by {self.quote}" if self.quote else "without quotes"
        blanks = ", blanks around fields skipped" if self.skip_blanks else ""
        return (
            f"CSV in {codecs.lookup(self.encoding).name} with {SEPARATORS.get(self.delimiter, repr(self.delimiter))} "
            f"between fields, {quoted}, decimal mark {self.decimal!r}{blanks}"
        )

    @property
    def accepted(self) -> str:
        """The accepted files, as text for a refusal."""
        return (
            f"{self.in_words}, with a header and as many fields in every row; or another dialect by --csv-separator, "
            "--csv-quote, --csv-decimal, --csv-encoding, --csv-skip-blanks"
        )

    @property
    def utf8(self) -> bool:
        """Whether files are UTF-8, with or without a byte order mark."""
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig", "ascii")

    def options(self, block_bytes: int) -> tuple[Any, Any]:
        """Arrow's options for reading and parsing."""
        from pyarrow import csv as arrow_csv

        reading = arrow_csv.ReadOptions(block_size=block_bytes, encoding="utf8" if self.utf8 else self.encoding)
        # newlines_in_values makes Arrow split rows before blocks, so the end of a row depends on no other row.
        parsing = arrow_csv.ParseOptions(
            delimiter=self.delimiter, quote_char=self.quote or False, newlines_in_values=True
        )
        return reading, parsing

    def fields(self, texts: pa.Array) -> pa.Array:
        """Fields without blanks around them and quotes inside the blanks, if blanks are skipped."""
        return bare(texts, self.quote) if self.skip_blanks else texts

    def names(self, path: Path, known: Collection[str] = ()) -> list[str]:
        """The columns' names in a file's first line.

        Args:
            known: names of columns; a line that holds one is a header.

        Raises:
            SourceError: it cannot be read, has another dialect, or is not declared a header. The error shows nothing of
                it.
        """
        problem, accepted, header = "the file is empty", self.accepted, ""
        try:
            check_regular(path)
            header = self._first_line(path)
            if header.strip():
                raw = self._parsed(header)
                names = list(self.fields(pa.array(raw, pa.string())).to_pylist())
                problem, accepted = self._other_dialect(raw) or self._no_header(names, known) or ("", "")
                if not problem:
                    return names
        except OSError as error:
            problem = file_problem(error)
        except UnicodeError:
            problem = f"its first line is not in {self.encoding}"
            accepted = "--csv-encoding with the file's, such as cp1252, latin-1 or utf-16"
        except (ValueError, pa.ArrowException) as error:
            problem = f"its first line cannot be read ({reason_of(error)})"
            if self.quote and header.count(self.quote) % 2:
                problem, accepted = "its header is more than one line", "names without line breaks"
        raise SourceError(f"{path}: {problem}; accepted: {accepted}")

    def raw_names(self, path: Path) -> list[str]:
        """The unchanged fields of a file's first line. Raises what reading raises."""
        return self._parsed(self._first_line(path))

    def check_quotes(self, path: Path) -> None:
        """Refuses a file with an unclosed quote, or one that is closed inside a field: Arrow would lose rows.

        Arrow reads to the next quote, or to the end of the file if there is none.

        Raises:
            SourceError: shows nothing of the file.
            OSError, UnicodeError: it cannot be read.
        """
        if not self.quote or (self.utf8 and self._quotes_fit(path)):
            return
        encoding = "utf-8-sig" if self.utf8 else self.encoding
        try:
            with _LONG_FIELDS, path.open(encoding=encoding, errors="replace", newline="") as text:
                for _ in csv.reader(text, delimiter=self.delimiter, quotechar=self.quote, strict=True):
                    pass
            return
        except csv.Error:
            pass  # raise outside, so that the error's context holds nothing of the file
        raise SourceError(
            f"{path}: a quote ({self.quote}) in it is not closed, or is closed inside a field, so that rows would be "
            "lost; accepted: quotes around whole fields, doubled inside them; --csv-quote with another one, or '' if "
            "quotes are part of values"
        )

    def _quotes_fit(self, path: Path) -> bool:
        """Whether each quote, by its neighbours alone, begins or ends a field, or is doubled; much faster than `csv`.

        Every second quote must follow the beginning of a field, or the quote before it; the others must precede the end
        of a field, or the next quote. Of other files `csv` decides: in an unquoted field a quote is a character.
        """
        quote, ends = ord(self.quote), np.zeros(256, np.bool_)
        ends[[*b"\r\n", ord(self.delimiter), quote]] = True
        inside, held = False, b"\n"
        with path.open("rb") as file:
            if file.read(3) != codecs.BOM_UTF8:
                file.seek(0)
            while True:
                block = file.read(_QUOTES_BLOCK)
                text = np.frombuffer(held + (block or b"\n"), np.uint8)
                places = np.flatnonzero(text[1:-1] == quote) + 1
                opening, closing = places[inside::2], places[not inside :: 2]
                if not (ends[text[opening - 1]].all() and ends[text[closing + 1]].all()):
                    return False
                inside ^= places.size % 2 == 1
                if not block:
                    return not inside
                held = text[-2:].tobytes()

    def _first_line(self, path: Path) -> str:
        """The text up to the first line feed or carriage return."""
        if "\n".encode(self.encoding) == b"\n":
            with path.open("rb") as file:
                line = file.readline(_LONGEST_HEADER).decode(self.encoding).removeprefix("\ufeff")
        else:
            with path.open(encoding=self.encoding, newline="\n") as text:
                line = text.readline(_LONGEST_HEADER)
        line = line.rstrip("\r\n").partition("\r")[0]
        return f"{line}\n" if line else ""

    def _parsed(self, header: str) -> list[str]:
        from pyarrow import csv as arrow_csv

        _, parsing = self.options(1)
        return list(arrow_csv.read_csv(pa.BufferReader(header.encode()), parse_options=parsing).column_names)

    def _other_dialect(self, names: list[str]) -> tuple[str, str] | None:
        """A sign of another dialect in a first line, and what is accepted; None if there is none."""
        mine = SEPARATORS.get(self.delimiter, repr(self.delimiter))
        for mark, shown in SEPARATORS.items():
            marks = sum(name.count(mark) for name in names)
            # A declared separator is doubted only if it separates nothing.
            doubtful = marks >= len(names) if self.separator is None else marks and len(names) == 1
            if mark != self.delimiter and doubtful:
                return (
                    f"its first line holds {shown}, but the separator is {mine}",
                    f"--csv-separator {shown}, or names of columns without it",
                )
        if self.quote != "'" and all(len(name) > 1 and name[0] == name[-1] == "'" for name in names):
            return "names in its first line have single quotes", '--csv-quote "\'", or names without quotes'
        if any("\x00" in name for name in names):
            return "its first line holds NUL characters", "--csv-encoding with the file's, such as utf-16"
        if self.skip_blanks is None and any(name.strip() and name != name.strip() for name in names):
            return (
                "names in its first line have blanks around them",
                "--csv-skip-blanks, or --csv-keep-blanks if blanks are part of names and values",
            )
        return None

    def _no_header(self, names: list[str], known: Collection[str]) -> tuple[str, str] | None:
        """Why a first line is not accepted as a header, and what is accepted; None: it is one."""
        if not (self.header or any(name in known for name in names)):
            why = "it has none of the declared or given names" if known else "nothing declares it"
            return (
                f"its first line may be no header, since {why} (it is not shown)",
                HEADER_ACCEPTED,
            )
        twice = next((place for place, name in enumerate(names) if name in names[:place]), None)
        if twice is not None:
            first = names.index(names[twice])
            return (
                f"columns {first + 1} and {twice + 1} of its first line have the same name (the line is not shown)",
                "a first line with distinct names of the columns",
            )
        return None


def _is_mark(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text not in "\r\n\x00"
