//! A worker that reads the Redis stream itself and claims the very job that a message names.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use redis::AsyncCommands;
use redis::streams::{StreamReadOptions, StreamReadReply};
use serde_json::json;
use tokio::time::sleep;

use super::{Held, Worker, job};
use crate::http::Reply;

/// The consumer group of the contract.
const GROUP: &str = "tenure";

/// Longer than a read blocks.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn run(worker: &Arc<Worker>, url: &str) -> Result<()> {
    let client = redis::Client::open(url)?;
    loop {
        // A connection that failed in any way is replaced: after a half-open link its answers would be out of step.
        if let Ok(mut connection) = connect(&client).await {
            while read(worker, &mut connection).await.is_ok() {}
        }
        sleep(Duration::from_millis(200)).await;
    }
}

async fn connect(client: &redis::Client) -> Result<redis::aio::MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    Ok(tokio::time::timeout(PATIENCE, connecting).await??)
}

/// Reads one message and claims its job.
async fn read(worker: &Arc<Worker>, connection: &mut redis::aio::MultiplexedConnection) -> Result<()> {
    let slot = Arc::clone(&worker.slots).acquire_owned().await.context("slots are never closed")?;
    let options = StreamReadOptions::default().group(GROUP, &worker.args.process).count(1).block(1_000);
    let queues = &worker.args.queues;
    let read: redis::RedisResult<Option<StreamReadReply>> =
        connection.xread_options(queues, &vec![">"; queues.len()], &options).await;
    let read = match read {
        Ok(read) => read.unwrap_or(StreamReadReply { keys: Vec::new() }),
        // The control plane makes the group again when it publishes next.
        Err(error) if error.code() == Some("NOGROUP") => {
            sleep(Duration::from_millis(300)).await;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let Some((stream, message)) = read.keys.into_iter().find_map(|key| Some((key.key, key.ids.into_iter().next()?)))
    else {
        return Ok(());
    };
    let Some(job_id) = message.get::<String>("job_id") else { return Ok(()) };
    let body = json!({"worker_id": worker.args.name, "job_id": job_id, "stream": stream, "message_id": message.id});
    let (_, jobs, reply) = worker.claim(&body, None, Some(&job_id)).await;
    let ack = matches!(&reply, Reply::Told { body, .. } if body["ack"] == true);
    match jobs.into_iter().next() {
        Some(mut held) => {
            // Acked is the message that was read.
            held.read = Some((stream, message.id));
            tokio::spawn(job::run(Arc::clone(worker), held, Some(slot)));
        }
        None if ack => {
            let _: i64 = connection.xack(&stream, GROUP, &[&message.id]).await?;
        }
        // Left pending: the control plane takes it over.
        None => {}
    }
    Ok(())
}

impl Worker {
    /// Acks the message of a job, as it was told to.
    pub(super) async fn ack(&self, held: &Held) {
        let (Some(url), Some((stream, id))) = (&self.args.redis, &held.read) else { return };
        let acked = async {
            let mut connection = connect(&redis::Client::open(url.as_str())?).await?;
            let _: i64 = connection.xack(stream, GROUP, &[id]).await?;
            anyhow::Ok(())
        };
        // The control plane acks as well. A lost ack costs nothing.
        let _ = acked.await;
    }
}
