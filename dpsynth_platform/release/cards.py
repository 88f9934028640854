"""The cards by which others find and load a release: Croissant, and the dataset card of the Hugging Face Hub.

What belongs here: the dossier's facts in each format's terms. What does not: facts of its own; a card is made of the
dossier alone, so it is as public. Croissant 1.1 with its vocabulary of responsible AI:
https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html; https://huggingface.co/docs/hub/datasets-cards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parseaddr
from importlib.resources import files
from typing import Any

import yaml

from dpsynth_platform.foundation import markdown
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.release import page

CROISSANT_VERSION = "http://mlcommons.org/croissant/1.1"
RAI_VERSION = "http://mlcommons.org/croissant/RAI/1.0"
PARQUET = "application/x-parquet"
IMAGE = "sc:ImageObject"

_TYPES = {
    "bool": "sc:Boolean",
    "date32[day]": "sc:Date",
    "double": "cr:Float64",
    "float": "cr:Float32",
    "halffloat": "cr:Float16",
    "int8": "cr:Int8",
    "int16": "cr:Int16",
    "int32": "cr:Int32",
    "int64": "cr:Int64",
}
"""Croissant's names of Arrow types; times are `sc:DateTime`, all others `sc:Text`."""
_OWN_LICENSE = "LicenseRef-"
"""Prefix of identifiers that are not in SPDX's list (SPDX specification 2.3, clause 10)."""
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
          (10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"))  # fmt: skip


@dataclass(frozen=True)
class _RecordSet:
    """One table of the release, as a record set and its files.

    Attributes:
        id: of the record set; its fields are below it.
        files: its Parquet files, as the dossier has them.
        columns: those that are published, by their names in the table.
        table: what the dossier says of a linked table.
    """

    id: str
    description: str
    directory: str
    files: Sequence[Mapping[str, Any]]
    columns: Mapping[str, Mapping[str, Any]]
    table: Mapping[str, Any] | None = None

    @property
    def distribution(self) -> list[dict[str, Any]]:
        objects = [
            {
                "@type": "cr:FileObject",
                "@id": file["path"],
                "name": file["path"],
                "contentUrl": file["path"],
                "contentSize": f"{file['size']} B",
                "encodingFormat": PARQUET,
                "sha256": file["sha256"],
            }
            for file in self.files
        ]
        # Loaders check the hash of a single file; several files are read as one set.
        whole = f"{self.id}.files" if self.table else "table"
        together = {"@type": "cr:FileSet", "@id": whole, "name": whole, "encodingFormat": PARQUET,
                    "includes": f"{self.directory}/*.parquet"}  # fmt: skip
        return objects if len(objects) == 1 else [*objects, together]

    def source(self, column: str) -> dict[str, Any]:
        """Where a column's values are."""
        kind = "fileObject" if len(self.files) == 1 else "fileSet"
        return {kind: {"@id": self.distribution[-1]["@id"]}, "extract": {"column": column}}

    def field_id(self, column: str) -> str:
        """A field's identifier, which is part of an address: readers accept no blanks there, and resolve `..`."""
        plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", column) is not None
        return f"{self.id}/{column}" if plain else f"{self.id}/column/{list(self.columns).index(column) + 1}"

    def record_set(self, all_: Sequence[_RecordSet]) -> dict[str, Any]:
        key = [{"@id": self.field_id(column)} for column in (self.table or {}).get("key", [])]
        references = self._references(all_)
        return {
            "@type": "cr:RecordSet",
            "@id": self.id,
            "name": self.id,
            "description": self.description,
            **({"key": key} if key else {}),
            "field": [
                {
                    "@type": "cr:Field",
                    "@id": self.field_id(name),
                    "name": name,
                    "description": page.TREATMENTS[column["treatment"]],
                    "dataType": IMAGE if column["treatment"] == "pictured" else _data_type(column["type"]),
                    "source": self.source(name),
                    **({"references": references[name]} if name in references else {}),
                    **({"isArray": True, "arrayShape": "-1"} if column["type"].startswith("list<") else {}),
                }
                for name, column in self.columns.items()
            ],
        }

    @property
    def links(self) -> dict[str, str]:
        """Foreign keys of one column: the table that each refers to. Readers join by one column only."""
        if self.table is None:
            return {}
        parent = self.table["parent"]
        joins = parent is not None and len(parent["columns"]) == 1
        return {**({parent["columns"][0]: parent["table"]} if joins else {}), **self.table["lookups"]}

    def _references(self, all_: Sequence[_RecordSet]) -> dict[str, dict[str, Any]]:
        """By column, the key that it refers to: a field, or the field's source where its set has references itself.

        Croissant's own library (mlcroissant 1.1) cannot read a chain of fields that refer to fields.
        """
        tables, found = {each.id: each for each in all_}, {}
        for column, name in self.links.items():
            other = tables[name]
            key = (other.table or {})["key"][0]
            found[column] = other.source(key) if other.links else {"field": {"@id": other.field_id(key)}}
        return found


def _record_sets(dossier: Mapping[str, Any]) -> list[_RecordSet]:
    files, published = _tables(dossier), _published(dossier)
    linked = dossier["synthetic"].get("tables")
    if linked is None:
        what = "Answers to the declared queries." if _answers(dossier) else "The synthetic rows."
        return [_RecordSet("records", what, layout.DATA, files, {column["name"]: column for column in published})]
    return [
        _RecordSet(
            table["name"],
            page.table_in_words(table),
            f"{layout.DATA}/{table['name']}",
            [file for file in files if file["path"].startswith(f"{layout.DATA}/{table['name']}/")],
            {
                column["name"].partition(".")[2]: column
                for column in published
                if column["name"].startswith(f"{table['name']}.")
            },
            table,
        )
        for table in linked
    ]


def croissant(dossier: Mapping[str, Any]) -> dict[str, Any]:
    """The release as Croissant metadata (JSON-LD)."""
    release = dossier["release"]
    license_id = release["license"]
    what = "answers" if _answers(dossier) else "synthetic data"
    url = "" if license_id and license_id.startswith(_OWN_LICENSE) else "https://spdx.org/licenses/"
    sets = _record_sets(dossier)
    return {
        "@context": json.loads((files(page.__package__) / "templates/croissant-context.json").read_text("utf-8")),
        "@type": "sc:Dataset",
        "conformsTo": [CROISSANT_VERSION, RAI_VERSION],
        "name": release["id"],
        "description": release["description"],
        **({"license": url + license_id} if license_id else {}),
        "version": "1.0.0",
        "datePublished": release["created_at"][:10],
        "creator": [_person(owner) for owner in release["owners"]],
        "citeAs": f"{release['id']}: differentially private {what}, {release['created_at'][:4]}",
        "keywords": _tags(dossier),
        "isLiveDataset": False,
        "distribution": [item for found in sets for item in found.distribution],
        "recordSet": [found.record_set(sets) for found in sets],
        "rai:dataCollection": dossier["statement"]["setting"],
        **({"rai:dataUseCases": [release["purpose"]]} if release["purpose"] else {}),
        "rai:personalSensitiveInformation": list(dossier["guarantee"]["plain_words"]),
        "rai:dataLimitations": _limits(dossier),
        "rai:dataManipulationProtocol": _protocol(dossier["mechanism"]),
        "rai:dataPreprocessingProtocol": [dossier["scrubbing"]["note"], dossier["bounding"]["note"]],
    }


def dataset_card(dossier: Mapping[str, Any], key_fingerprint: str) -> str:
    """The release as a dataset card of the Hugging Face Hub: YAML front matter and Markdown."""
    release = dossier["release"]
    head = {
        **(_hub_license(release["license"]) if release["license"] else {}),
        "pretty_name": release["id"],
        "tags": _tags(dossier),
        "size_categories": [_size(dossier["synthetic"]["rows"])],
        "configs": [
            {
                "config_name": found.id if found.table else "default",
                "data_files": [{"split": "train", "path": [file["path"] for file in found.files]}],
            }
            for found in _record_sets(dossier)
            if found.files
        ],
    }
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=1000)
    environment = page.environment(html=False)
    environment.filters.update(plain=markdown.plain, cell=markdown.cell)
    body = environment.get_template("README.md.j2").render(
        **dossier,
        published=_published(dossier),
        written=_written(dossier),
        limits=_limits(dossier),
        answers=_answers(dossier),
        treatments=page.TREATMENTS,
        linked=[(table, page.table_in_words(table)) for table in dossier["synthetic"].get("tables", [])],
        layout=layout,
        key_fingerprint=key_fingerprint,
    )
    return f"---\n{front}---\n\n{body}"


