//! DAGs and datasets, as users see them.

use serde::{Deserialize, Serialize};

/// An error or a warning about the text of a DAG.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DagProblem {
    /// Counted from 1, like `column`.
    pub line: u32,
    /// In characters.
    pub column: u32,
    pub job: Option<String>,
    /// The path of the value, within the job if there is one: `inputs[0].from.job`.
    pub field: String,
    /// Stable: clients match on it.
    pub code: String,
    pub message: String,
}

/// A source was fired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceFired {
    /// A UUID.
    pub task_id: String,
    /// False if the same request had fired it before.
    pub created: bool,
}
