// Every client passes the cases of clients/conformance against a server with a worker.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";

import pg from "pg";
import postgres from "postgres";

import * as nodePostgres from "../src/pg.js";
import * as postgresJs from "../src/postgres.js";
import { CASES, runCase, type Session, URL_OF_DATABASE } from "./conformance.js";

const skip = URL_OF_DATABASE ? false : "DATABASE_URL is not set: make clients-check";

function suite(driver: string, session: () => Session, open: () => Promise<void>, close: () => Promise<void>): void {
  describe(driver, { skip }, () => {
    before(open);
    after(close);
    for (const { name, steps } of CASES) test(name, () => runCase(session(), steps));
  });
}

class NodePostgres implements Session {
  readonly client: nodePostgres.Client;
  /** Number of open transactions and savepoints. */
  private depth = 0;

  constructor(readonly connection: pg.Client) {
    this.client = new nodePostgres.Client(connection);
  }

  async sql(text: string): Promise<void> {
    await this.connection.query(text);
  }

  async query(text: string): Promise<unknown> {
    const { rows } = await this.connection.query({ text, rowMode: "array" });
    assert.equal(rows.length, 1, text);
    return rows[0]?.[0];
  }

  async transaction(steps: (inside: Session) => Promise<void>): Promise<void> {
    const [begin, commit, rollback] =
      this.depth === 0
        ? ["BEGIN", "COMMIT", "ROLLBACK"]
        : ["SAVEPOINT nested", "RELEASE SAVEPOINT nested", "ROLLBACK TO SAVEPOINT nested"];
    await this.sql(begin);
    this.depth += 1;
    try {
      await steps(this);
      await this.sql(commit);
    } catch (error) {
      await this.sql(rollback);
      throw error;
    } finally {
      this.depth -= 1;
    }
  }
}

const connection = new pg.Client({ connectionString: URL_OF_DATABASE });
const ofNodePostgres = new NodePostgres(connection);
suite("node-postgres", () => ofNodePostgres, async () => void (await connection.connect()), () => connection.end());

class PostgresJs implements Session {
  readonly client: postgresJs.Client;
  constructor(readonly handle: postgres.Sql | postgres.TransactionSql) {
    this.client = new postgresJs.Client(handle);
  }

  async sql(text: string): Promise<void> {
    await this.handle.unsafe(text);
  }

  async query(text: string): Promise<unknown> {
    const rows = await this.handle.unsafe(text).values();
    assert.equal(rows.length, 1, text);
    return rows[0]?.[0];
  }

  async transaction(steps: (inside: Session) => Promise<void>): Promise<void> {
    const inner = (handle: postgres.TransactionSql): Promise<void> => steps(new PostgresJs(handle));
    await ("savepoint" in this.handle ? this.handle.savepoint(inner) : this.handle.begin(inner));
  }
}

// One connection, because a case may change the session.
const sql = postgres(URL_OF_DATABASE ?? "", { max: 1, onnotice: () => undefined });
const ofPostgresJs = new PostgresJs(sql);
suite("postgres.js", () => ofPostgresJs, async () => undefined, () => sql.end());
