// Client of pgmill: enqueue SQL tasks in your own PostgreSQL transaction. The clients of the drivers are in "pgmill/pg" and
// "pgmill/postgres".

export type { EnqueueOptions, RunOptions } from "./calls.js";
export { Client } from "./client.js";
export { PgmillError, PrivilegeMissing, Refused, TransactionOpen, WaitTimeout } from "./errors.js";
export type {
  Backoff,
  Id,
  Isolation,
  JsonValue,
  Mode,
  NewTask,
  Priority,
  Seconds,
  TaskOptions,
} from "./options.js";
export type { Attempt, Enqueued, Outcome, Run, RunState, State, Task } from "./results.js";
