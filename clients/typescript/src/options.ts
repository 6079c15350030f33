// What a caller passes: tasks and their options, and how they are encoded as arguments of the SQL functions.

export type Priority = "low" | "normal" | "high" | "critical" | "reserved";
export type Backoff = "fixed" | "exponential";
export type Mode = "transaction" | "autocommit";
export type Isolation = "read_committed" | "repeatable_read" | "serializable";

/** Number of seconds. */
export type Seconds = number;

/** A JSON value, or a value that is sent as a JSON string, from which PostgreSQL reads it. */
export type JsonValue =
  | null
  | boolean
  | number
  | string
  | bigint
  | Date
  | readonly JsonValue[]
  | { readonly [key: string]: JsonValue };

/** Id of a task or a run. A bigint or a text is accepted too, as drivers return them. */
export type Id = number | bigint | string;

/** One task of enqueueMany. */
export interface NewTask {
  /** SQL, with $1, $2, … for parameters. */
  statement: string;
  /** Values of $1, $2, … */
  params?: readonly JsonValue[] | null;
  /** Display name. */
  name?: string | null;
}

/** Options of a task. The database applies the default of an option that is left out. */
export interface TaskOptions {
  /** Name of the queue; queues need not be created beforehand. Default: default. */
  queue?: string;
  /** Priority. Default: that of the group, otherwise normal. */
  priority?: Priority;
  /** Group of the task. Default: the default group, if there is one. */
  group?: string;
  /** Tasks with the same key run one at a time, or as many at once as the limit of the key allows. */
  concurrencyKey?: string;
  /** Limit of a new concurrency key: maximum number of its tasks that run at once. Default: 1. */
  concurrency?: number;
  /** Profile whose login runs the task. Default: the common task login. */
  runAs?: string;
  /** Target: another database in which the task runs; excludes runAs. */
  target?: string;
  /** Earliest start. Default: at once. */
  dueAt?: Date;
  /** Earliest start, as the time from now by the clock of the database; excludes dueAt. */
  dueIn?: Seconds;
  /** Number of failed attempts after which the task ends as failed. Default: 3, or 1 with atMostOnce. */
  maxAttempts?: number;
  /** Wait before the second attempt. Default: 10. */
  retryInterval?: Seconds;
  /** Growth of the wait: fixed, or exponential (it doubles with each failure). Default: exponential. */
  backoff?: Backoff;
  /** Whether each wait is shortened to a random part of it. Default: not with fixed backoff. */
  jitter?: boolean;
  /** Maximum duration of an attempt. Default: unlimited. */
  timeout?: Seconds;
  /** transaction (exactly once) or autocommit (at least once). Default: transaction. */
  mode?: Mode;
  /** Isolation level of the transaction. Default: that of the login and the database. */
  isolation?: Isolation;
  /** Never start the statement twice; only with mode autocommit. */
  atMostOnce?: boolean;
  /** Declares that the statement has effects outside the database server. */
  external?: boolean;
  /** Store the plan of the statement instead of its rows. */
  explain?: boolean;
  /** Whether the parameters are stored after the end of the task. Default: as set for the queue. */
  storeParams?: boolean;
  /** Whether notices, first rows and plan are stored after the end. Default: as set for the queue. */
  storeOutput?: boolean;
  /** Trace context of the caller: the header traceparent of W3C Trace Context. */
  traceparent?: string;
  /** Tags, for searches. */
  tags?: readonly string[];
  /** Values that are stored and shown with the task. */
  metadata?: { readonly [key: string]: JsonValue };
}

type Kind = "text" | "integer" | "boolean" | "seconds" | "timestamp" | "json";

/** A key of the argument `options` of the SQL functions, and its type; `json` is sent as it is. */
interface Key {
  key: string;
  kind: Kind;
}

/** The function that returns the key of a profile, with the rights of the caller. */
interface ProfileFunction {
  by: string;
}

