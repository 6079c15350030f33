// What the functions return.

import type { Mode, Priority } from "./options.js";

export type State = "scheduled" | "blocked" | "pending" | "running";
export type Outcome = "succeeded" | "failed" | "cancelled" | "timed_out" | "lost" | "unknown" | "interrupted";
export type RunState = "running" | "succeeded" | "failed" | "cancelled";

/** Result of an enqueue. */
export interface Enqueued {
  /** The task. */
  id: number;
  /** Whether the task is new; false if a live task has the key, and `id` is the id of that task. */
  created: boolean;
}

/** A run that was started. */
export interface Run {
  /** The run. */
  runId: number;
  /** Edges that are left out, because none of the jobs contains their parent. */
  dropped: string[];
}

/** A task: live with its state, or finished with its outcome. */
export interface Task {
  id: number;
  /** State of a live task; null if the task has finished. */
  state: State | null;
  /** Outcome of a finished task; null while the task is live. */
  outcome: Outcome | null;
  queue: string;
  name: string | null;
  priority: Priority;
  mode: Mode;
  /** Number of attempts that have started. */
  attempt: number;
  maxAttempts: number;
  enqueuedAt: Date;
  dueAt: Date;
  /** The run that the task belongs to. */
  runId: number | null;
  tags: string[];
  metadata: Record<string, unknown>;
}

/** A finished attempt of a task. */
export interface Attempt {
  taskId: number;
  /** Number from 1; 0 if the task ended without being claimed. */
  attempt: number;
  /** Whether the task ended with this attempt. */
  final: boolean;
  outcome: Outcome;
  queue: string;
  name: string | null;
  priority: Priority;
  mode: Mode;
  enqueuedAt: Date;
  dueAt: Date;
  startedAt: Date | null;
  finishedAt: Date;
  /** Seconds from the claim to the end. */
  durationSeconds: number | null;
  /** Rows returned or affected. */
  rows: number | null;
  /** SQLSTATE of the error. */
  sqlstate: string | null;
  /** Message of the error. */
  message: string | null;
  detail: string | null;
  hint: string | null;
  notices: Record<string, unknown>[] | null;
  /** First rows, as text. */
  result: { columns: string[]; rows: (string | null)[][]; truncated: boolean } | null;
  /** The SQL; null if the login may not read it. */
  statement: string | null;
  params: unknown[] | null;
  runId: number | null;
  tags: string[];
  metadata: Record<string, unknown>;
}

type Kind = "plain" | "id" | "timestamp";

/** The fields of a record: the compiler refuses a field that is missing here. */
type Fields<Record> = { readonly [field in keyof Required<Record>]: Kind };

export const ENQUEUED: Fields<Enqueued> = { id: "id", created: "plain" };

export const RUN: Fields<Run> = { runId: "id", dropped: "plain" };

export const TASK: Fields<Task> = {
  id: "id",
  state: "plain",
  outcome: "plain",
  queue: "plain",
  name: "plain",
  priority: "plain",
  mode: "plain",
  attempt: "plain",
  maxAttempts: "plain",
  enqueuedAt: "timestamp",
  dueAt: "timestamp",
  runId: "id",
  tags: "plain",
  metadata: "plain",
};

export const ATTEMPT: Fields<Attempt> = {
  taskId: "id",
  attempt: "plain",
  final: "plain",
  outcome: "plain",
  queue: "plain",
  name: "plain",
  priority: "plain",
  mode: "plain",
  enqueuedAt: "timestamp",
  dueAt: "timestamp",
  startedAt: "timestamp",
  finishedAt: "timestamp",
  durationSeconds: "plain",
  rows: "plain",
  sqlstate: "plain",
  message: "plain",
  detail: "plain",
  hint: "plain",
  notices: "plain",
  result: "plain",
  statement: "plain",
  params: "plain",
  runId: "id",
  tags: "plain",
  metadata: "plain",
};

/** Returns the name of a field in the database: `dueAt` → `due_at`. */
export function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Reads a record from the JSON object that the database returns. */
export function readRecord<T>(fields: Fields<T>, document: string): T {
  const found = JSON.parse(document) as Record<string, unknown>;
  const kinds = Object.entries(fields) as [string, Kind][];
  const read = kinds.map(([field, kind]) => [field, readField(kind, found[snakeCase(field)])]);
  return Object.fromEntries(read) as T;
}

function readField(kind: Kind, value: unknown): unknown {
  if (value === null || value === undefined) return null;
  if (kind === "timestamp") return new Date(value as string);
  if (kind === "id") return readId(value as number);
  return value;
}

/** Returns an id. @throws RangeError above 2^53, where a number is not exact */
export function readId(value: string | number): number {
  const id = Number(value);
  if (!Number.isSafeInteger(id)) throw new RangeError(`the id ${value} is too large for a number`);
  return id;
}
