// Client for node-postgres. A Pool has no transactions: pass the Client that the pool lends, except for calls that stand
// alone.

import type { ClientBase, Pool } from "pg";

import type { Call } from "./calls.js";
import * as client from "./client.js";
import { fromDriver } from "./errors.js";

/** The functions of pgmill on a Client, a PoolClient or a Pool of node-postgres. */
export class Client extends client.Client {
  readonly #connection: ClientBase | Pool;

  constructor(connection: ClientBase | Pool) {
    super();
    this.#connection = connection;
  }

  protected async execute<T>(call: Call<T>): Promise<T> {
    const query = { text: call.sql, values: call.arguments, rowMode: "array" as const };
    let rows: (string | null)[][];
    try {
      ({ rows } = await this.#connection.query<(string | null)[]>(query));
    } catch (error) {
      throw fromDriver(error, call.waits);
    }
    return call.read(rows.map((row) => row[0] ?? null));
  }
}
