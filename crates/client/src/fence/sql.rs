//! Fences in a database.
//!
//! For one row that belongs to the task, a column is enough:
//!
//! ```sql
//! UPDATE report SET rows = $1, fence = $2 WHERE task = $3 AND fence <= $2
//! ```
//!
//! No row changed means that the fence was stale; [`written`] makes an error of it. With `tokio-postgres`:
//!
//! ```no_run
//! # use tenure_client::{TaskContext, TaskError, fence::sql};
//! # async fn example(task: TaskContext, db: tokio_postgres::Client) -> Result<(), TaskError> {
//! let fence = task.guard();
//! let changed = db
//!     .execute(
//!         "INSERT INTO report (task, fence, rows) VALUES ($1, $2, $3) \
//!          ON CONFLICT (task) DO UPDATE SET fence = excluded.fence, rows = excluded.rows \
//!          WHERE report.fence <= excluded.fence",
//!         &[&fence.task_id(), &fence.as_i64(), &10_i64],
//!     )
//!     .await?;
//! sql::written(&fence, changed)?;
//! # Ok(())
//! # }
//! ```
//!
//! With `sqlx`:
//!
//! ```text
//! let fence = task.guard();
//! let done = sqlx::query("UPDATE report SET rows = $1, fence = $2 WHERE task = $3 AND fence <= $2")
//!     .bind(10_i64)
//!     .bind(fence.as_i64())
//!     .bind(fence.task_id())
//!     .execute(&pool)
//!     .await?;
//! sql::written(&fence, done.rows_affected())?;
//! ```
//!
//! For many rows, or tables that have no such column, one table keeps the fences of all tasks. [`RAISE`] goes first in
//! the transaction of the writes:
//!
//! ```no_run
//! # use tenure_client::{TaskContext, TaskError, fence::sql};
//! # async fn example(task: TaskContext, mut db: tokio_postgres::Client) -> Result<(), TaskError> {
//! let fence = task.guard();
//! let transaction = db.transaction().await?;
//! let raised = transaction.execute(sql::RAISE, &[&fence.task_id(), &fence.as_i64()]).await?;
//! sql::written(&fence, raised)?;
//! transaction.execute("DELETE FROM facts WHERE day = $1", &[&"2025-01-15"]).await?;
//! transaction.execute("INSERT INTO facts SELECT * FROM staging", &[]).await?;
//! transaction.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Until the commit the row of the task is locked. An older attempt that comes meanwhile waits there, and is then
//! refused: it never sees a moment in which it may write.

use super::{Fence, Stale};

/// Makes the table for [`RAISE`]. Postgres and SQLite take it. The Python SDK has the same table.
pub const CREATE_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS tenure_fences (task_id varchar(64) PRIMARY KEY, fence bigint NOT NULL)";

/// Raises the fence of a task, or changes no row if a later attempt was there. Postgres and SQLite take it: `$1` is the
/// task's id, `$2` the fence. Fences of different tasks have nothing to do with each other.
pub const RAISE: &str = "INSERT INTO tenure_fences (task_id, fence) VALUES ($1, $2) \
     ON CONFLICT (task_id) DO UPDATE SET fence = excluded.fence WHERE tenure_fences.fence <= excluded.fence";

/// What the number of changed rows says: none means that the fence was stale.
///
/// Only for statements that would have changed a row otherwise: an `UPDATE` of a row that is not there changes none
/// either.
pub fn written(fence: &Fence, changed_rows: u64) -> Result<(), Stale> {
    if changed_rows == 0 { Err(fence.stale()) } else { Ok(()) }
}
