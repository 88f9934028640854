"""Texts by private fine-tuning of a language model.

What belongs in this package: what a generator of texts needs beside the training itself. What does not: private
training of any model (`training`), and what a text is worth (`quality`).

| modules | what they do |
| --- | --- |
| `base_models` | where a base model comes from, what it is made of, whether its parts fit together |
| `layout` | a record as text and back: the prompt that training and generation share |
| `examples` | a bounded table as tokenized examples on disk; with `layout`, all that sees data here |
| `slots`, `sampling` | texts out of a trained model: post-processing |
| `filtering` | which synthetic texts are kept: looks at synthetic texts only |
"""
