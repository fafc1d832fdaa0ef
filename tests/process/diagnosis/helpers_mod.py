"""What c02_import imports."""

import flash_attention_that_is_not_there as flash  # type: ignore[import-not-found]


def attend() -> None:
    flash.attend()
