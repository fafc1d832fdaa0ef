"""Every call to the operating system that Python's library does not offer, in one place.

Nothing here decides anything. `process` holds the system calls, `proc` reads /proc, `cgroup` reads
limits, `gpus` asks the driver.
"""
