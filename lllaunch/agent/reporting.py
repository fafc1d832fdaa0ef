"""The events and metrics of an agent: a mixin over the agent's group and counters."""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lllaunch.agent.events import Event, EventMetadataValue, EventSource, record
from lllaunch.agent.metrics import put_metric
from lllaunch.agent.states import WorkerState
from lllaunch.agent.worker_group import RunResult, Worker, WorkerGroup


class Reporting:
    """Tells of an agent's group through `lllaunch.agent.events` and `lllaunch.agent.metrics`."""

    _worker_group: WorkerGroup
    _remaining_restarts: int
    _total_execution_time: int

    def get_event_failed(self) -> Event:
        """The event of an agent that failed; for use where its exception is handled."""
        return self._construct_event(
            state="FAILED", source=EventSource.AGENT, raw_error=traceback.format_exc()
        )

    def get_event_succeeded(self) -> Event:
        """The event of an agent that succeeded."""
        return self._construct_event(state="SUCCEEDED", source=EventSource.AGENT)

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record an event with the duration of what runs inside, milliseconds."""
        started = time.perf_counter()
        try:
            yield
        finally:
            duration = (time.perf_counter() - started) * 1000
            self._record(
                self._construct_event(state=state, source=EventSource.AGENT, duration_ms=duration)
            )

    def _record(self, event: Event) -> None:
        record(event, self._worker_group.spec.event_log_handler)

    def _construct_event(
        self,
        state: str,
        source: EventSource,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        group, spec = self._worker_group, self._worker_group.spec
        details: dict[str, Any] = {
            "group_world_size": group.group_world_size,
            "entry_point": spec.get_entrypoint_name(),
        }
        if worker is not None:
            details |= {
                "local_rank": [worker.local_rank],
                "role_rank": [worker.role_rank],
                "role_world_size": [worker.role_world_size],
                "exit_code": [exit_code],
                "worker_pid": [worker_pid],
            }
        handler = spec.rdzv_handler
        metadata: dict[str, EventMetadataValue] = {
            "run_id": handler.get_run_id() if handler is not None else "",
            "global_rank": worker.global_rank if worker is not None else None,
            "group_rank": group.group_rank,
            "worker_id": str(worker.id) if worker is not None else None,
            "role": spec.role,
            "hostname": socket.gethostname(),
            "state": state,
            "total_run_time": self._total_execution_time,
            "rdzv_backend": handler.get_backend() if handler is not None else "",
            "raw_error": raw_error,
            "metadata": json.dumps(details),
            "agent_restarts": spec.max_restarts - self._remaining_restarts,
            "duration_ms": duration_ms,
        }
        return Event(f"torchelastic.worker.status.{state}", source=source, metadata=metadata)

    def _record_worker_events(self, result: RunResult) -> None:
        for worker in self._worker_group.workers:
            failure = result.failures.get(worker.global_rank)
            self._record(
                self._construct_event(
                    state=self._get_worker_state(worker, result),
                    source=EventSource.WORKER,
                    worker=worker,
                    raw_error=json.dumps(failure.error_file_data) if failure else None,
                    exit_code=failure.exitcode if failure else None,
                    worker_pid=failure.pid if failure else None,
                )
            )

    def _get_worker_state(self, worker: Worker, result: RunResult) -> str:
        failed = result.state in (WorkerState.UNHEALTHY, WorkerState.FAILED)
        if failed and worker.global_rank not in result.failures:
            # It was ended because others failed.
            return "TERMINATED"
        return result.state.value

    def _record_metrics(self, result: RunResult) -> None:
        spec = self._worker_group.spec
        failed = result.is_failed()
        retried = self._remaining_restarts != spec.max_restarts
        outcomes = {
            "run_success_with_retries": not failed and retried,
            "run_success_no_retries": not failed and not retried,
            "run_failed_with_retries": failed and retried,
            "run_failed_no_retries": failed and not retried,
        }
        # How much of its allowance a run needed, in percent.
        flakiness = 100.0
        if not failed:
            flakiness -= 100.0 * (self._remaining_restarts + 1) / (spec.max_restarts + 1)
        put_metric(f"workers.{spec.role}.flakiness", int(flakiness))
        put_metric(f"workers.{spec.role}.run_total", 1)
        for name, happened in outcomes.items():
            put_metric(f"workers.{spec.role}.{name}", int(happened))
