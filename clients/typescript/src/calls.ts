// One function per function of the SQL API: the statement, its arguments and how its result is read. A driver only
// executes a Call. Every argument is sent as text or as an array of texts, and every row has one column of text, so that
// no driver converts a value by rules of its own, or by rules that the application has set.

import {
  type Id,
  idText,
  type JsonValue,
  jsonText,
  type NewTask,
  optionsDocument,
  type Profile,
  type Seconds,
  secondsText,
  type TaskOptions,
} from "./options.js";
import {
  ATTEMPT,
  type Attempt,
  ENQUEUED,
  type Enqueued,
  type Outcome,
  readId,
  readRecord,
  RUN,
  type Run,
  type RunState,
  TASK,
  type Task,
} from "./results.js";

/** The only column of a result: a text or null per row. */
export type Column = (string | null)[];

/** A statement with `$1`, `$2`, … for its arguments, and the function that reads the result. */
export interface Call<T> {
  sql: string;
  arguments: (string | (string | null)[] | null)[];
  read: (rows: Column) => T;
  /** Whether the statement commits and therefore cannot run inside a transaction. */
  waits: boolean;
}

/** Parameters, name and deduplication key of a task. */
export interface EnqueueOptions extends TaskOptions {
  /** Values of $1, $2, …, which are bound and never inserted into the text. */
  params?: readonly JsonValue[] | null;
  /** Display name of the task. */
  name?: string | null;
  /** At most one live (unfinished) task has this key; another enqueue with it returns the live task. */
  key?: string | null;
}

/** Parameters and labels of a run. */
export interface RunOptions {
  /** Values of the parameters of the jobs. */
  params?: { readonly [name: string]: JsonValue } | null;
  /** Tags of the run. */
  tags?: readonly string[] | null;
  /** Metadata of the run. */
  metadata?: { readonly [key: string]: JsonValue } | null;
  /** Time after which the run is cancelled with its running tasks. */
  runTimeout?: Seconds | null;
  /** Trace context of the caller, for all tasks of the run. */
  traceparent?: string | null;
}

export function enqueue(statement: string, options: EnqueueOptions): Call<Enqueued> {
  const { params, name, key, ...taskOptions } = options;
  const { document, profile } = optionsDocument(taskOptions, { name, key });
  const given = [statement, params == null ? null : jsonText(params), document];
  const sql =
    "SELECT /* pgmill.enqueue */ pg_catalog.to_jsonb(s)::text " +
    `FROM mill.submit($1::text, $2::text::jsonb, ${expression(3, profile)}) AS s`;
  return call(sql, [...given, ...nameOf(profile)], (rows) => readRecord(ENQUEUED, first(rows)));
}

export function enqueueMany(tasks: readonly (NewTask | string)[], options: TaskOptions): Call<number[]> {
  const all = tasks.map((task): NewTask => (typeof task === "string" ? { statement: task } : task));
  const params = all.map((task) => (task.params == null ? null : jsonText(task.params)));
  const names = all.map((task) => task.name ?? null);
  const given = (values: (string | null)[]): (string | null)[] | null =>
    values.some((value) => value !== null) ? values : null;
  const { document, profile } = optionsDocument(options, {});
  const sql =
    "SELECT /* pgmill.enqueue_many */ s::text " +
    `FROM mill.submit_many($1::text[], $2::text[]::jsonb[], $3::text[], ${expression(4, profile)}) AS s`;
  const sent = [all.map((task) => task.statement), given(params), given(names), document, ...nameOf(profile)];
  return call(sql, sent, (rows) => rows.map((row) => readId(row ?? "")));
}

const TASK_SQL =
  "SELECT /* pgmill.task */ " +
  "pg_catalog.jsonb_build_object('id', t.id, 'state', t.state, 'outcome', NULL, 'queue', t.queue, " +
  "'name', t.name, 'priority', t.priority, 'mode', t.mode, 'attempt', t.attempt, " +
  "'max_attempts', t.max_attempts, 'enqueued_at', t.enqueued_at, 'due_at', t.due_at, " +
  "'run_id', t.run_id, 'tags', coalesce(t.tags, '{}'), 'metadata', coalesce(t.metadata, '{}'))::text " +
  "FROM mill.visible_tasks t WHERE t.id = $1::text::bigint " +
  "UNION ALL (" +
  "SELECT pg_catalog.jsonb_build_object('id', a.task_id, 'state', NULL, 'outcome', a.outcome, 'queue', a.queue, " +
  "'name', a.name, 'priority', a.priority, 'mode', a.mode, 'attempt', a.attempt, " +
  "'max_attempts', a.max_attempts, 'enqueued_at', a.enqueued_at, 'due_at', a.due_at, " +
  "'run_id', a.run_id, 'tags', coalesce(a.tags, '{}'), 'metadata', coalesce(a.metadata, '{}'))::text " +
  "FROM mill.visible_attempts a WHERE a.task_id = $1::text::bigint AND a.final " +
  "AND NOT EXISTS (SELECT FROM mill.visible_tasks t WHERE t.id = $1::text::bigint) " +
  "ORDER BY a.finished_at DESC LIMIT 1)";

