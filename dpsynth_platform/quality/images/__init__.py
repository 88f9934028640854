"""Quality of synthetic pictures against real ones: a classifier, feature distances, and nearest real pictures.

What belongs here: pure functions of arrays of pictures and labels. What does not: reading pictures, and showing the
report outside of its restricted forms.
"""
