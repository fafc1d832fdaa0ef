"""Pages as people open them: in a browser, from the disk, with scripts on and off."""