export function task(taskId: Id): Call<Task | null> {
  const read = (rows: Column): Task | null => (rows.length === 0 ? null : readRecord(TASK, first(rows)));
  return call(TASK_SQL, [idText(taskId)], read);
}

const HISTORY_SQL =
  "SELECT /* pgmill.history */ " +
  "pg_catalog.jsonb_build_object('task_id', h.task_id, 'attempt', h.attempt, 'final', h.final, " +
  "'outcome', h.outcome, 'queue', h.queue, 'name', h.name, 'priority', h.priority, 'mode', h.mode, " +
  "'enqueued_at', h.enqueued_at, 'due_at', h.due_at, 'started_at', h.started_at, " +
  "'finished_at', h.finished_at, 'duration_seconds', extract(epoch FROM h.duration), 'rows', h.rows, " +
  "'sqlstate', h.sqlstate, 'message', h.message, 'detail', h.detail, 'hint', h.hint, " +
  "'notices', h.notices, 'result', h.result, 'statement', h.statement, 'params', h.params, " +
  "'run_id', h.run_id, 'tags', coalesce(h.tags, '{}'), 'metadata', coalesce(h.metadata, '{}'))::text " +
  "FROM mill.history h WHERE h.task_id = $1::text::bigint ORDER BY h.finished_at, h.attempt";

export function history(taskId: Id): Call<Attempt[]> {
  const read = (rows: Column): Attempt[] => rows.map((row) => readRecord(ATTEMPT, row ?? "null"));
  return call(HISTORY_SQL, [idText(taskId)], read);
}

export function why(taskId: Id): Call<string | null> {
  const sql = "SELECT /* pgmill.why */ mill.why($1::text::bigint)";
  return call(sql, [idText(taskId)], (rows) => rows[0] ?? null);
}

export function wait(taskId: Id, timeout: Seconds | null): Call<Outcome> {
  const sql = "CALL /* pgmill.wait */ mill.wait($1::text::bigint, $2::text::interval)";
  return waiting(sql, taskId, timeout);
}

export function cancel(taskId: Id, running: boolean): Call<string> {
  const sql = "SELECT /* pgmill.cancel */ mill.cancel($1::text::bigint, $2::text::boolean)";
  return call(sql, [idText(taskId), String(running)], first);
}

export function retry(taskId: Id): Call<string> {
  return call("SELECT /* pgmill.retry */ mill.retry($1::text::bigint)", [idText(taskId)], first);
}

export function startRun(jobs: readonly string[], options: RunOptions): Call<Run> {
  const sql =
    "SELECT /* pgmill.start_run */ " +
    "pg_catalog.jsonb_build_object('run_id', r.run_id, 'dropped', coalesce(r.dropped, '{}'))::text " +
    "FROM mill.start_run($1::text[], $2::text::jsonb, $3::text::jsonb) AS r";
  const { params, tags, metadata, runTimeout, traceparent } = options;
  const run_timeout = runTimeout == null ? null : secondsText(runTimeout);
  const given = { tags, metadata, run_timeout, traceparent };
  const labels = Object.entries(given).filter(([, value]) => value != null);
  const document = labels.length === 0 ? null : jsonText(Object.fromEntries(labels));
  return call(sql, [[...jobs], jsonText(params ?? {}), document], (rows) => readRecord(RUN, first(rows)));
}

export function waitRun(runId: Id, timeout: Seconds | null): Call<RunState> {
  const sql = "CALL /* pgmill.wait_run */ mill.wait_run($1::text::bigint, $2::text::interval)";
  return waiting(sql, runId, timeout);
}

export function cancelRun(runId: Id, kill: boolean): Call<string> {
  const sql = "SELECT /* pgmill.cancel_run */ mill.cancel_run($1::text::bigint, $2::text::boolean)";
  return call(sql, [idText(runId), String(kill)], first);
}

function call<T>(sql: string, given: Call<T>["arguments"], read: (rows: Column) => T): Call<T> {
  return { sql, arguments: given, read, waits: false };
}

function waiting<T extends string>(sql: string, id: Id, timeout: Seconds | null): Call<T> {
  const given = [idText(id), timeout === null ? null : secondsText(timeout)];
  return { sql, arguments: given, read: (rows) => first(rows) as T, waits: true };
}

/** Returns the expression of the argument `options`, to which the server adds the key of the profile. */
function expression(number: number, profile: Profile | null): string {
  const document = `$${number}::text::jsonb`;
  if (profile === null) return document;
  const key = `pg_catalog.jsonb_build_object('profile', ${profile.by}($${number + 1}::text))`;
  return `${document} OPERATOR(pg_catalog.||) ${key}`;
}

function nameOf(profile: Profile | null): string[] {
  return profile === null ? [] : [profile.name];
}

function first(rows: Column): string {
  const [row] = rows;
  if (row == null) throw new Error("the server returned no row");
  return row;
}
