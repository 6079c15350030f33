// The client has the functions, parameters, options, results and statements of clients/description.json. The compiler
// guarantees that the tables of options and fields, which this file reads, have the keys of their types.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as calls from "../src/calls.js";
import * as errors from "../src/errors.js";
import { Client } from "../src/index.js";
import type { EnqueueOptions, RunOptions } from "../src/calls.js";
import type { Backoff, Isolation, Mode, NewTask, Priority } from "../src/options.js";
import { optionsDocument, TASK_OPTIONS } from "../src/options.js";
import type { Outcome, RunState, State } from "../src/results.js";
import { ATTEMPT, ENQUEUED, RUN, snakeCase, TASK } from "../src/results.js";
import { camelCase, DESCRIPTION, WITH_OPTIONS } from "./conformance.js";

test("the methods are the functions", () => {
  const methods = Object.getOwnPropertyNames(Client.prototype).filter((name) => name !== "constructor");
  assert.deepEqual(methods, DESCRIPTION.functions.map(({ name }) => camelCase(name)));
});

/** Keys of a type: the compiler refuses a key that is missing or unknown. */
const keys = <T>(fields: Record<keyof Required<T>, true>): string[] => Object.keys(fields).map(snakeCase);

test("the parameters are the described ones", () => {
  const described = (name: string): string[] =>
    DESCRIPTION.functions.find((it) => it.name === name)?.parameters.map((it) => it.name) ?? [];
  const own = keys<Omit<EnqueueOptions, keyof typeof TASK_OPTIONS>>({ params: true, name: true, key: true });
  assert.deepEqual(["statement", ...own], described("enqueue"));
  const run = keys<RunOptions>({ params: true, tags: true, metadata: true, runTimeout: true, traceparent: true });
  assert.deepEqual(["jobs", ...run], described("start_run"));
  for (const { name, parameters } of DESCRIPTION.functions) {
    if (WITH_OPTIONS.includes(name)) continue;
    const method = Client.prototype[camelCase(name) as keyof Client] as (...values: unknown[]) => unknown;
    const required = parameters.filter((it) => !it.type.endsWith("?") && it.default === undefined);
    assert.equal(method.length, required.length, name);
    const optional = /\(([^)]*)\)/.exec(method.toString())?.[1]?.split(",").filter((it) => it.includes("=")) ?? [];
    assert.equal(required.length + optional.length, parameters.length, name);
    for (const parameter of parameters.filter((it) => it.default !== undefined)) {
      assert(optional.some((it) => it.trim() === `${camelCase(parameter.name)} = ${parameter.default}`), name);
    }
  }
});

test("the options have their names, arguments and types", () => {
  assert.deepEqual(Object.keys(TASK_OPTIONS).map(snakeCase), DESCRIPTION.options.map(({ name }) => name));
  const kinds: Record<string, string> = { duration: "seconds", integer: "integer", boolean: "boolean", timestamp: "timestamp", "text[]": "json", json_object: "json" };
  for (const [option, target] of Object.entries(TASK_OPTIONS)) {
    const described = DESCRIPTION.options.find(({ name }) => name === snakeCase(option));
    assert(described, option);
    if ("by" in target) {
      assert.equal(target.by, described.by, option);
    } else {
      assert.equal(`options.${target.key}`, described.sql);
      assert.equal(target.kind, kinds[described.type] ?? "text", option);
    }
  }
});

/** Words of a type: the compiler refuses a word that is missing or unknown. */
const words = <T extends string>(all: Record<T, true>): string[] => Object.keys(all);

test("the enums have their words", () => {
  const found = {
    Priority: words<Priority>({ low: true, normal: true, high: true, critical: true, reserved: true }),
    Backoff: words<Backoff>({ fixed: true, exponential: true }),
    Mode: words<Mode>({ transaction: true, autocommit: true }),
    Isolation: words<Isolation>({ read_committed: true, repeatable_read: true, serializable: true }),
    State: words<State>({ scheduled: true, blocked: true, pending: true, running: true }),
    Outcome: words<Outcome>({ succeeded: true, failed: true, cancelled: true, timed_out: true, lost: true, unknown: true, interrupted: true }),
    RunState: words<RunState>({ running: true, succeeded: true, failed: true, cancelled: true }),
  };
  assert.deepEqual(found, DESCRIPTION.enums);
});

