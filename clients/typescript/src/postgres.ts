// Client for postgres.js. In a transaction, pass the `sql` that `sql.begin` hands to its function.

import type { Call } from "./calls.js";
import * as client from "./client.js";
import { fromDriver } from "./errors.js";

/** The part of postgres.js that is used here. Its own types depend on the types that the application has registered. */
export interface Sql {
  unsafe(query: string, parameters: (string | (string | null)[] | null)[]): { values(): PromiseLike<unknown[][]> };
}

/** The functions of pgmill on the `sql` of postgres.js, of a transaction, or of a reserved connection. */
export class Client extends client.Client {
  readonly #sql: Sql;

  constructor(sql: Sql) {
    super();
    this.#sql = sql;
  }

  protected async execute<T>(call: Call<T>): Promise<T> {
    let rows: unknown[][];
    try {
      rows = await this.#sql.unsafe(call.sql, call.arguments).values();
    } catch (error) {
      throw fromDriver(error, call.waits);
    }
    return call.read(rows.map((row) => (row[0] ?? null) as string | null));
  }
}
