"""Generators of pictures: each makes a picture for every row that the model of the other columns draws.

What belongs here: the methods and their shared parts. What does not: the other columns (`synth.counted`).
"""
