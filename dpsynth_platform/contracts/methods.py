"""The methods of `generate.method`, and what groups of them have in common."""

from __future__ import annotations

from typing import Literal

MethodName = Literal[
    "auto", "aim", "mst", "mwem", "privbayes", "independent", "dp_finetune", "ctcl", "dp_inference", "aug_pe"
]
WORKLOAD_METHODS = ("auto", "aim", "mwem")
"""Methods for which `generate.workload` matters."""
TRAINED_METHODS = ("dp_finetune", "ctcl")
"""Methods that train a language model and leave it, so that it can be asked how likely a text is."""
INFERENCE_METHODS = ("dp_inference",)
"""Methods by which a language model that is not trained reads private records, and tokens are drawn with privacy."""
EVOLVED_METHODS = ("aug_pe",)
"""Methods by which a language model that is not trained writes texts, and private records vote for them."""
TEXT_METHODS = (*TRAINED_METHODS, *INFERENCE_METHODS, *EVOLVED_METHODS)
"""Methods that write a text column, by a language model."""
BASE_MODEL_METHODS = TEXT_METHODS
"""Methods that start from a checkpoint."""
TOPIC_METHODS = ("ctcl",)
"""Methods that sort texts by public topics first."""
PARTS_OF_TEXT = {"topics": TOPIC_METHODS, "inference": INFERENCE_METHODS, "evolution": EVOLVED_METHODS}
"""Keys of `generate.text` that a method must have, and no other may."""
EVOLVED_BY = {"evolution", "temperature", "top_k", "top_p"}
"""Keys of `generate.text` by which candidates are written."""
DRAWN_BY = ("min_tokens", "most_tokens", "keep", "counts")
"""Keys of `generate.text` by which a trained model's texts are drawn and kept: post-processing."""
