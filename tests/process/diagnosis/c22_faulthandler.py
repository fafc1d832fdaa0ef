import faulthandler

faulthandler.enable()

import c04_segfault  # noqa: E402, F401 - it dies while it is imported
