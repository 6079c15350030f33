//! graphile_worker: <https://docs.rs/graphile_worker>

mod measure;

use std::sync::Arc;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use measure::{Result, Step, Work, in_batches, paced, pool};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const SCHEMA: &str = "graphile_worker";

#[derive(Clone, Serialize, Deserialize)]
struct Effect {
    task: i64,
}

impl TaskHandler for Effect {
    const IDENTIFIER: &'static str = "effect";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let work = context.get_ext::<State>().ok_or("no state")?;
        work.0.run(self.task).await
    }
}

#[derive(Clone)]
struct State(Work);

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("State")
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let step = Step::read()?;
    let result = match step.name.as_str() {
        "setup" => {
            utils(2).await?.migrate().await?;
            json!({})
        }
        "enqueue" => enqueue(&step).await?,
        "enqueue-paced" => {
            let utils = utils(1).await?;
            paced(&step, |task| add(utils.clone(), task)).await?
        }
        "work" => work(&step).await?,
        other => return Err(format!("no step {other}").into()),
    };
    println!("{result}");
    Ok(())
}

async fn utils(connections: u32) -> Result<WorkerUtils> {
    Ok(WorkerUtils::new(pool(connections).await?, SCHEMA))
}

async fn add(utils: WorkerUtils, task: i64) -> Result<()> {
    utils.add_job(Effect { task }, JobSpec::default()).await?;
    Ok(())
}

async fn enqueue(step: &Step) -> Result<Value> {
    let utils = utils(2).await?;
    let utils = &utils;
    in_batches(step, |tasks| async move {
        let spec = |task| RawJobSpec {
            identifier: Effect::IDENTIFIER.to_owned(),
            payload: json!({"task": task}),
            spec: JobSpec::default(),
        };
        let jobs: Vec<RawJobSpec> = tasks.into_iter().map(spec).collect();
        utils.add_raw_jobs(&jobs).await?;
        Ok(())
    })
    .await
}

async fn work(step: &Step) -> Result<Value> {
    let work = Work::open(step).await?;
    let mut options = WorkerOptions::default()
        .pg_pool(pool(step.setting("worker_pool").unwrap_or(20)).await?)
        .schema(SCHEMA)
        .add_extension(State(work.clone()))
        .define_job::<Effect>();
    if let Some(concurrency) = step.setting("concurrency") {
        options = options.concurrency(concurrency as usize);
    }
    if let Some(size) = step.setting("local_queue") {
        options = options.local_queue(LocalQueueConfig::default().with_size(size as usize));
    }
    if let Some(delay_ms) = step.setting("batch_delay_ms") {
        let delay = Duration::from_millis(delay_ms.into());
        options = options.complete_job_batch_delay(delay).fail_job_batch_delay(delay);
    }
    let worker = Arc::new(options.init().await?);
    let running = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run().await }
    });
    work.wait(step).await?;
    worker.request_shutdown();
    running.await??;
    Ok(work.result())
}
