// Errors that the server raises for a call of this package. Errors of the connection are those of the driver.

/** Error of the server. The driver's error is `cause`. */
export class PgmillError extends Error {
  readonly sqlstate: string;
  readonly hint: string | null;
  readonly detail: string | null;

  constructor(server: ServerError, options?: ErrorOptions) {
    super(server.message, options);
    this.name = new.target.name;
    this.sqlstate = server.sqlstate;
    this.hint = server.hint;
    this.detail = server.detail;
  }
}

/** The database refused the request; another try would give the same result. */
export class Refused extends PgmillError {}

/** The login lacks a privilege. */
export class PrivilegeMissing extends PgmillError {}

/** The task or run has not ended within the timeout, and continues. `detail` says why. */
export class WaitTimeout extends PgmillError {}

/** The connection is in a transaction, in which a wait could never see the end of the task. */
export class TransactionOpen extends PgmillError {}

/** What the server reported. */
export interface ServerError {
  sqlstate: string;
  message: string;
  hint: string | null;
  detail: string | null;
  /** Function of the server that raised the error. */
  function: string | null;
}

// SQLSTATE classes, and one SQLSTATE, of requests that the schema refuses.
const REFUSED = ["22", "23", "54", "55000"];

// Functions of the server that assign transaction ids. To avoid wraparound, they refuse every transaction that writes
// until old rows are frozen. The SQLSTATE is that of a request that exceeds a limit, and the message may be translated.
const ASSIGN_IDS = ["GetNewTransactionId", "GetNewMultiXactId"];

const TRANSACTION_OPEN_HINT =
  "Commit the transaction first, or wait on another connection: the workers see a task only after the " +
  "transaction that enqueued it has committed.";

/** Returns the error of the class that belongs to the SQLSTATE. `waits`: whether the call was a wait. */
export function serverError(server: ServerError, waits: boolean, cause?: unknown): PgmillError {
  const options = { cause };
  const { sqlstate } = server;
  if (waits && sqlstate === "2D000") {
    return new TransactionOpen({ ...server, hint: server.hint ?? TRANSACTION_OPEN_HINT }, options);
  }
  // statement_timeout and pg_cancel_backend have the same SQLSTATE, but no detail.
  if (waits && sqlstate === "57014" && server.detail !== null) return new WaitTimeout(server, options);
  if (sqlstate === "42501") return new PrivilegeMissing(server, options);
  const outOfIds = server.function !== null && ASSIGN_IDS.includes(server.function);
  if (!outOfIds && REFUSED.some((start) => sqlstate.startsWith(start))) return new Refused(server, options);
  return new PgmillError(server, options);
}

/** Returns the error of the server that the driver's error contains; the error itself if it has none. */
export function fromDriver(error: unknown, waits: boolean): unknown {
  if (!(error instanceof Error) || !("code" in error) || !("severity" in error)) return error;
  const fields = error as Error & { code: unknown; hint?: string; detail?: string; routine?: string };
  if (typeof fields.code !== "string" || !/^[0-9A-Z]{5}$/.test(fields.code)) return error;
  const { code: sqlstate, message, hint, detail, routine } = fields;
  const server = { sqlstate, message, hint: hint ?? null, detail: detail ?? null, function: routine ?? null };
  return serverError(server as ServerError, waits, error);
}
