"""The methods of all clients. A driver's client only implements ``_execute``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar, Unpack

from pgmill import calls
from pgmill.calls import Call
from pgmill.options import Duration, JsonValue, NewTask, TaskOptions
from pgmill.results import Attempt, Enqueued, Outcome, Run, RunState, Task

T = TypeVar("T")


class Client(ABC):
    """The functions of pgmill on one connection.

    Every method runs one statement on the connection of the caller, in the transaction of the caller, and never commits.
    So a task exists if and only if the transaction that enqueued it commits. All methods raise
    :class:`pgmill.PgmillError` for an error of the server.
    """

    @abstractmethod
    def _execute(self, call: Call[T]) -> T:
        """Executes the call."""

    def enqueue(
        self,
        statement: str,
        params: Sequence[JsonValue] | None = None,
        *,
        name: str | None = None,
        key: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Enqueued:
        """Enqueues one task. With a key that a live task has, returns that task."""
        return self._execute(calls.enqueue(statement, params, name, key, options))

    def enqueue_many(
        self, tasks: Sequence[NewTask | str], **options: Unpack[TaskOptions]
    ) -> list[int]:
        """Enqueues many tasks with the same options, all or none, and returns their ids in order."""
        return self._execute(calls.enqueue_many(tasks, options))

    def task(self, task_id: int) -> Task | None:
        """Returns the task: live with its state, or finished with its outcome; None if there is none."""
        return self._execute(calls.task(task_id))

    def history(self, task_id: int) -> list[Attempt]:
        """Returns the finished attempts of the task, oldest first."""
        return self._execute(calls.history(task_id))

    def why(self, task_id: int) -> str | None:
        """Returns one sentence: why the task is not running, or what it is doing; None if there is none."""
        return self._execute(calls.why(task_id))

    def wait(self, task_id: int, timeout: Duration | None = None) -> Outcome:
        """Waits until the task has ended, and returns its outcome.

        The server polls up to twice a second, without an open snapshot. Raises :class:`pgmill.WaitTimeout` after the
        timeout, and :class:`pgmill.TransactionOpen` inside a transaction.
        """
        return self._execute(calls.wait(task_id, timeout))

    def cancel(self, task_id: int, running: bool = True) -> str:
        """Cancels the task. Returns cancelled, requested, running, finished or not found."""
        return self._execute(calls.cancel(task_id, running))

    def retry(self, task_id: int) -> str:
        """Runs a finished task again. Returns retried, brought forward, a state or not found."""
        return self._execute(calls.retry(task_id))

    def start_run(
        self,
        jobs: Sequence[str],
        params: Mapping[str, JsonValue] | None = None,
        *,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        run_timeout: Duration | None = None,
        traceparent: str | None = None,
    ) -> Run:
        """Starts a run of these jobs."""
        return self._execute(calls.start_run(jobs, params, tags, metadata, run_timeout, traceparent))

    def wait_run(self, run_id: int, timeout: Duration | None = None) -> RunState:
        """Waits until the run has ended, and returns its state. Raises as :meth:`wait`."""
        return self._execute(calls.wait_run(run_id, timeout))

    def cancel_run(self, run_id: int, kill: bool = False) -> str:
        """Cancels the run. Returns cancelling, the state of a run that has ended, or not found."""
        return self._execute(calls.cancel_run(run_id, kill))


class AsyncClient(ABC):
    """The functions of pgmill on one connection, as coroutines. See :class:`Client`."""

    @abstractmethod
    async def _execute(self, call: Call[T]) -> T:
        """Executes the call."""

    async def enqueue(
        self,
        statement: str,
        params: Sequence[JsonValue] | None = None,
        *,
        name: str | None = None,
        key: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Enqueued:
        """As :meth:`Client.enqueue`."""
        return await self._execute(calls.enqueue(statement, params, name, key, options))

    async def enqueue_many(
        self, tasks: Sequence[NewTask | str], **options: Unpack[TaskOptions]
    ) -> list[int]:
        """As :meth:`Client.enqueue_many`."""
        return await self._execute(calls.enqueue_many(tasks, options))

    async def task(self, task_id: int) -> Task | None:
        """As :meth:`Client.task`."""
        return await self._execute(calls.task(task_id))

    async def history(self, task_id: int) -> list[Attempt]:
        """As :meth:`Client.history`."""
        return await self._execute(calls.history(task_id))

    async def why(self, task_id: int) -> str | None:
        """As :meth:`Client.why`."""
        return await self._execute(calls.why(task_id))

    async def wait(self, task_id: int, timeout: Duration | None = None) -> Outcome:
        """As :meth:`Client.wait`."""
        return await self._execute(calls.wait(task_id, timeout))

    async def cancel(self, task_id: int, running: bool = True) -> str:
        """As :meth:`Client.cancel`."""
        return await self._execute(calls.cancel(task_id, running))

    async def retry(self, task_id: int) -> str:
        """As :meth:`Client.retry`."""
        return await self._execute(calls.retry(task_id))

    async def start_run(
        self,
        jobs: Sequence[str],
        params: Mapping[str, JsonValue] | None = None,
        *,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        run_timeout: Duration | None = None,
        traceparent: str | None = None,
    ) -> Run:
        """As :meth:`Client.start_run`."""
        return await self._execute(calls.start_run(jobs, params, tags, metadata, run_timeout, traceparent))

    async def wait_run(self, run_id: int, timeout: Duration | None = None) -> RunState:
        """As :meth:`Client.wait_run`."""
        return await self._execute(calls.wait_run(run_id, timeout))

    async def cancel_run(self, run_id: int, kill: bool = False) -> str:
        """As :meth:`Client.cancel_run`."""
        return await self._execute(calls.cancel_run(run_id, kill))
