"""Tables in files, of whatever layout: which files hold rows, which columns they have, which version they are.

What belongs here: opening a table (`tables`), the layouts that there are (`delta`, `directories`), versions of a Delta
table that hold other rows (`versions`), and the boundaries of periods (`periods`). What does not: a contract's source
as a run pins it (`dpsynth_platform.sources.source`), a judgement on columns, any change to a value.
"""