test("the records have their fields", () => {
  const found: Record<string, string[]> = {
    NewTask: keys<NewTask>({ statement: true, params: true, name: true }),
  };
  for (const [name, fields] of Object.entries({ Enqueued: ENQUEUED, Run: RUN, Task: TASK, Attempt: ATTEMPT })) {
    found[name] = Object.keys(fields).map(snakeCase);
    for (const [field, kind] of Object.entries(fields)) {
      const type = DESCRIPTION.records[name]?.[snakeCase(field)]?.replace("?", "") ?? "";
      assert.equal(kind, type === "id" || type === "timestamp" ? type : "plain", `${name}.${field}`);
    }
  }
  const described = Object.entries(DESCRIPTION.records).map(([name, fields]) => [name, Object.keys(fields)]);
  assert.deepEqual(found, Object.fromEntries(described));
});

const SERVER_ERROR = { message: "message", hint: null, detail: "detail", function: null };

test("the errors are those of their SQLSTATEs", () => {
  for (const [name, { sqlstates, functions }] of Object.entries(DESCRIPTION.exceptions)) {
    for (const sqlstate of sqlstates.map((it) => it.padEnd(5, "0"))) {
      const error = errors.serverError({ ...SERVER_ERROR, sqlstate }, functions !== undefined);
      assert.equal(error.name, name);
    }
  }
});

test("a lack of transaction ids is no refusal", () => {
  const error = errors.serverError({ ...SERVER_ERROR, sqlstate: "54000", function: "GetNewTransactionId" }, false);
  assert.equal(error.name, "PgmillError");
});

test("the statements are the described ones", () => {
  const found: Record<string, calls.Call<unknown>> = {
    task: calls.task(1),
    history: calls.history(1),
    why: calls.why(1),
    wait: calls.wait(1, null),
    cancel: calls.cancel(1, true),
    retry: calls.retry(1),
    start_run: calls.startRun([], {}),
    wait_run: calls.waitRun(1, null),
    cancel_run: calls.cancelRun(1, true),
  };
  for (const { name, statement, no_transaction } of DESCRIPTION.functions) {
    if (statement === undefined) continue;
    assert.equal(found[name]?.sql, statement);
    assert.equal(found[name]?.waits, no_transaction ?? false);
  }
});

test("a wrong value is reported without a server", () => {
  const wrong = (options: object): unknown => optionsDocument(options, {});
  assert.throws(() => wrong({ que: "etl" }), /unknown option "que"; the options are queue, /);
  assert.throws(() => wrong({ toString: "etl" }), /unknown option "toString"/);
  assert.throws(() => wrong({ dueAt: new Date(), dueIn: 1 }), /exclude each other/);
  assert.throws(() => wrong({ runAs: "a", target: "b" }), /exclude each other/);
  assert.throws(() => wrong({ maxAttempts: 1.5 }), /maxAttempts: expected integer/);
  assert.throws(() => wrong({ timeout: Number.NaN }), /expected a number of seconds/);
  assert.throws(() => wrong({ dueAt: "tomorrow" }), /dueAt: expected timestamp/);
  assert.throws(() => calls.enqueue("SELECT $1", { params: [Number.NaN] }), /no JSON form/);
  assert.throws(() => calls.task("1; DROP TABLE x"), /expected an id/);
  assert.throws(() => calls.task(2 ** 60), /expected an id/);
  assert.deepEqual(optionsDocument({}, { key: null }), { document: null, profile: null });
});

test("only the given options are sent", () => {
  const call = calls.enqueue("SELECT $1", { params: [10n ** 20n], queue: "etl", timeout: 120 });
  assert.equal(
    call.sql,
    "SELECT /* pgmill.enqueue */ pg_catalog.to_jsonb(s)::text " +
      "FROM mill.submit($1::text, $2::text::jsonb, $3::text::jsonb) AS s",
  );
  const document = '{"queue":"etl","timeout":"120.000000 seconds"}';
  assert.deepEqual(call.arguments, ["SELECT $1", '["100000000000000000000"]', document]);
});

test("the server adds the key of a profile", () => {
  const call = calls.enqueue("SELECT 1", { runAs: "dwh" });
  const key = "pg_catalog.jsonb_build_object('profile', mill.profile($4::text))";
  assert(call.sql.includes(`$3::text::jsonb OPERATOR(pg_catalog.||) ${key}) AS s`));
  assert.deepEqual(call.arguments, ["SELECT 1", null, "{}", "dwh"]);
});
