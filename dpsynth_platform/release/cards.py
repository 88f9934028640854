"""The cards by which others find and load a release: Croissant, and the dataset card of the Hugging Face Hub.

What belongs here: saying in each format's own words what the dossier says. What does not: facts of its own; a card is
made of the dossier alone, so it is as public as that. Croissant: https://docs.mlcommons.org/croissant/docs/
croissant-spec-1.1.html, with the vocabulary of responsible AI. Dataset card: https://huggingface.co/docs/hub/
datasets-cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.utils import parseaddr
from html import escape
from typing import Any

import yaml

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.figures import upper_bound

CROISSANT_VERSION = "http://mlcommons.org/croissant/1.1"
RAI_VERSION = "http://mlcommons.org/croissant/RAI/1.0"
PARQUET = "application/x-parquet"

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "excludes": "cr:excludes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
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
"""Croissant's name of each Arrow type that a published table can have; times are `sc:DateTime`, all else `sc:Text`."""
_OWN_LICENSE = "LicenseRef-"
"""How identifiers begin that are no entries of SPDX's list (SPDX specification 2.3, clause 10)."""
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
          (10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"))  # fmt: skip
_TREATMENTS = {
    "modelled": "modelled with differential privacy",
    "written": "written by a language model, with differential privacy",
    "regenerated": "fresh surrogate ids, unrelated to the source's",
    "empty": "without values, present for the schema's sake",
}


def croissant(dossier: Mapping[str, Any]) -> dict[str, Any]:
    """The release as Croissant metadata (JSON-LD): its files with hashes, its columns with types, its limits."""
    release = dossier["release"]
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
        for file in _tables(dossier)
    ]
    # A file by itself is held against its hash when it is loaded; several are read as one set.
    whole = {"@type": "cr:FileSet", "@id": "table", "name": "table", "encodingFormat": PARQUET,
             "includes": f"{layout.DATA}/*.parquet"}  # fmt: skip
    source = {"fileObject": {"@id": objects[0]["@id"]}} if len(objects) == 1 else {"fileSet": {"@id": "table"}}
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": [CROISSANT_VERSION, RAI_VERSION],
        "name": release["id"],
        "description": release["description"],
        **({"license": _license_url(release["license"])} if release["license"] else {}),
        "version": "1.0.0",
        "datePublished": release["created_at"][:10],
        "creator": [_person(owner) for owner in release["owners"]],
        "citeAs": f"{release['id']}: differentially private synthetic data, {release['created_at'][:4]}",
        "keywords": _tags(dossier),
        "isLiveDataset": False,
        "distribution": objects if len(objects) == 1 else [*objects, whole],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "records",
                "name": "records",
                "description": "The synthetic rows.",
                "field": [
                    {
                        "@type": "cr:Field",
                        "@id": f"records/{column['name']}",
                        "name": column["name"],
                        "description": _TREATMENTS[column["treatment"]],
                        "dataType": _data_type(column["type"]),
                        "source": {**source, "extract": {"column": column["name"]}},
                        **({"isArray": True, "arrayShape": "-1"} if column["type"].startswith("list<") else {}),
                    }
                    for column in _published(dossier)
                ],
            }
        ],
        "rai:dataCollection": dossier["statement"]["setting"],
        "rai:personalSensitiveInformation": list(dossier["guarantee"]["plain_words"]),
        "rai:dataLimitations": _limits(dossier),
        "rai:dataManipulationProtocol": f"{dossier['mechanism']['method']}: {dossier['mechanism']['why']}",
        "rai:dataPreprocessingProtocol": [dossier["scrubbing"]["note"], dossier["bounding"]["note"]],
    }


def dataset_card(dossier: Mapping[str, Any], key_fingerprint: str) -> str:
    """The release as a dataset card: YAML front matter by which it is found and loaded, and the statement in words."""
    release = dossier["release"]
    head = {
        **(_hub_license(release["license"]) if release["license"] else {}),
        "pretty_name": release["id"],
        "tags": _tags(dossier),
        "size_categories": [_size(dossier["synthetic"]["rows"])],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": [file["path"] for file in _tables(dossier)]}],
            }
        ],
    }
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{front}---\n\n" + "\n".join(_body(dossier, key_fingerprint))


