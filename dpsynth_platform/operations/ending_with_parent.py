"""Ends this process with its parent, when it is imported: by the process that a run's steps are forked from.

That process would otherwise see only after its imports that nobody needs it any more.
"""

from dpsynth_platform.worker.process import killed_with_parent

killed_with_parent()
