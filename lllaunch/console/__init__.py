"""What the launcher says on the user's terminal: a few messages, and the report at the end."""

from __future__ import annotations
