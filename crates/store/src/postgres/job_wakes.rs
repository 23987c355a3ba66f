//! Ready tasks of jobs.

use async_trait::async_trait;
use tenure_core::queue::QueueId;
use tenure_core::{Seq, TaskId};
use uuid::Uuid;

use super::load::query;
use super::{Postgres, rows, sql};
use crate::error::StoreError;
use crate::job_wakes::{FirstReady, JobQueue, JobQueues, JobWake, JobWakeStore, ReadyJob};

type Result<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl JobWakeStore for Postgres {
    async fn job_queues(&self, wake: Option<&str>) -> Result<JobQueues> {
        self.outbox_read("find queues of jobs", async |conn, now| {
            let found = query(conn, sql::JOB_QUEUES, &[&wake]).await?;
            let queues = found.iter().map(|row| {
                let (ready, running): (i64, i64) = (row.try_get(18)?, row.try_get(19)?);
                let running = u32::try_from(running.max(0)).unwrap_or(u32::MAX);
                Ok(JobQueue { queue: rows::queue(row)?, ready: ready.unsigned_abs(), running })
            });
            Ok(JobQueues { queues: queues.collect::<rows::Result<_>>()?, now })
        })
        .await
    }

    async fn first_ready(&self, of: &[FirstReady]) -> Result<Vec<ReadyJob>> {
        let queues: Vec<i32> = of.iter().map(|asked| asked.queue.0).collect();
        let priorities: Vec<i16> = of.iter().map(|asked| i16::from(asked.priority())).collect();
        let held: Vec<bool> = of.iter().map(|asked| asked.held).collect();
        let limits: Vec<i64> = of.iter().map(|asked| asked.limit as i64).collect();
        self.outbox_read("find ready tasks of jobs", async |conn, _| {
            let found = query(conn, sql::JOB_READY, &[&queues, &priorities, &held, &limits]).await?;
            let ready = found.iter().map(|row| {
                Ok(ReadyJob {
                    queue: QueueId(row.try_get(0)?),
                    task: TaskId::from_u128(row.try_get::<_, Uuid>(1)?.as_u128()),
                    message: row.try_get(2)?,
                    published_at: rows::time_if(row, 3)?,
                })
            });
            ready.collect()
        })
        .await
    }

    async fn job_wakes(&self, queue: QueueId, after: i64, limit: usize) -> Result<Vec<JobWake>> {
        self.outbox_read("look at wake-ups of jobs", async |conn, _| {
            let found = query(conn, sql::JOB_WAKES, &[&queue.0, &after, &(limit as i64)]).await?;
            let wakes = found.iter().map(|row| {
                Ok(JobWake {
                    message: row.try_get(0)?,
                    row: Seq(row.try_get(1)?),
                    created_at: rows::time(row, 2)?,
                    published_at: rows::time_if(row, 3)?,
                    ready: row.try_get(4)?,
                })
            });
            wakes.collect()
        })
        .await
    }
}
