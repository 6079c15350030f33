// Shared code of the Node.js adapters: the work of a job, and the timing of enqueues.
import pg from 'pg'

export const url = process.env.DATABASE_URL
export const settings = JSON.parse(process.env.PEER_SETTINGS ?? '{}')

const STATEMENTS = {
  effects: 'INSERT INTO loadtest.effects (task) VALUES ($1)',
  starts:
    'INSERT INTO loadtest.starts (task, handler_at, statement_at) VALUES ($1, to_timestamp($2), clock_timestamp())',
}

/** Seconds since the epoch, to the microsecond. */
export const now = () => (performance.timeOrigin + performance.now()) / 1000

/** One INSERT for each job over a pool of its own, until `wanted` of them are committed. */
export class Work {
  constructor(table, wanted, limit) {
    this.pool = new pg.Pool({ connectionString: url, max: settings.pool ?? 16 })
    this.text = STATEMENTS[table]
    this.timed = table === 'starts'
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
    const values = this.timed ? [task, now()] : [task]
    if (tx) await tx.executeSql(this.text, values)
    else await this.pool.query({ name: 'effect', text: this.text, values })
    if (++this.done >= this.wanted) this.finish()
  }

  result() {
    return { done: this.done }
  }
}

/** `count` calls of `add` from `lanes` sides at once, each awaited before the next. */
export async function singly(first, count, lanes, add) {
  const last = first + count
  let next = first
  const lane = async () => {
    while (next < last) await add(next++)
  }
  const began = now()
  await Promise.all(Array.from({ length: lanes }, lane))
  return { seconds: now() - began }
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

/** `count` tasks from `first` in calls of `size`. */
export async function inBatches(first, count, size, add) {
  const began = now()
  for (let from = first; from < first + count; from += size) {
    const length = Math.min(size, first + count - from)
    await add(Array.from({ length }, (_, n) => from + n))
  }
  return { seconds: now() - began }
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
