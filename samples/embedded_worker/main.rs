//! A program that embeds a worker. It runs calls of `send_invoice` in Rust.

use anyhow::Result;
use pgmill_worker::{Call, Worker};
use serde::Deserialize;

#[derive(Deserialize)]
struct Invoice {
    invoice: i64,
}

async fn send_invoice(call: Call<'_>) -> Result<()> {
    let Invoice { invoice } = call.args()?;
    let sql = "INSERT INTO sent_invoices (invoice) VALUES ($1)";
    call.transaction().execute(sql, &[&invoice]).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let worker = Worker::builder()
        .queues(["calls"])
        .handler("send_invoice", |call| Box::pin(send_invoice(call)))
        .build()?;
    let interrupted = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    worker.run(interrupted).await
}
