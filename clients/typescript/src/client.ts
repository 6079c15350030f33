// The methods of all clients. A driver's client only implements `execute`.

import * as calls from "./calls.js";
import type { Id, NewTask, Seconds, TaskOptions } from "./options.js";
import type { Attempt, Enqueued, Outcome, Run, RunState, Task } from "./results.js";

/**
 * The functions of pgmill on one connection.
 *
 * Every method runs one statement on the connection of the caller, in the transaction of the caller, and never commits.
 * So a task exists if and only if the transaction that enqueued it commits. All methods throw PgmillError for an error
 * of the server.
 */
export abstract class Client {
  protected abstract execute<T>(call: calls.Call<T>): Promise<T>;

  /** Enqueues one task. With a key that a live task has, returns that task. */
  async enqueue(statement: string, options: calls.EnqueueOptions = {}): Promise<Enqueued> {
    return this.execute(calls.enqueue(statement, options));
  }

  /** Enqueues many tasks with the same options, all or none, and returns their ids in order. */
  async enqueueMany(tasks: readonly (NewTask | string)[], options: TaskOptions = {}): Promise<number[]> {
    return this.execute(calls.enqueueMany(tasks, options));
  }

  /** Returns the task: live with its state, or finished with its outcome; null if there is none. */
  async task(taskId: Id): Promise<Task | null> {
    return this.execute(calls.task(taskId));
  }

  /** Returns the finished attempts of the task, oldest first. */
  async history(taskId: Id): Promise<Attempt[]> {
    return this.execute(calls.history(taskId));
  }

  /** Returns one sentence: why the task is not running, or what it is doing; null if there is none. */
  async why(taskId: Id): Promise<string | null> {
    return this.execute(calls.why(taskId));
  }

  /**
   * Waits until the task has ended, and returns its outcome. The server polls up to twice a second, without an open
   * snapshot.
   *
   * @throws WaitTimeout after the timeout, TransactionOpen inside a transaction
   */
  async wait(taskId: Id, timeout: Seconds | null = null): Promise<Outcome> {
    return this.execute(calls.wait(taskId, timeout));
  }

  /** Cancels the task. Returns cancelled, requested, running, finished or not found. */
  async cancel(taskId: Id, running = true): Promise<string> {
    return this.execute(calls.cancel(taskId, running));
  }

  /** Runs a finished task again. Returns retried, brought forward, a state or not found. */
  async retry(taskId: Id): Promise<string> {
    return this.execute(calls.retry(taskId));
  }

  /** Starts a run of these jobs. */
  async startRun(jobs: readonly string[], options: calls.RunOptions = {}): Promise<Run> {
    return this.execute(calls.startRun(jobs, options));
  }

  /** Waits until the run has ended, and returns its state. Throws as wait. */
  async waitRun(runId: Id, timeout: Seconds | null = null): Promise<RunState> {
    return this.execute(calls.waitRun(runId, timeout));
  }

  /** Cancels the run. Returns cancelling, the state of a run that has ended, or not found. */
  async cancelRun(runId: Id, kill = false): Promise<string> {
    return this.execute(calls.cancelRun(runId, kill));
  }
}
