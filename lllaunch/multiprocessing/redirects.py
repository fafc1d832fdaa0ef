"""Redirects of this process's own stdout and stderr to files: torch's, which is imported for it."""

from lllaunch import torchs

__getattr__ = torchs(__name__)
