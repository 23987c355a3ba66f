//! Submits and cancels whole runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::submit::NewTask;
use super::{Reach, cancel};
use crate::id::RunId;
use crate::time::Timestamp;

/// A run with all its tasks and edges, all or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct SubmitRun {
    pub run: NewRun,
    pub tasks: Vec<NewMember>,
    /// Tenant that will own any queue this creates; `None` is shared by all tenants.
    pub maker: Option<Arc<str>>,
}

/// A new run. Its id is minted beforehand, so that a submit whose commit got no answer can be found again.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRun {
    pub id: RunId,
    pub key: Option<Arc<str>>,
    pub tenant: Arc<str>,
    pub workspace: Arc<str>,
    pub owner: Option<Arc<str>>,
    pub fingerprint: [u8; 32],
    pub labels: BTreeMap<String, String>,
    pub deadline: Option<Timestamp>,
    /// The run that this one repeats.
    pub parent: Option<RunId>,
}

/// A task of a new run. Other tasks are named by their place in the list. [`Plan`](crate::run::plan::Plan) makes sure
/// that there is no cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMember {
    pub key: Arc<str>,
    pub task: NewTask,
    pub depends_on: Vec<usize>,
    /// Those among them whose outputs the payload names.
    pub refs: Vec<usize>,
    /// It succeeded in the run that this one repeats: its output is carried over, and it does not run.
    pub carried: Option<Carried>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carried {
    pub result: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSubmitted {
    pub id: RunId,
    pub created: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelRun {
    pub run: RunId,
    pub reason: Arc<str>,
    pub mode: cancel::Mode,
    pub reach: Reach,
}

/// The reason is the one that was given first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunCanceled {
    pub reason: Arc<str>,
}
