"""Tables in files: which files hold rows, their columns and versions; and the source that a run pins.

What belongs here: opening a table (`tables`, `table_files`), layouts (`delta`, `directories`), versions with other rows
(`versions`), boundaries of periods (`periods`), and a contract's pinned source (`source`). What does not: judging
columns, or changing values.
"""
