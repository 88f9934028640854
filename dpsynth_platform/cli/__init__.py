"""The `dpsynth` command: one module for each group of commands."""
