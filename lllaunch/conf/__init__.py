"""Configs that ship with lllaunch; Hydra finds them as ``pkg://lllaunch.conf``."""
