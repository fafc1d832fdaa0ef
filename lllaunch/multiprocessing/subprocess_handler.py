"""A program in a session of its own: torch's, which is imported for it."""

from lllaunch import torchs

__getattr__ = torchs(__name__)