/** Every option. The compiler refuses an option of TaskOptions that is missing here. */
export const TASK_OPTIONS: { readonly [option in keyof Required<TaskOptions>]: Key | ProfileFunction } = {
  queue: { key: "queue", kind: "text" },
  priority: { key: "priority", kind: "text" },
  group: { key: "group_name", kind: "text" },
  concurrencyKey: { key: "concurrency_key", kind: "text" },
  concurrency: { key: "concurrency", kind: "integer" },
  runAs: { by: "mill.profile" },
  target: { by: "mill.target" },
  dueAt: { key: "due_at", kind: "timestamp" },
  dueIn: { key: "due_in", kind: "seconds" },
  maxAttempts: { key: "max_attempts", kind: "integer" },
  retryInterval: { key: "retry_interval", kind: "seconds" },
  backoff: { key: "backoff", kind: "text" },
  jitter: { key: "jitter", kind: "boolean" },
  timeout: { key: "timeout", kind: "seconds" },
  mode: { key: "mode", kind: "text" },
  isolation: { key: "isolation", kind: "text" },
  atMostOnce: { key: "at_most_once", kind: "boolean" },
  external: { key: "external", kind: "boolean" },
  explain: { key: "explain", kind: "boolean" },
  storeParams: { key: "store_params", kind: "boolean" },
  storeOutput: { key: "store_output", kind: "boolean" },
  traceparent: { key: "traceparent", kind: "text" },
  tags: { key: "tags", kind: "json" },
  metadata: { key: "metadata", kind: "json" },
};

const EXCLUSIVE: [keyof TaskOptions, keyof TaskOptions][] = [
  ["runAs", "target"],
  ["dueAt", "dueIn"],
];

/** Name of a profile, and the function that returns its key. */
export interface Profile extends ProfileFunction {
  name: string;
}

/**
 * Returns the argument `options` for these task options and own keys, and the profile. An option that is undefined or
 * null counts as left out.
 *
 * @throws TypeError for an unknown option, a value of a wrong type, and options that exclude each other
 */
export function optionsDocument(options: TaskOptions, own: object): { document: string | null; profile: Profile | null } {
  const present = (all: object): [string, unknown][] => Object.entries(all).filter(([, value]) => value != null);
  const document: Record<string, unknown> = Object.fromEntries(present(own));
  let profile: Profile | null = null;
  for (const [option, value] of present(options)) {
    if (!Object.hasOwn(TASK_OPTIONS, option)) {
      const known = Object.keys(TASK_OPTIONS).join(", ");
      throw new TypeError(`unknown option "${option}"; the options are ${known}`);
    }
    const target = TASK_OPTIONS[option as keyof TaskOptions];
    if ("by" in target) {
      profile = { by: target.by, name: String(encoded(option, "text", value)) };
    } else {
      document[target.key] = encoded(option, target.kind, value);
    }
  }
  for (const [one, other] of EXCLUSIVE) {
    if ((options[one] ?? null) !== null && (options[other] ?? null) !== null) {
      throw new TypeError(`${one} and ${other} exclude each other`);
    }
  }
  const empty = Object.keys(document).length === 0 && profile === null;
  return { document: empty ? null : jsonText(document), profile };
}

function encoded(option: string, kind: Kind, value: unknown): unknown {
  if (kind === "json") return value;
  if (kind === "text" && typeof value === "string") return value;
  if (kind === "boolean" && typeof value === "boolean") return value;
  if (kind === "integer" && Number.isSafeInteger(value)) return value;
  if (kind === "seconds" && typeof value === "number") return secondsText(value);
  if (kind === "timestamp" && value instanceof Date) return value.toISOString();
  throw new TypeError(`${option}: expected ${kind}, got ${typeof value} ${String(value)}`);
}

/** Returns an interval. */
export function secondsText(seconds: Seconds): string {
  if (!Number.isFinite(seconds)) throw new TypeError(`expected a number of seconds, got ${seconds}`);
  return `${seconds.toFixed(6)} seconds`;
}

/**
 * Returns a JSON document. A bigint is sent as a string.
 *
 * @throws TypeError for NaN, infinity and other values that JSON does not have
 */
export function jsonText(value: unknown): string {
  return JSON.stringify(value, (key, item: unknown) => {
    if (typeof item === "bigint") return item.toString();
    if (typeof item === "number" && !Number.isFinite(item)) {
      throw new TypeError(`${item} has no JSON form`);
    }
    if (typeof item === "function" || typeof item === "symbol") {
      throw new TypeError(`a ${typeof item} has no JSON form${key && `: ${key}`}`);
    }
    return item;
  });
}

/** @throws TypeError for a value that is not an integer */
export function idText(id: Id): string {
  const text = String(id);
  const exact = typeof id !== "number" || Number.isSafeInteger(id);
  if (!exact || !/^-?\d+$/.test(text)) throw new TypeError(`expected an id, got ${text}`);
  return text;
}
