"""Texts by language models: private fine-tuning (`dp_finetune`, `ctcl`), DP inference and private evolution.

What belongs in this package: generators of texts, without the training itself. What does not: private training of any
model (`training`), and measuring texts (`quality`). `generator`, `sealing` and `counted` are common to all methods.
"""
