"""Seeded defects, and whether the tests find them: ``python -m tests.mutants --help``."""