def _body(dossier: Mapping[str, Any], key_fingerprint: str) -> Iterator[str]:
    release, guarantee = dossier["release"], dossier["guarantee"]
    yield f"# {_plain(release['id'])}\n"
    yield f"{_plain(release['description'])}\n"
    if release["demonstration"]:
        yield "**Demonstration.** The people in the source are fictional.\n"
    yield (
        f"{dossier['synthetic']['rows']} synthetic rows, made {release['created_at'][:10]} with differential privacy. "
        f"No row was copied from a person's record; one may equal one by chance. "
        f"Questions to {_plain(', '.join(release['owners']))}.\n"
    )
    yield "## Privacy\n"
    yield (
        f"Epsilon {upper_bound(guarantee['epsilon'])}, delta {upper_bound(guarantee['delta'])} for one "
        f"{guarantee['unit']} ({guarantee['adjacency']}) with at most {guarantee['max_contributions']} records: "
        f"{guarantee['tier']}.\n"
    )
    yield from (f"{_plain(sentence)}\n" for sentence in guarantee["plain_words"])
    if guarantee["why_weak"]:
        yield f"Why so weak a guarantee was accepted: {_plain(guarantee['why_weak'])}\n"
    yield f"Audit by attack: {dossier['audit']['report']['verdict']}. {_plain(dossier['audit']['report']['summary'])}\n"
    yield "## Columns\n"
    yield "| column | type | what became of it |\n| --- | --- | --- |"
    yield from (
        f"| {_cell(column['name'])} | {_cell(column['type'])} | {_TREATMENTS[column['treatment']]} |"
        for column in _published(dossier)
    )
    if texts := dossier["synthetic"].get("texts"):
        yield f"\n{_plain(texts['in_words'])}.\n"
    yield "\n## Limits\n"
    yield from (f"- {_plain(limit)}" for limit in _limits(dossier))
    yield "\n## How to verify\n"
    yield (
        f"This directory proves itself: `{layout.ATTESTATION}` is an in-toto statement about every file here, signed "
        f"by the key with the fingerprint `{key_fingerprint}` (compare it over another channel). `{layout.PAGE}` says "
        "how to check it with and without the publisher's software:\n"
    )
    yield "    dpsynth release verify PATH-TO-THIS-DIRECTORY --public-key PUBLISHERS-KEY\n"
    yield f"`{layout.DOSSIER}` is the whole dossier for machines (schema: `{layout.SCHEMA}`).\n"


def _tables(dossier: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [file for file in dossier["synthetic"]["files"] if file["path"].endswith(".parquet")]


def _published(dossier: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [column for column in dossier["synthetic"]["columns"] if column["treatment"] != "absent"]


def _tags(dossier: Mapping[str, Any]) -> list[str]:
    written = any(column["treatment"] == "written" for column in _published(dossier))
    return ["synthetic", "text" if written else "tabular", "differential-privacy", dossier["mechanism"]["method"]]


def _limits(dossier: Mapping[str, Any]) -> list[str]:
    written = [column["name"] for column in _published(dossier) if column["treatment"] == "written"]
    return [
        "Drawn from noisy statistics: what only few records have in common may be missing, or be there by chance.",
        *(f"{name} is written by a language model: it may be untrue, make no sense or break off." for name in written),
        dossier["ledger"]["claim"],
        *(f"Not covered by the guarantee: {access}" for access in dossier["statement"]["not_covered"]),
    ]


def _person(owner: str) -> dict[str, str]:
    """Somebody to ask, by address where the contract gives one: `a@example.org` or `Ada Lovelace <a@example.org>`."""
    name, address = parseaddr(owner)
    if "@" not in address:
        return {"@type": "sc:Person", "name": owner}
    return {"@type": "sc:Person", **({"name": name} if name else {}), "email": address}


def _license_url(identifier: str) -> str:
    """Where an SPDX license can be read. One of the publisher's own has no such place and is told by its name."""
    return identifier if identifier.startswith(_OWN_LICENSE) else f"https://spdx.org/licenses/{identifier}"


def _hub_license(identifier: str) -> dict[str, str]:
    """The Hub's word for a license; what it does not know is `other`, with a name."""
    if identifier.startswith(_OWN_LICENSE):
        return {"license": "other", "license_name": identifier.lower()}
    return {"license": identifier.lower()}


def _data_type(arrow_type: str) -> str:
    inner = arrow_type.removeprefix("list<").removesuffix(">")
    return "sc:DateTime" if inner.startswith("timestamp") else _TYPES.get(inner, "sc:Text")


def _size(rows: int) -> str:
    return next((name for limit, name in _SIZES if rows < limit), "100M<n<1B")


def _plain(text: str) -> str:
    """Text that stays text: no tag, no link, no picture, no line of its own."""
    return re.sub(r"([\\`\[\]!])", r"\\\1", escape(" ".join(text.split()), quote=False))


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")
