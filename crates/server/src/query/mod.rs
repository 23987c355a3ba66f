//! Queries: SQL over datasets, run by query processes.
//!
//! The control plane decides what a caller may read and the process runs the SQL. `views` turns datasets into lists of
//! files and tables, `endpoint` speaks to a process, `process` keeps one running beside this server, `answer` bounds a
//! query, records it and answers, and `export` writes results to the object store. `job` runs tasks of the operator `query`,
//! `batch` queries of users that are tasks. The process has no credential of the control plane: a request carries all that
//! it may read.

mod answer;
pub mod batch;
mod endpoint;
mod export;
mod job;
mod process;
mod views;

pub use answer::{Question, answer};
pub use endpoint::Endpoint;
pub use export::of_org;
pub use export::result;
pub use job::QueryCourier;
pub use process::QueryProcess;
pub use views::{of_task, of_user};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_auth::Secret;
use tenure_engine::Engine;

use crate::dispatch::{DispatchFault, Part};
use crate::error::Fault;

/// Queries of a server at a time, with those whose answers are still being sent; and those of one organisation.
const IN_FLIGHT: usize = 40;
const IN_FLIGHT_OF_ORG: usize = 24;

/// Who runs queries.
#[derive(Debug, Clone)]
pub enum QueryPlace {
    /// Nobody. The text says what to do about it.
    Nowhere(String),
    /// A process that this server starts and watches.
    Own(QueryProcess),
    /// Processes that others run, and the token that they ask for.
    Fleet(Vec<Endpoint>, Option<Secret>),
}

/// How a server answers queries.
#[derive(Debug, Clone)]
pub struct QueryConfig {
    pub place: QueryPlace,
    /// Queries of an API key; 0 for any number.
    pub per_minute: u32,
    /// Of one query.
    pub memory_bytes: u64,
    pub user_timeout: Duration,
    pub task_timeout: Duration,
}

/// What a server without a query process says.
pub const NO_PROCESS: &str = "this server runs no queries: build the query process with \
    `cargo build --release -p tenure-query`, put it beside `tenure` and restart, or set query.endpoint";

impl Default for QueryConfig {
    fn default() -> Self {
        Self {
            place: QueryPlace::Nowhere(NO_PROCESS.to_owned()),
            per_minute: 10,
            memory_bytes: 512 << 20,
            user_timeout: Duration::from_secs(60),
            task_timeout: Duration::from_secs(300),
        }
    }
}

/// What handlers of queries have.
#[derive(Debug)]
pub struct Queries {
    pub config: QueryConfig,
    engine: Engine,
    dispatch: Arc<Part>,
    endpoints: Vec<Endpoint>,
    token: Option<Secret>,
    /// Where the next query goes.
    turn: std::sync::atomic::AtomicUsize,
    places: Places,
    /// The queue of batch queries exists.
    queue: tokio::sync::OnceCell<()>,
    files: views::FileLists,
    /// Ends with the server.
    _process: Option<process::Supervisor>,
}

impl Queries {
    /// Starts a query process, if this server has one of its own.
    pub fn start(engine: &Engine, config: &QueryConfig, dispatch: &Arc<Part>) -> Self {
        let (endpoints, token, process) = match &config.place {
            QueryPlace::Nowhere(_) => (Vec::new(), None, None),
            QueryPlace::Fleet(endpoints, token) => (endpoints.clone(), token.clone(), None),
            QueryPlace::Own(settings) => match process::Supervisor::start(settings.clone()) {
                Ok(supervisor) => (vec![supervisor.endpoint()], None, Some(supervisor)),
                Err(error) => {
                    tracing::error!(%error, "no folder for the query process: queries are not answered");
                    (Vec::new(), None, None)
                }
            },
        };
        if let Some(objects) = &dispatch.config.objects {
            tokio::spawn(export::keep_sweeping(engine.clone(), Arc::clone(objects)));
        }
        Self {
            config: config.clone(),
            engine: engine.clone(),
            dispatch: Arc::clone(dispatch),
            endpoints,
            token,
            turn: Default::default(),
            places: Places::default(),
            queue: tokio::sync::OnceCell::new(),
            files: views::FileLists::default(),
            _process: process,
        }
    }

    /// A place for a query of an organisation.
    fn enter(&self, org: &Arc<str>) -> Result<InFlight, Fault> {
        self.places.enter(org)
    }
}

/// Queries that run or whose answers are being sent, by organisation.
#[derive(Debug, Default)]
struct Places(Arc<Mutex<HashMap<Arc<str>, usize>>>);

impl Places {
    fn enter(&self, org: &Arc<str>) -> Result<InFlight, Fault> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = running.get(org).copied().unwrap_or(0);
        if own >= IN_FLIGHT_OF_ORG || running.values().sum::<usize>() >= IN_FLIGHT {
            return Err(busy());
        }
        *running.entry(Arc::clone(org)).or_default() += 1;
        Ok(InFlight { counts: Arc::clone(&self.0), org: Arc::clone(org) })
    }
}

fn busy() -> Fault {
    DispatchFault::fault("query_busy", "too many queries are running and waiting: try again")
}

/// Counts a query until its answer was sent.
#[derive(Debug)]
struct InFlight {
    counts: Arc<Mutex<HashMap<Arc<str>, usize>>>,
    org: Arc<str>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut running = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = running.get_mut(&self.org) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.org);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_organisation_cannot_take_all_places() {
        let places = Places::default();
        let (acme, other): (Arc<str>, Arc<str>) = ("acme".into(), "other".into());
        let mut held: Vec<InFlight> = (0..IN_FLIGHT_OF_ORG).map(|_| places.enter(&acme).unwrap()).collect();
        assert!(places.enter(&acme).is_err());
        held.extend((IN_FLIGHT_OF_ORG..IN_FLIGHT).map(|_| places.enter(&other).unwrap()));
        assert!(places.enter(&other).is_err());
        held.pop();
        assert!(places.enter(&other).is_ok());
        held.clear();
        assert!(places.0.lock().unwrap().is_empty());
    }
}
