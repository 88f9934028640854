"""The methods of `generate.method` and their groups."""

from __future__ import annotations

from typing import Literal

TableMethodName = Literal[
    "auto",
    "aim",
    "jam",
    "mst",
    "mwem",
    "rap",
    "gem",
    "grem",
    "appgm",
    "privsyn",
    "mrf",
    "privbayes",
    "histogram",
    "independent",
    "arn",
    "tbart",
    "dp_vae",
    "table_diffusion",
    "dp_gan",
    "great",
    "dp_2stage",
]
"""Methods that one table may have."""
TextMethodName = Literal["auto", "dp_finetune", "ctcl", "dp_inference", "aug_pe"]
"""Methods that a table with a text to write may have."""
MethodName = Literal[
    TableMethodName,
    TextMethodName,
    "image_moments",
    "image_pe",
    "image_mixed",
    "image_diffusion",
    "image_finetune",
    "image_embedding",
    "image_gan",
    "answers",
]
ANSWERS = "answers"
"""The method of a contract of `kind: answers`, which makes no rows."""
TUNED = "tuned"
"""The method of plans for `generate.tune`, whose runs have methods of their own. No contract names it."""
VIEW_METHODS = ("aim", "mst", "mwem", "independent", "arn", "tbart")
"""Methods for linked tables: their model gives some columns given others, so that rows are drawn given the parent's."""
LINKED = "linked"
"""The method of plans for linked tables, each of which has a method of its own. No contract names it."""
WORKLOAD_METHODS = ("auto", "aim", "jam", "mwem", "rap", "gem")
"""Methods for which `generate.workload` matters."""
NETWORK_METHODS = ("arn", "tbart", "dp_vae", "table_diffusion", "dp_gan")
"""Methods for tables that train a network by DP-SGD."""
MIXTURE_NETWORK_METHODS = ("dp_vae", "table_diffusion", "dp_gan")
"""Of these, those whose network makes distributions of rows from random points."""
LANGUAGE_METHODS = ("great", "dp_2stage")
"""Methods for tables that train a language model to write rows."""
TARGET_METHODS = ("aim", "jam")
"""Methods that heed `generate.workload.target`."""
PUBLIC_METHODS = ("aim", "jam", "mwem", "rap", "gem")
"""Methods that counts of `generate.public` help."""
PUBLIC_ROWS_METHODS = (*PUBLIC_METHODS, "dp_2stage", "aug_pe")
"""Methods that may have `generate.public`."""
TRAINED_METHODS = ("dp_finetune", "ctcl")
"""Methods that train a language model and keep it, so that it can score texts."""
INFERENCE_METHODS = ("dp_inference",)
"""Methods that draw tokens with privacy from an untrained language model that reads private records."""
EVOLVED_METHODS = ("aug_pe",)
"""Methods by which private records vote for texts that an untrained language model writes."""
TEXT_METHODS = (*TRAINED_METHODS, *INFERENCE_METHODS, *EVOLVED_METHODS)
"""Methods that write a text column, by a language model."""
IMAGE_METHODS = (
    "image_moments",
    "image_pe",
    "image_mixed",
    "image_diffusion",
    "image_finetune",
    "image_embedding",
    "image_gan",
)
"""Methods that make pictures."""
FINETUNED_METHODS = ("image_finetune",)
"""Methods that train a part of a public diffusion model."""
PARTS_OF_IMAGE = {
    "evolution": ("image_pe", "image_mixed"),
    "diffusion": ("image_diffusion",),
    "finetune": FINETUNED_METHODS,
    "embedding": ("image_embedding",),
    "gan": ("image_gan",),
}
"""Keys of `generate.image` that these methods require and all others refuse."""
SUMMED_METHODS = ("image_moments", "image_mixed", "image_embedding")
"""Methods that measure sums of pictures by class, which an audit can attack."""
DENOISED_METHODS = ("image_diffusion", "image_finetune")
"""Methods that keep a diffusion model, whose loss on a picture an audit can attack."""
BASE_MODEL_METHODS = (*TEXT_METHODS, *LANGUAGE_METHODS)
"""Methods that start from a checkpoint."""
TOPIC_METHODS = ("ctcl", *INFERENCE_METHODS)
"""Methods that can sort texts by public topics first; `ctcl` always does."""
PARTS_OF_TEXT = {"inference": INFERENCE_METHODS, "evolution": EVOLVED_METHODS, "topics": TOPIC_METHODS}
"""Keys of `generate.text` that all other methods refuse; a method requires the first one that it has."""
EVOLVED_BY = {"evolution", "temperature", "top_k", "top_p"}
"""Keys of `generate.text` that decide how candidates are written."""
DRAWN_BY = ("min_tokens", "most_tokens", "keep", "counts")
"""Keys of `generate.text` that decide how a trained model's texts are drawn and kept: post-processing."""
