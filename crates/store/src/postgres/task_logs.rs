//! Logs of tasks.

use async_trait::async_trait;
use tenure_core::Seq;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::load::query;
use super::rows::{self, Time, text, time};
use super::{Postgres, sql};
use crate::error::StoreError;
use crate::task_logs::{LOG_BYTES_PER_ATTEMPT, LOG_PIECES_PER_ATTEMPT, LogKept, LogPiece, NewLogPiece, TaskLogStore};

type Result<T> = std::result::Result<T, StoreError>;

fn piece(row: &Row) -> rows::Result<LogPiece> {
    Ok(LogPiece {
        id: row.try_get(0)?,
        attempt: row.try_get::<_, i32>(1)?.unsigned_abs(),
        at: time(row, 2)?,
        lines: text(row, 3)?,
    })
}

#[async_trait]
impl TaskLogStore for Postgres {
    async fn keep_logs(&self, pieces: &[NewLogPiece]) -> Result<Vec<LogKept>> {
        self.outbox_write("keep logs of tasks", async |conn, now| {
            let mut kept = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let (seq, id) = (piece.task.seq().0, Uuid::from_u128(piece.task.as_u128()));
                let (token, bytes) = (Uuid::from_u128(piece.token.reveal()), piece.lines.len() as i64);
                let (worker, lines, at) = (piece.worker.as_deref(), &*piece.lines, Time(now));
                let (most, pieces) = (LOG_BYTES_PER_ATTEMPT, LOG_PIECES_PER_ATTEMPT);
                let params: [&(dyn ToSql + Sync); 9] =
                    [&seq, &id, &token, &worker, &at, &bytes, &lines, &most, &pieces];
                kept.push(if !query(conn, sql::TASK_LOG_PUT, &params).await?.is_empty() {
                    LogKept::Kept
                } else if query(conn, sql::TASK_LOG_HELD, &params[..4]).await?.is_empty() {
                    LogKept::NotHeld
                } else {
                    LogKept::Full
                });
            }
            Ok(kept)
        })
        .await
    }

    async fn task_logs(&self, task: Seq, attempt: Option<u32>, after: i64, limit: usize) -> Result<Vec<LogPiece>> {
        let attempt = attempt.map(|attempt| i32::try_from(attempt).unwrap_or(i32::MAX));
        let params: [&(dyn ToSql + Sync); 4] = [&task.0, &after, &attempt, &(limit as i64)];
        self.list("read logs of a task", sql::TASK_LOGS_GET, &params, piece).await
    }
}
