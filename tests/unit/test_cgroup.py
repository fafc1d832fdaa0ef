"""Where the cgroup of this process is, from what /proc says."""

from __future__ import annotations

import pytest

from lllaunch.linux.cgroup import own_directory

UNIFIED = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
HYBRID = (
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
)


@pytest.mark.parametrize(
    ("mounts", "own", "directory"),
    [
        (UNIFIED, "0::/user.slice/a.scope\n", "/sys/fs/cgroup/user.slice/a.scope"),
        (UNIFIED, "0::/\n", "/sys/fs/cgroup/"),
        (HYBRID, "3:memory:/x\n0::/y\n", "/sys/fs/cgroup/unified/y"),
        ("tmpfs /tmp tmpfs rw 0 0\n", "0::/\n", None),
        (UNIFIED, "3:memory:/x\n", None),
        (r"cgroup2 /mnt/a\040b cgroup2 rw 0 0", "0::/c", "/mnt/a b/c"),
        ("", "", None),
    ],
)
def test_own_directory(mounts: str, own: str, directory: str | None) -> None:
    assert own_directory(mounts, own) == directory
