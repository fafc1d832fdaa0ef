"""Faults at random moments, and whether every promise held: ``python -m tests.faults --help``."""
