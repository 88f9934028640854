"""How a CSV file is written: its separator, quotes, decimal mark, encoding and blanks; and the names in its first line.

What belongs here: the dialect that somebody declares, what of a first line says that the file is of another one, and
whose word says that the line is a header. What does not: rows (`sources`), and what a field stands for (`texts`).

A dialect is declared and not found out: rows are not asked. What looks like another one is refused, with the option to
give. Nothing in a file tells a header from a row of ordinary words. So its first line is a header where somebody says
so: by a name in it that they know, or by `header`. Of any other nothing is shown, since it may be somebody's values.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.compute.plain_types import bare
from dpsynth_platform.foundation.errors import ContractError, SourceError, file_problem
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.foundation.regular_files import check_regular

SEPARATORS = {",": "','", ";": "';'", "\t": "tab", "|": "'|'"}
"""What stands between fields in most files, and how it is given as an option."""
_LONGEST_HEADER = 1 << 24
_LONGEST_FIELD = 1 << 30
"""Longer than any that Arrow takes."""


@dataclass(frozen=True)
class Dialect:
    """A dialect of CSV. All of it is public.

    Attributes:
        separator: between fields, one character, or `tab`; None: a comma, unless the first line looks otherwise.
        quote: around fields that hold separators, one character; empty: none.
        decimal: the decimal mark of numbers, `.` or `,`.
        encoding: of the file, by a name that Python knows.
        skip_blanks: whether blanks around fields are no part of them; None: they are, unless they look otherwise.
        header: somebody's word that a file's first line holds the columns' names. It changes no value that is read.
    """

    separator: str | None = None
    quote: str = '"'
    decimal: str = "."
    encoding: str = "utf-8"
    skip_blanks: bool | None = None
    header: bool = False

    def __post_init__(self) -> None:
        """Refuses what no file can be read by. Raises `ContractError`."""
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
        """The separator's character."""
        return "," if self.separator is None else {"tab": "\t", "\\t": "\t"}.get(self.separator, self.separator)

    @property
    def declared(self) -> dict[str, Any]:
        """What is read otherwise than by default; empty: nothing is."""
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
        """What a file must be, in words for a refusal."""
        return (
            f"{self.in_words}, with a header and as many fields in every row; or another dialect by --csv-separator, "
            "--csv-quote, --csv-decimal, --csv-encoding, --csv-skip-blanks"
        )

    @property
    def utf8(self) -> bool:
        """Whether files are UTF-8, with or without a mark for it."""
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig", "ascii")

    def options(self, block_bytes: int) -> tuple[Any, Any]:
        """Arrow's options for reading and parsing."""
        from pyarrow import csv as arrow_csv

        reading = arrow_csv.ReadOptions(block_size=block_bytes, encoding="utf8" if self.utf8 else self.encoding)
        # With line breaks in values, rows are told apart before blocks are: where one ends hangs on no other row.
        parsing = arrow_csv.ParseOptions(
            delimiter=self.delimiter, quote_char=self.quote or False, newlines_in_values=True
        )
        return reading, parsing

    def fields(self, texts: pa.Array) -> pa.Array:
        """Fields as they are meant: without blanks around them, and quotes inside of those, where they are skipped."""
        return bare(texts, self.quote) if self.skip_blanks else texts

    def names(self, path: Path, known: Collection[str] = ()) -> list[str]:
        """The columns' names in a file's first line.

        Args:
            path: of the file.
            known: names of columns that somebody gives; where one stands in the line, it is a header.

        Raises:
            SourceError: it cannot be read, is of another dialect, or nobody says that it is a header. Nothing of it is
                shown.
        """
        problem, accepted = "the file is empty", self.accepted
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
        raise SourceError(f"{path}: {problem}; accepted: {accepted}")

    def raw_names(self, path: Path) -> list[str]:
        """The fields of a file's first line as they stand there. Raises what reading raises."""
        return self._parsed(self._first_line(path))

    def check_quotes(self, path: Path) -> None:
        """Refuses a file in which a quote is not closed, or is closed inside of a field: rows would vanish in a field.

        Arrow reads on to the next quote, and to the end of the file where there is none.

        Raises:
            SourceError: what is wrong and what is accepted; nothing of the file.
            OSError, UnicodeError: it cannot be read.
        """
        if not self.quote:
            return
        limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            with path.open(encoding="utf-8-sig" if self.utf8 else self.encoding, errors="replace", newline="") as text:
                for _ in csv.reader(text, delimiter=self.delimiter, quotechar=self.quote, strict=True):
                    pass
            return
        except csv.Error:
            pass  # outside, so that nothing of the file is the error's context
        finally:
            csv.field_size_limit(limit)
        raise SourceError(
            f"{path}: a quote ({self.quote}) in it is not closed, or is closed inside of a field, so that rows would "
            "be lost; accepted: quotes around whole fields, doubled inside of them; --csv-quote with another one, or "
            "'' where quotes are part of values"
        )

    def _first_line(self, path: Path) -> str:
        """Up to the first end of a line, which may be a carriage return."""
        line = self._line_feed(path).rstrip("\r\n").partition("\r")[0]
        return f"{line}\n" if line else ""

    def _line_feed(self, path: Path) -> str:
        if "\n".encode(self.encoding) == b"\n":
            with path.open("rb") as file:
                return file.readline(_LONGEST_HEADER).decode(self.encoding).removeprefix("\ufeff")
        with path.open(encoding=self.encoding, newline="\n") as text:
            return text.readline(_LONGEST_HEADER)

    def _parsed(self, header: str) -> list[str]:
        from pyarrow import csv as arrow_csv

        _, parsing = self.options(1)
        return list(arrow_csv.read_csv(pa.BufferReader(header.encode()), parse_options=parsing).column_names)

    def _other_dialect(self, names: list[str]) -> tuple[str, str] | None:
        """What in a first line speaks for another dialect, and what is accepted; None: nothing does."""
        mine = SEPARATORS.get(self.delimiter, repr(self.delimiter))
        for mark, shown in SEPARATORS.items():
            marks = sum(name.count(mark) for name in names)
            # One that is declared is only doubted where it separates nothing.
            doubtful = marks >= len(names) if self.separator is None else marks and len(names) == 1
            if mark != self.delimiter and doubtful:
                return (
                    f"its first line holds {shown} where {mine} is the separator",
                    f"--csv-separator {shown}, or names of columns without it",
                )
        if self.quote != "'" and all(len(name) > 1 and name[0] == name[-1] == "'" for name in names):
            return "names in its first line have single quotes", '--csv-quote "\'", or names without quotes'
        if any("\x00" in name for name in names):
            return "its first line holds NUL characters", "--csv-encoding with the file's, such as utf-16"
        if self.skip_blanks is None and any(name.strip() and name != name.strip() for name in names):
            return (
                "names in its first line have blanks around them",
                "--csv-skip-blanks, or --csv-keep-blanks where blanks are part of names and values",
            )
        return None

    def _no_header(self, names: list[str], known: Collection[str]) -> tuple[str, str] | None:
        """Why a first line is not taken for a header, and what is accepted; None: it is one."""
        if not (self.header or any(name in known for name in names)):
            why = "it has none of the names that are declared or given" if known else "nothing says so"
            return (
                f"its first line may be no header, since {why} (it is not shown)",
                "--csv-header, if it holds the names of the columns, or --schema that declares one of them",
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
