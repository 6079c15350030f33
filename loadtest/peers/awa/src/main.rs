//! awa: <https://docs.rs/awa>

mod measure;

use std::time::Duration;

use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobError, JobResult, PartitionedQueue, QueueConfig,
    QueueStorage, QueueStorageConfig, insert_with, migrations,
};
use measure::{Result, Step, Work, in_batches, paced, pool};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgPool;

#[derive(Debug, Serialize, Deserialize)]
struct Effect {
    task: i64,
}

impl JobArgs for Effect {
    fn kind() -> &'static str {
        "effect"
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let step = Step::read()?;
    let queue = PartitionedQueue::new("effect", step.setting("partitions").unwrap_or(1) as usize)?;
    let result = match step.name.as_str() {
        "setup" => {
            migrations::run(&pool(2).await?).await?;
            json!({})
        }
        "enqueue" => enqueue(&step, &queue).await?,
        "enqueue-paced" => {
            let pool = pool(1).await?;
            paced(&step, |task| add(pool.clone(), options(&queue, task), task)).await?
        }
        "work" => work(&step, &queue).await?,
        other => return Err(format!("no step {other}").into()),
    };
    println!("{result}");
    Ok(())
}

/// Distributes the tasks over the partitions.
fn options(queue: &PartitionedQueue, task: i64) -> InsertOpts {
    queue.route_opts_by_index(InsertOpts::default(), task as usize)
}

async fn add(pool: PgPool, options: InsertOpts, task: i64) -> Result<()> {
    insert_with(&pool, &Effect { task }, options).await?;
    Ok(())
}

async fn enqueue(step: &Step, queue: &PartitionedQueue) -> Result<Value> {
    let pool = pool(2).await?;
    let store = QueueStorage::new(QueueStorageConfig::default())?;
    in_batches(step, |tasks| {
        let job = |task| InsertParams {
            kind: Effect::kind().to_owned(),
            args: json!({"task": task}),
            opts: options(queue, task),
        };
        let jobs: Vec<InsertParams> = tasks.into_iter().map(job).collect();
        let (store, pool) = (&store, &pool);
        async move { Ok(store.enqueue_params_copy(pool, &jobs).await?) }
    })
    .await
}

async fn work(step: &Step, queue: &PartitionedQueue) -> Result<Value> {
    let work = Work::open(step).await?;
    let config = QueueConfig {
        max_workers: step.setting("workers").unwrap_or(50),
        deadline_duration: Duration::ZERO,
        ..QueueConfig::default()
    };
    let runner = work.clone();
    let client = Client::builder(pool(step.setting("worker_pool").unwrap_or(10)).await?)
        .partitioned_queue(queue, config)
        .register::<Effect, _, _>(move |effect: Effect, _| {
            let work = runner.clone();
            async move {
                let done = work.run(effect.task).await;
                done.map(|()| JobResult::Completed).map_err(JobError::terminal)
            }
        })
        .build()?;
    client.start().await?;
    work.wait(step).await?;
    client.shutdown(Duration::from_secs(20)).await;
    Ok(work.result())
}
