// graphile-worker: https://worker.graphile.org
import { Logger, makeWorkerUtils, run } from 'graphile-worker'
import { inBatches, main, paced, settings, url, Work } from './measure.mjs'

const quiet = new Logger(() => (level, message) => {
  if (level === 'error' || level === 'warning') console.error(message)
})

/** What the worker is started with; what a setting leaves out stays at its default. */
function preset() {
  const worker = { connectionString: url, concurrentJobs: settings.concurrency }
  worker.maxPoolSize = settings.workerPool ?? Math.max(10, settings.concurrency + 2)
  if (settings.localQueue) worker.localQueue = { size: settings.localQueue }
  if (settings.batchDelay !== undefined) {
    worker.completeJobBatchDelay = settings.batchDelay
    worker.failJobBatchDelay = settings.batchDelay
  }
  return { worker }
}

async function withUtils(connections, use) {
  const utils = await makeWorkerUtils({
    connectionString: url,
    maxPoolSize: connections,
    logger: quiet,
  })
  try {
    return await use(utils)
  } finally {
    await utils.release()
  }
}

const add = (utils) => (task) => utils.addJob('effect', { task })

await main({
  setup: () => withUtils(2, (utils) => utils.migrate()),

  enqueue: (first, count) =>
    withUtils(2, (utils) =>
      inBatches(first, count, (tasks) =>
        utils.addJobs(tasks.map((task) => ({ identifier: 'effect', payload: { task } }))),
      ),
    ),

  'enqueue-paced': (first, count, gap) =>
    withUtils(1, (utils) => paced(first, count, gap, add(utils))),

  work: async (table, count, limit) => {
    const work = new Work(table, count, limit)
    await work.warm()
    const runner = await run({
      preset: preset(),
      logger: quiet,
      noHandleSignals: true,
      taskList: { effect: ({ task }) => work.run(task) },
    })
    await work.finished
    await runner.stop()
    return work.result()
  },
})
