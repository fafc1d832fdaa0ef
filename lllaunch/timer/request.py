"""`FileTimerRequest`: a request as it is written into the FIFO."""

from __future__ import annotations

from lllaunch.timer.api import TimerRequest


class FileTimerRequest(TimerRequest):
    """A request to a `FileTimerServer`.

    ``expiration_time``: when it ends, seconds since the epoch; negative takes the timer back.
    """

    __slots__ = ("signal", "version")

    def __init__(
        self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0
    ) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = 1
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        """Process id of the worker, also ``worker_id``."""
        pid: int = self.worker_id
        return pid

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileTimerRequest):
            return False
        same = self.version == other.version and self.signal == other.signal
        return same and super().__eq__(other)

    __hash__ = None

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.signal!r})"

    def to_json(self) -> str:
        """Returns the request as it is written into the FIFO, without the newline."""
        import json  # noqa: PLC0415 - 5 ms that a worker's client pays when it needs them

        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": self.signal,
            }
        )
