"""Every call to the operating system that Python's library does not offer, in one place.

Nothing here decides anything. `process` holds prctl, pidfd and timerfd calls, `proc` reads /proc,
`inotify` watches files, `cgroup` reads limits, `sockets` makes addresses of Unix sockets.
"""
