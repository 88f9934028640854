"""The console's pages, on NiceGUI: what people see.

What belongs here: how the read models (`views`) look, where each page is, and the dialogs in which people decide. What
does not: what the pages say, who may see it, and who may come in.
"""
