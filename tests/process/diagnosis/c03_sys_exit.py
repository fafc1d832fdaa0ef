import os
import sys
import time


def check_data() -> None:
    if os.environ["RANK"] == "2":
        sys.exit(3)
    time.sleep(1000)


check_data()
