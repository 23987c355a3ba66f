//! What attempts print and log, in pieces as their workers sent them.

use std::sync::Arc;

use async_trait::async_trait;
use tenure_core::time::Timestamp;
use tenure_core::{LeaseToken, Seq, TaskId};

use crate::error::StoreError;

/// What is kept of one attempt.
pub const LOG_BYTES_PER_ATTEMPT: i64 = 1 << 20;
pub const LOG_PIECES_PER_ATTEMPT: i64 = 2_000;
/// Pieces of all attempts. The oldest give way.
pub const LOG_PIECES_MAX: i64 = 500_000;

/// Lines of one attempt, from the worker that holds it.
#[derive(Debug, Clone)]
pub struct NewLogPiece {
    pub task: TaskId,
    pub token: LeaseToken,
    /// The worker, if a credential of its own proves it.
    pub worker: Option<Arc<str>>,
    /// Lines, as JSON.
    pub lines: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogKept {
    Kept,
    /// The attempt has as much as it may have.
    Full,
    /// The attempt is not held under this token.
    NotHeld,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPiece {
    /// Grows with every piece of a store.
    pub id: i64,
    pub attempt: u32,
    pub at: Timestamp,
    pub lines: Arc<str>,
}

/// The part of a store that keeps logs of tasks. They decide nothing, and may be dropped at any time.
#[async_trait]
pub trait TaskLogStore {
    /// Keeps pieces whose attempts are held under the token that comes with them. A crash before loses only that.
    async fn keep_logs(&self, pieces: &[NewLogPiece]) -> Result<Vec<LogKept>, StoreError>;

    /// Pieces of a task after the piece `after`, of one attempt or of all, oldest first.
    async fn task_logs(
        &self,
        task: Seq,
        attempt: Option<u32>,
        after: i64,
        limit: usize,
    ) -> Result<Vec<LogPiece>, StoreError>;
}
