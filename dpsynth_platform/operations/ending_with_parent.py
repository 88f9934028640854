"""Ends this process with its parent, on import by the fork server of a run's steps.

Otherwise that process would notice the end of its parent only after its imports.
"""

from dpsynth_platform.worker.process import killed_with_parent

killed_with_parent()
