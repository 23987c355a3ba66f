//! Where tasks live: one [`Store`] trait, SQLite and Postgres behind it.
//!
//! The trait is shaped for group commit. A batch of commands goes in; the store loads and locks what the batch's
//! [`Session`](tenure_core::batch::Session) asks for, writes what it says with a few statements, commits, and only then
//! answers. Nothing here decides anything about a task.

pub mod buffers;
pub mod bundles;
mod clock;
mod codec;
mod copy;
pub mod dags;
mod error;
mod faults;
mod identity;
mod inspect;
mod job_wakes;
mod leases;
mod model;
mod notices;
mod outbox;
pub mod postgres;
mod sandboxes;
mod schedules;
mod schema;
mod sql;
pub mod sqlite;
mod store;
mod task_logs;
mod workers;

pub use clock::Clock;
pub use copy::{Copied, CopyError, copy};
pub use error::StoreError;
pub use faults::{Fault, Faults, Hold};
pub use identity::{
    AdminAudit, AdminAuditFilter, AdminAuditRow, ApiKey, Asker, AuditCut, CredentialGrant, CredentialGrantRow,
    IdentityStore, MEMBERS_MAX, MemberRow, NewApiKey, OperationAudit, OperationAuditFilter, OperationAuditRow,
    PROVEN_WORKERS_MAX, QueryAudit, QueryAuditRow, TASK_KEY_KEPT, TENANTS_MAX, TenantRecord, TenantRow,
};
pub use inspect::{Inspection, PostgresServer, SHARED_WORKER_TOKEN, STORE_ID, SharedSecret, inspect};
pub use job_wakes::{FirstReady, JobQueue, JobQueues, JobWake, JobWakeStore, ReadyJob};
pub use leases::{Holder, LeaseRefusal, LeaseStore, Resource, ResourceLease, ResourceType};
pub use model::{
    AttemptRange, AttemptView, DeadLetterFilter, EventBatch, EventHorizon, NewRedrive, Page, QueueStats, QueueView,
    RedriveChange, RedriveCursor, RedriveFilter, RedriveView, RunFilter, RunMaterial, RunTaskView, RunView, RunWeight,
    TaskFilter, TaskView, Whose,
};
pub use notices::{Notice, NoticeStore};
pub use outbox::{
    CheckedWake, ExternalQueue, Fed, LiveWake, MAKERS_OWN_MS, NextTry, OutboxFilter, OutboxLag, OutboxRetry,
    OutboxState, OutboxStore, OutboxView, PublishedWake, PutOff, WakeCounts,
};
pub use sandboxes::{
    Beat, Beaten, Changed, INVENTORY_ITEMS, KEY_KEPT_MS, LeaseTerms, NewSandbox, NewSandboxEvent, NotPlaced,
    PIECES_KEPT_MS, Placed, PolicyRow, QueuedSpawn, Queueing, QuotaRow, Quotas, RequestKey, SANDBOX_PAGE,
    SNAPSHOT_PIECE, SPEC_BYTES, SandboxEvent, SandboxFilter, SandboxRoute, SandboxStore, SnapshotRow, SpawnTerms,
    TemplateRow, Told, worker_holder,
};
pub use schedules::{
    DueSchedules, NewSchedule, ScheduleFilter, ScheduleRow, ScheduleSetting, ScheduleStore, TemplateKind,
};
pub use schema::SCHEMA;
pub use store::{Batch, Due, Lane, PushesDue, Store};
pub use task_logs::{LOG_BYTES_PER_ATTEMPT, LogKept, LogPiece, NewLogPiece, TaskLogStore};
pub use tenure_core::batch::{Done, Settled};
pub use tenure_core::effect::DueEffect;
pub use tenure_core::retention::{Pruned, Retention};
pub use workers::{HeldTask, Sighting, WORKER_RECORDS_MAX, WorkerDetails, WorkerRecord, WorkerStore};

use std::sync::Arc;

/// Opens a store by its address: `sqlite:PATH` or `postgres://…`.
pub async fn open(url: &str, clock: Arc<Clock>) -> Result<Arc<dyn Store>, StoreError> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        return Ok(Arc::new(sqlite::Sqlite::open(path.as_ref(), clock).await?));
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(Arc::new(postgres::Postgres::open(url, clock).await?));
    }
    // The address may hold a password: only its scheme is shown.
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    Err(StoreError::Address { scheme: scheme.to_owned() })
}
