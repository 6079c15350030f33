// Runs the cases of clients/conformance. A session of the client under test executes the steps.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";

import { type Client, PgmillError } from "../src/index.js";
import { snakeCase } from "../src/results.js";

const FOLDER = new URL("../../../", import.meta.url);
const read = (file: string) => JSON.parse(readFileSync(new URL(file, FOLDER), "utf8"));

export interface Described {
  name: string;
  type: string;
  sql: string;
  by?: string;
  default?: string;
}
export interface DescribedFunction {
  name: string;
  statement?: string;
  options?: boolean;
  no_transaction?: boolean;
  parameters: Described[];
}
export const DESCRIPTION: {
  enums: Record<string, string[]>;
  options: Described[];
  functions: DescribedFunction[];
  records: Record<string, Record<string, string>>;
  exceptions: Record<string, { sqlstates: string[]; functions?: string[] }>;
} = read("description.json");
export const CASES: { name: string; steps: Step[] }[] = read("conformance/cases.json").cases;
export const URL_OF_DATABASE = process.env["DATABASE_URL"];

/** Bound of `until`, for a machine of any speed. */
const UNTIL_MS = 60_000;

/** One connection with a client. `transaction` rolls back if its function throws. */
export interface Session {
  client: Client;
  sql(text: string): Promise<void>;
  query(text: string): Promise<unknown>;
  transaction(steps: (inside: Session) => Promise<void>): Promise<void>;
}

type Values = Record<string, unknown>;
interface Step {
  call?: string;
  with?: Values;
  expect?: unknown;
  error?: unknown;
  save?: Record<string, string>;
  sql?: string;
  query?: string;
  until?: Step;
  transaction?: Step[];
  end?: "commit" | "rollback";
}

class Rollback extends Error {}

let cases = 0;

export async function runCase(session: Session, steps: Step[]): Promise<void> {
  cases += 1;
  await runSteps(session, steps, { unique: `js${process.pid}_${cases}` });
}

async function runSteps(session: Session, steps: Step[], saved: Values): Promise<void> {
  for (const step of steps) await runStep(session, step, saved);
}

async function runStep(session: Session, step: Step, saved: Values): Promise<void> {
  const { transaction, until, sql, query, call } = step;
  if (transaction !== undefined) {
    const inside = async (session: Session): Promise<void> => {
      await runSteps(session, transaction, saved);
      if (step.end === "rollback") throw new Rollback();
    };
    await session.transaction(inside).catch((error: unknown) => {
      if (!(error instanceof Rollback)) throw error;
    });
  } else if (until !== undefined) {
    for (const started = Date.now(); ; await pause(20)) {
      try {
        return await runStep(session, until, saved);
      } catch (error) {
        if (!(error instanceof assert.AssertionError) || Date.now() - started > UNTIL_MS) throw error;
      }
    }
  } else if (sql !== undefined) {
    await session.sql(fill(sql, saved) as string);
  } else if (query !== undefined) {
    compare(fill(step.expect, saved), await session.query(fill(query, saved) as string), step);
  } else if (call !== undefined) {
    await runCall(session, call, step, saved);
  }
}

async function runCall(session: Session, name: string, step: Step, saved: Values): Promise<void> {
  const given = fill(step.with ?? {}, saved) as Values;
  let result: unknown;
  try {
    result = plain(await invoke(session.client, name, given));
  } catch (error) {
    if (!(error instanceof PgmillError) || step.error === undefined) throw error;
    const { sqlstate, message, hint, detail } = error;
    compare(step.error, { sqlstate, message, hint, detail, exception: error.constructor.name }, step);
    return;
  }
  assert.equal(step.error, undefined, `${JSON.stringify(step)}: no error but ${JSON.stringify(result)}`);
  if ("expect" in step) compare(fill(step.expect, saved), result, step);
  for (const [key, field] of Object.entries(step.save ?? {})) saved[key] = (result as Values)[field];
}

export const camelCase = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** Functions of which the first parameter is an argument of its own, and the others are options. */
export const WITH_OPTIONS = ["enqueue", "enqueue_many", "start_run"];

async function invoke(client: Client, name: string, given: Values): Promise<unknown> {
  const method = (client as unknown as Record<string, (...values: unknown[]) => Promise<unknown>>)[camelCase(name)];
  const parameters = DESCRIPTION.functions.find((described) => described.name === name)?.parameters;
  assert(method && parameters, name);
  let values = parameters.map((parameter) => given[parameter.name]);
  if (WITH_OPTIONS.includes(name)) {
    const options = Object.entries(given)
      .filter(([key]) => key !== parameters[0]?.name)
      .map(([key, value]) => [camelCase(key), key === "due_at" ? new Date(value as string) : value]);
    values = [values[0], Object.fromEntries(options)];
  }
  return method.apply(client, values);
}

/** Replaces `<<name>>` with saved values, and expands `$repeat`. */
function fill(value: unknown, saved: Values): unknown {
  if (typeof value === "string") {
    const whole = /^<<(\w+)>>$/.exec(value)?.[1];
    if (whole !== undefined) return saved[whole];
    return value.replace(/<<(\w+)>>/g, (_, name: string) => String(saved[name]));
  }
  if (Array.isArray(value)) return value.map((item) => fill(item, saved));
  if (typeof value === "object" && value !== null) {
    if ("$repeat" in value && "item" in value) {
      return Array.from({ length: value.$repeat as number }, () => fill(value.item, saved));
    }
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, fill(item, saved)]));
  }
  return value;
}

/** Returns a result with the names of the description, and with timestamps as texts. */
function plain(value: unknown): unknown {
  if (value instanceof Date) return value.toISOString();
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value === "object" && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [snakeCase(key), plain(item)]));
  }
  return value;
}

function compare(expected: unknown, found: unknown, step: Step): void {
  assert(matches(expected, found), `${JSON.stringify(step)}: ${JSON.stringify(found)}`);
}

/** Compares a value with an expectation, whose objects may leave out keys. */
function matches(expected: unknown, found: unknown): boolean {
  if (typeof expected === "string" && expected.startsWith("~")) {
    return typeof found === "string" && new RegExp(expected.slice(1), "u").test(found);
  }
  if (Array.isArray(expected) && Array.isArray(found)) {
    return expected.length === found.length && expected.every((item, index) => matches(item, found[index]));
  }
  if (typeof expected !== "object" || typeof found !== "object" || expected === null || found === null) {
    return isDeepStrictEqual(expected, found);
  }
  if ("$length" in expected && Array.isArray(found)) {
    const ascending = found.every((item, index) => index === 0 || found[index - 1] < item);
    return found.length === expected.$length && (!("$increasing" in expected) || ascending);
  }
  if (Array.isArray(expected) !== Array.isArray(found)) return false;
  return Object.entries(expected).every(([key, item]) => key in found && matches(item, (found as Values)[key]));
}
