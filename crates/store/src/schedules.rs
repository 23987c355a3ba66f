//! Schedules of tasks and runs.
//!
//! A row has a version, which every change raises. Whoever fires a slot reads the row, decides, and writes what it decided
//! only if the version is still the one it read. So of several control planes one fires a slot, and a change by a user in
//! between makes the others decide again.

use async_trait::async_trait;
use tenure_core::schedule::{Definition, ScheduleState};
use tenure_core::time::Timestamp;

use crate::error::StoreError;
use crate::model::Page;

/// What the template of a schedule is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TemplateKind {
    #[default]
    Task,
    Run,
}

impl TemplateKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Task => "task",
            Self::Run => "run",
        }
    }

    pub fn parse(text: &str) -> Self {
        if text == "run" { Self::Run } else { Self::Task }
    }
}

/// What a user or a firing sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleSetting {
    pub kind: TemplateKind,
    pub definition: Definition,
    pub state: ScheduleState,
    pub paused: bool,
    /// When it must be looked at; `None` if never.
    pub due_at: Option<Timestamp>,
}

#[derive(Debug, Clone)]
pub struct NewSchedule {
    /// A UUID.
    pub id: String,
    pub tenant: String,
    pub name: String,
    pub owner: Option<String>,
    /// Tenant that will own any queue that a firing creates; `None` is shared by all tenants.
    pub maker: Option<String>,
    pub setting: ScheduleSetting,
    /// JSON of a submission.
    pub template: String,
}

/// A schedule without its template, which may be large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRow {
    pub id: String,
    pub tenant: String,
    pub name: String,
    pub owner: Option<String>,
    pub maker: Option<String>,
    pub setting: ScheduleSetting,
    /// Raised by every change.
    pub version: i64,
    pub created_at: Timestamp,
    /// When a user last changed it.
    pub updated_at: Timestamp,
}

/// Schedules that must be looked at.
#[derive(Debug, Default)]
pub struct DueSchedules {
    pub rows: Vec<ScheduleRow>,
    /// When the next one is due.
    pub next_at: Option<Timestamp>,
    /// The store's time.
    pub now: Timestamp,
}

#[derive(Debug, Clone, Default)]
pub struct ScheduleFilter {
    pub tenant: Option<String>,
    pub owner: Option<String>,
    /// The next page starts behind this: `next` of the page before.
    pub after: Option<String>,
    pub limit: usize,
}

#[async_trait]
pub trait ScheduleStore: Send + Sync {
    /// `None` if the tenant has a schedule of this name, or as many as it may have.
    async fn create_schedule(&self, new: &NewSchedule) -> Result<Option<ScheduleRow>, StoreError>;

    async fn schedule(&self, id: &str) -> Result<Option<ScheduleRow>, StoreError>;
    async fn schedule_named(&self, tenant: &str, name: &str) -> Result<Option<ScheduleRow>, StoreError>;
    async fn schedule_template(&self, id: &str) -> Result<Option<String>, StoreError>;
    /// By tenant and name.
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Page<ScheduleRow>, StoreError>;

    /// Those that are due, the longest due first. Reads only.
    async fn due_schedules(&self, limit: usize) -> Result<DueSchedules, StoreError>;

    /// Writes the setting if the version is still `seen`: otherwise nothing changes, and `None` comes back. `template` is
    /// that of a user who changes it. A crash leaves the row as it was, or as it is now.
    async fn save_schedule(
        &self,
        id: &str,
        seen: i64,
        setting: &ScheduleSetting,
        template: Option<&str>,
        by_user: bool,
    ) -> Result<Option<ScheduleRow>, StoreError>;

    /// Whether there was one.
    async fn delete_schedule(&self, id: &str) -> Result<bool, StoreError>;
}

/// Tenants have no slash in their names.
pub(crate) fn place(row: &ScheduleRow) -> String {
    format!("{}/{}", row.tenant, row.name)
}

pub(crate) fn behind(after: Option<&str>) -> (&str, &str) {
    after.map_or(("", ""), |after| after.split_once('/').unwrap_or((after, "")))
}

pub(crate) fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// A text that cannot be read is reported, and stands for nothing.
pub(crate) fn from_json<T: serde::de::DeserializeOwned + Default>(text: &str, what: &'static str, id: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::error!(schedule.id = id, column = what, %error, "cannot decode a stored row: using the default");
        T::default()
    })
}