def _tables(dossier: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [file for file in dossier["synthetic"]["files"] if file["path"].endswith(".parquet")]


def _published(dossier: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [column for column in dossier["synthetic"]["columns"] if column["treatment"] != "absent"]


def _written(dossier: Mapping[str, Any]) -> list[str]:
    return [column["name"] for column in _published(dossier) if column["treatment"] == "written"]


def _tags(dossier: Mapping[str, Any]) -> list[str]:
    return [
        "statistics" if _answers(dossier) else "synthetic",
        "image" if "pictures" in dossier["synthetic"] else "text" if _written(dossier) else "tabular",
        "differential-privacy",
        dossier["mechanism"]["method"],
    ]


def _protocol(mechanism: Mapping[str, Any]) -> str:
    kept = f"; it kept setting {mechanism['setting']['in_words']}" if "setting" in mechanism else ""
    return f"{mechanism['method']}: {mechanism['why']}{kept}"


def _answers(dossier: Mapping[str, Any]) -> bool:
    """Whether answers to queries are published, and no rows."""
    return bool(dossier["contract"].get("kind") == "answers")


def _limits(dossier: Mapping[str, Any]) -> list[str]:
    return [
        "Answers with noise: what few records say is drowned by it, and an interval is of the noise alone."
        if _answers(dossier)
        else "Drawn from noisy statistics: patterns of few records may be missing, or appear by chance.",
        *(
            f"{name} is written by a language model: it may be untrue, make no sense or break off."
            for name in _written(dossier)
        ),
        *(
            f"{column['name']} has synthetic pictures: what they show in detail {_details(dossier)}."
            for column in _published(dossier)
            if column["treatment"] == "pictured"
        ),
        *(
            f"The table {table['name']} is public and released as it is: no mechanism protects its rows."
            for table in dossier["synthetic"].get("tables", [])
            if table["role"] == "public"
        ),
        dossier["ledger"]["claim"],
        *(f"Not covered by the guarantee: {access}" for access in dossier["statement"]["not_covered"]),
    ]


def _details(dossier: Mapping[str, Any]) -> str:
    """Where the details of pictures come from."""
    drawn = (dossier["contract"]["generate"].get("text") or {}).get("pictures")
    if drawn is None:
        return "is noise, or comes of public pictures"
    texts = ", ".join(_written(dossier))
    return f"comes of the model {drawn['endpoint']['model']}, which drew them from the synthetic texts in {texts}"


def _person(owner: str) -> dict[str, str]:
    """A contact such as `a@example.org`, `Ada Lovelace <a@example.org>` or a name without address."""
    name, address = parseaddr(owner)
    if "@" not in address:
        return {"@type": "sc:Person", "name": owner}
    return {"@type": "sc:Person", **({"name": name} if name else {}), "email": address}


def _hub_license(identifier: str) -> dict[str, str]:
    """The Hub's key of a license; one that is not in SPDX's list is `other`, with a name."""
    if identifier.startswith(_OWN_LICENSE):
        return {"license": "other", "license_name": identifier.lower()}
    return {"license": identifier.lower()}


def _data_type(arrow_type: str) -> str:
    inner = arrow_type.removeprefix("list<").removesuffix(">")
    return "sc:DateTime" if inner.startswith("timestamp") else _TYPES.get(inner, "sc:Text")


def _size(rows: int) -> str:
    return next((name for limit, name in _SIZES if rows < limit), "100M<n<1B")
