//! Logs of tasks.

use async_trait::async_trait;
use rusqlite::{Row, params};
use tenure_core::Seq;
use tenure_core::time::Timestamp;

use super::{Sqlite, sql};
use crate::error::StoreError;
use crate::task_logs::{LOG_BYTES_PER_ATTEMPT, LOG_PIECES_PER_ATTEMPT, LogKept, LogPiece, NewLogPiece, TaskLogStore};

type Result<T> = std::result::Result<T, StoreError>;

fn piece(row: &Row<'_>) -> rusqlite::Result<LogPiece> {
    Ok(LogPiece { id: row.get(0)?, attempt: row.get(1)?, at: Timestamp::from_millis(row.get(2)?), lines: row.get(3)? })
}

#[async_trait]
impl TaskLogStore for Sqlite {
    async fn keep_logs(&self, pieces: &[NewLogPiece]) -> Result<Vec<LogKept>> {
        let (now, pieces) = (self.clock.read_process().now.as_millis(), pieces.to_vec());
        self.write("keep logs of tasks", move |tx| {
            let mut put = tx.prepare_cached(sql::TASK_LOG_PUT)?;
            let mut held = tx.prepare_cached(sql::TASK_LOG_HELD)?;
            let mut kept = Vec::with_capacity(pieces.len());
            for piece in &pieces {
                let (seq, id) = (piece.task.seq().0, piece.task.as_u128().to_be_bytes());
                let (token, bytes) = (piece.token.reveal().to_be_bytes(), piece.lines.len() as i64);
                let worker = piece.worker.as_deref();
                let put = put.execute(params![
                    seq,
                    id,
                    token,
                    worker,
                    now,
                    bytes,
                    &*piece.lines,
                    LOG_BYTES_PER_ATTEMPT,
                    LOG_PIECES_PER_ATTEMPT
                ])?;
                kept.push(match put {
                    0 if held.exists(params![seq, id, token, worker])? => LogKept::Full,
                    0 => LogKept::NotHeld,
                    _ => LogKept::Kept,
                });
            }
            Ok(kept)
        })
        .await
    }

    async fn task_logs(&self, task: Seq, attempt: Option<u32>, after: i64, limit: usize) -> Result<Vec<LogPiece>> {
        self.read("read logs of a task", move |conn| {
            let mut statement = conn.prepare_cached(sql::TASK_LOGS_GET)?;
            statement.query_map(params![task.0, after, attempt, limit as i64], piece)?.collect()
        })
        .await
    }
}
