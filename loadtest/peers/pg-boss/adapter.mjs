// pg-boss: https://timgit.github.io/pg-boss
import { PgBoss } from 'pg-boss'
import { inBatches, main, paced, settings, url, Work } from './measure.mjs'

const QUEUE = 'effect'

async function withBoss(options, use) {
  const boss = new PgBoss({ connectionString: url, schedule: false, ...options })
  boss.on('error', (error) => console.error(error))
  await boss.start()
  try {
    return await use(boss)
  } finally {
    await boss.stop({ graceful: true, close: true, timeout: 20_000 })
  }
}

const add = (boss) => (task) => boss.send(QUEUE, { task })

await main({
  // A separate partition for the queue, as the documentation recommends for a busy queue.
  setup: () =>
    withBoss({ max: 2 }, (boss) => boss.createQueue(QUEUE, { partition: true, notify: settings.notify })),

  enqueue: (first, count) =>
    withBoss({ max: 2, supervise: false }, (boss) =>
      inBatches(first, count, (tasks) =>
        boss.insert(QUEUE, tasks.map((task) => ({ data: { task } }))),
      ),
    ),

  'enqueue-paced': (first, count, gap) =>
    withBoss({ max: 1, supervise: false }, (boss) => paced(first, count, gap, add(boss))),

  work: async (table, count, limit) => {
    const work = new Work(table, count, limit)
    await work.warm()
    const options = { max: settings.workerPool ?? settings.workers, useListenNotify: settings.notify }
    return withBoss(options, async (boss) => {
      const polling = {
        batchSize: settings.batch,
        localConcurrency: settings.workers,
        burstWhenBatchFull: settings.batch > 1,
        pollingIntervalSeconds: 0.5,
      }
      const each = (jobs) => Promise.all(jobs.map((job) => work.run(job.data.task)))
      // Sequentially, in the transaction that commits the completion of the batch.
      const within = async (jobs, tx) => {
        for (const job of jobs) await work.run(job.data.task, tx)
      }
      if (settings.transactional) polling.transactional = true
      await boss.work(QUEUE, polling, settings.transactional ? within : each)
      await work.finished
      await boss.offWork(QUEUE)
      return work.result()
    })
  },
})
