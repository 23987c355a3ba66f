//! Ready tasks of jobs.

use async_trait::async_trait;
use rusqlite::params;
use tenure_core::queue::QueueId;
use tenure_core::time::Timestamp;
use tenure_core::{Seq, TaskId};

use super::{Sqlite, rows, sql};
use crate::error::StoreError;
use crate::job_wakes::{FirstReady, JobQueue, JobQueues, JobWake, JobWakeStore, ReadyJob};

type Result<T> = std::result::Result<T, StoreError>;

#[async_trait]
impl JobWakeStore for Sqlite {
    async fn job_queues(&self, wake: Option<&str>) -> Result<JobQueues> {
        let (wake, now) = (wake.map(str::to_owned), self.clock.read_process().now);
        self.read("find queues of jobs", move |conn| {
            let mut statement = conn.prepare_cached(sql::JOB_QUEUES)?;
            let queues = statement.query_map([wake], |row| {
                let (ready, running): (i64, u32) = (row.get(18)?, row.get(19)?);
                Ok(JobQueue { queue: rows::queue(row)?, ready: ready.unsigned_abs(), running })
            })?;
            Ok(JobQueues { queues: queues.collect::<rusqlite::Result<_>>()?, now })
        })
        .await
    }

    async fn first_ready(&self, of: &[FirstReady]) -> Result<Vec<ReadyJob>> {
        let of = of.to_vec();
        self.read("find ready tasks of jobs", move |conn| {
            let mut statement = conn.prepare_cached(sql::JOB_READY)?;
            let mut found = Vec::new();
            for asked in of {
                let FirstReady { queue, held, limit } = asked;
                let ready = statement.query_map(params![queue.0, asked.priority(), held, limit as i64], |row| {
                    Ok(ReadyJob {
                        queue,
                        task: TaskId::from_u128(u128::from_be_bytes(row.get(0)?)),
                        message: row.get(1)?,
                        published_at: row.get::<_, Option<i64>>(2)?.map(Timestamp::from_millis),
                    })
                })?;
                for ready in ready {
                    found.push(ready?);
                }
            }
            Ok(found)
        })
        .await
    }

    async fn job_wakes(&self, queue: QueueId, after: i64, limit: usize) -> Result<Vec<JobWake>> {
        self.read("look at wake-ups of jobs", move |conn| {
            let mut statement = conn.prepare_cached(sql::JOB_WAKES)?;
            let wakes = statement.query_map(params![queue.0, after, limit as i64], |row| {
                Ok(JobWake {
                    message: row.get(0)?,
                    row: Seq(row.get(1)?),
                    created_at: Timestamp::from_millis(row.get(2)?),
                    published_at: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_millis),
                    ready: row.get(4)?,
                })
            })?;
            wakes.collect()
        })
        .await
    }
}
