// Shared code of the Node.js adapters: the work of a job, and the timing of enqueues.
import pg from 'pg'

export const url = process.env.DATABASE_URL
export const settings = JSON.parse(process.env.PEER_SETTINGS ?? '{}')

const STATEMENTS = {
  effects: 'INSERT INTO loadtest.effects (task) VALUES ($1)',
  starts: 'INSERT INTO loadtest.starts (task, at) VALUES ($1, clock_timestamp())',
}

/** Seconds since the epoch, to the microsecond. */
const now = () => (performance.timeOrigin + performance.now()) / 1000

/** One INSERT for each job over a pool of its own, until `wanted` of them are committed. */
export class Work {
  constructor(table, wanted, limit) {
    this.pool = new pg.Pool({ connectionString: url, max: settings.pool ?? 16 })
    this.text = STATEMENTS[table]
    this.wanted = wanted
    this.done = 0
    this.finished = new Promise((resolve) => {
      this.finish = resolve
      setTimeout(resolve, limit * 1000).unref()
    })
  }

  /** Opens all connections, so that no job pays for one. */
  async warm() {
    const clients = Array.from({ length: this.pool.options.max }, () => this.pool.connect())
    for (const client of await Promise.all(clients)) client.release()
  }

  /** `tx`: a transaction to run in, in place of the pool; has `executeSql`. */
  async run(task, tx) {
    if (tx) await tx.executeSql(this.text, [task])
    else await this.pool.query({ name: 'effect', text: this.text, values: [task] })
    if (++this.done >= this.wanted) this.finish()
  }

  result() {
    return { done: this.done }
  }
}

/** One call of `add` every `gap` milliseconds and a bit, with the moment each was committed. */
export async function paced(first, count, gap, add) {
  const committed_at = []
  for (let task = first; task < first + count; task++) {
    await add(task)
    committed_at.push(now())
    await new Promise((resolve) => setTimeout(resolve, gap * (0.75 + Math.random() / 2)))
  }
  return { committed_at }
}

/** `count` tasks from `first` in calls of 10,000. */
export async function inBatches(first, count, add) {
  for (let from = first; from < first + count; from += 10_000) {
    const length = Math.min(10_000, first + count - from)
    await add(Array.from({ length }, (_, n) => from + n))
  }
}

/** Runs the step that the command line names and prints its result. */
export async function main(steps) {
  const [name, ...rest] = process.argv.slice(2)
  try {
    const result = await steps[name](...rest.map((word) => (isNaN(word) ? word : Number(word))))
    process.stdout.write(JSON.stringify(result ?? {}) + '\n', () => process.exit(0))
  } catch (error) {
    process.stderr.write(`${error.stack ?? error}\n`, () => process.exit(1))
  }
}
