//! Routes events to the jobs that read their datasets, and looks for what was missed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::dag::data::{Partition, Position, Scope};
use tenure_core::dag::definition::ExecutionStrategy;
use tenure_core::dag::deployment::VersionState;
use tenure_core::dag::route::{self, Event};
use tenure_core::dag::task::{Invalidated, Trigger};
use tenure_core::dag::{Deployment, JobId, named_bits};
use tenure_core::task::State;
use tenure_store::TaskFilter;
use tenure_store::dags::{DATA_PAGE, DataEvent, DeploymentWrites, InvalidationRow, Routed};

use super::deploy::document;
use super::tasks::{Making, REBUILD_TAG, input_of, version_of};
use super::{Dags, View};
use crate::background::Pacer;
use crate::duty::Duty;
use crate::error::EngineError;

const EVENTS: usize = 500;
/// How soon events are found that another control plane recorded.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const RECONCILE_EVERY: u32 = 120;

impl Dags {
    /// One control plane routes; others would find the same events and make the same tasks.
    pub(super) async fn keep_routing(self) {
        let shared = Arc::clone(&self.inner.engine.shared);
        let mut pacer = Pacer::new(&shared);
        let mut turns = 0_u32;
        loop {
            tokio::select! {
                more = pacer.pause(LOOK_EVERY) => if !more { return },
                () = self.inner.route.notified() => {}
            }
            if !shared.duties.is_mine(Duty::Router) {
                continue;
            }
            if let Err(error) = self.route_all().await {
                tracing::debug!(error = %error, "events wait");
            }
            turns += 1;
            if turns.is_multiple_of(RECONCILE_EVERY)
                && let Err(error) = self.reconcile().await
            {
                tracing::debug!(error = %error, "the reconciliation of datasets is put off");
            }
        }
    }

    /// Routes everything that is there, and makes versions ready whose outputs are rebuilt.
    async fn route_all(&self) -> Result<(), EngineError> {
        loop {
            let events = self.shared().store.unrouted(EVENTS).await?;
            // An event that came with an invalidation has the same key. Its task must know of the invalidation, or what is
            // made from its outputs would not.
            let invalidated = self.route_invalidations().await?;
            if events.is_empty() && !invalidated {
                return self.finish_rebuilds().await;
            }
            let mut orgs: BTreeMap<Arc<str>, Vec<DataEvent>> = BTreeMap::new();
            for event in events {
                orgs.entry(Arc::clone(&event.org)).or_default().push(event);
            }
            for (org, events) in orgs {
                self.route_events(&org, &events).await?;
            }
        }
    }

    /// Routes every invalidation that is open. Returns whether there was one.
    async fn route_invalidations(&self) -> Result<bool, EngineError> {
        let mut found = false;
        loop {
            let open = self.shared().store.open_invalidations(EVENTS).await?;
            if open.is_empty() {
                return Ok(found);
            }
            found = true;
            for invalidation in open {
                self.route_invalidation(&invalidation).await?;
            }
        }
    }

    /// The tasks are made before the events are marked: a crash in between makes the same tasks again, which are there.
    /// A deployment in between leaves the events as they are, to be routed by what is deployed then.
    async fn route_events(&self, org: &str, events: &[DataEvent]) -> Result<(), EngineError> {
        let view = self.view(org).await?;
        let (mut making, mut routed) = (Vec::new(), Vec::with_capacity(events.len()));
        for event in events {
            let DataEvent { dataset, version, position, generation, .. } = event;
            let seen = Event { dataset: *dataset, version: *version, position, generation: *generation };
            let why_not = match route::route(&view.deployment, &seen) {
                Err(why) => Some(why.as_str()),
                Ok(deliveries) => {
                    for delivery in deliveries {
                        let trigger =
                            Trigger::Event { input_index: delivery.input, event_id: uuid_of(event.id, &seen).into() };
                        let cause =
                            Cause { input: delivery.input, position: position.clone(), generation: *generation };
                        let new =
                            self.task_of(&view, delivery.job, delivery.key, trigger, Some(cause), delivery.rebuild);
                        making.extend(new.await?);
                    }
                    None
                }
            };
            routed.push(Routed { event: event.id, why_not });
        }
        self.make(making).await?;
        // Refused: what is deployed has changed. The events stay, and the next look routes them by what is there then.
        let _ = self.shared().store.routed(org, view.seq, &routed).await?;
        Ok(())
    }

    async fn route_invalidation(&self, row: &InvalidationRow) -> Result<(), EngineError> {
        let view = self.view(&row.org).await?;
        let cursor = match self.shared().store.generations(&[row.version]).await?.pop() {
            Some(generation) => generation.cursor.unwrap_or_default(),
            None => 0,
        };
        let position = match &row.scope {
            Scope::Partition { partition_key } => partition(partition_key),
            Scope::RowRange { .. } => Position::Cursor(cursor),
        };
        let seen =
            Event { dataset: row.dataset, version: row.version, position: &position, generation: row.generation };
        let deliveries = route::route(&view.deployment, &seen).unwrap_or_default();
        let (mut making, mut jobs) = (Vec::new(), Vec::new());
        for delivery in deliveries {
            let cause = Cause { input: delivery.input, position: position.clone(), generation: row.generation };
            let new = self
                .task_of(&view, delivery.job, delivery.key, Trigger::Invalidation, Some(cause), delivery.rebuild)
                .await?;
            making.extend(new.map(|mut making| {
                let (id, scope, reason) = (row.id, row.scope.clone(), Arc::clone(&row.reason));
                making.input.invalidation = Some(Invalidated { id, scope, reason });
                making
            }));
            jobs.push(delivery.job);
        }
        self.make(making).await?;
        let _ = self.shared().store.invalidation_routed(&row.org, view.seq, row.id, &jobs).await?;
        Ok(())
    }

    async fn task_of(
        &self,
        view: &View,
        id: JobId,
        key: Arc<str>,
        trigger: Trigger,
        cause: Option<Cause>,
        rebuild: bool,
    ) -> Result<Option<Making>, EngineError> {
        let (Some(job), Some(mut input)) = (self.job(id).await?, input_of(view, id, trigger)) else { return Ok(None) };
        if let Some(cause) = cause
            && let Some(at) = input.inputs.iter_mut().find(|at| at.input_index == cause.input)
        {
            at.position = Some(cause.position);
            at.generation = cause.generation;
        }
        if rebuild {
            let row = view.deployment.jobs.get(&id);
            input.rebuild = row.and_then(|row| version_of(view, row, id)).map(|(_, version)| version);
        }
        Ok(Some(Making { job, key, input }))
    }

    /// Looks for partitions and rows that a job has not read and makes the tasks that are missing: those of a version that
    /// is rebuilt, and those of events that were lost between two versions.
    pub async fn reconcile(&self) -> Result<(), EngineError> {
        // Their tasks say which change of the data they are for, and come first.
        if !self.shared().store.open_invalidations(1).await?.is_empty() {
            return Ok(());
        }
        for (org, _) in self.shared().store.deployments().await? {
            let view = self.view(&org).await?;
            // What a version that waits has to rebuild is looked for once, when it is deployed.
            let live = view.deployment.live_jobs();
            for id in live.into_iter().filter(|id| !is_held(&view.deployment, *id)) {
                self.reconcile_job(&view, id).await?;
            }
            self.cancel_retired(&view).await?;
        }
        Ok(())
    }

    pub(super) async fn reconcile_job(&self, view: &View, id: JobId) -> Result<(), EngineError> {
        let Some(job) = view.deployment.jobs.get(&id) else { return Ok(()) };
        for (index, input) in job.inputs.iter().enumerate() {
            let Some(version) = view.deployment.reads(input) else { continue };
            let make = async |position: Position, generation: i64| -> Result<(), EngineError> {
                let seen = Event { dataset: input.dataset, version, position: &position, generation };
                let key = route::dedupe_key(&seen).into();
                let trigger = if job.held {
                    Trigger::Rebuild
                } else {
                    Trigger::Event { input_index: index, event_id: uuid_of(0, &seen).into() }
                };
                let cause = Some(Cause { input: index, position: position.clone(), generation });
                let new = self.task_of(view, id, key, trigger, cause, job.held).await?;
                self.make(new.into_iter().collect()).await.map(drop)
            };
            let Some(generation) = self.shared().store.generations(&[version]).await?.pop() else { continue };
            if job.execution == Some(ExecutionStrategy::PerUpdate)
                && let Some(produced) = generation.cursor
            {
                let read = self.shared().store.job_state(id, &[version]).await?.cursors;
                if read.iter().all(|(_, cursor)| *cursor < produced) {
                    make(Position::Cursor(produced), generation.generation).await?;
                }
            }
            let mut after: Option<Arc<str>> = None;
            loop {
                let page = self.shared().store.unread(id, version, after.as_deref(), DATA_PAGE).await?;
                for unread in &page {
                    let partition = Partition { key: Arc::clone(&unread.key), ends: unread.ends };
                    make(Position::Partition(partition), unread.generation).await?;
                }
                match page.last() {
                    Some(last) if page.len() == DATA_PAGE => after = Some(Arc::clone(&last.key)),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Ends what a crash after a switch, or a look at an older deployment, left in the queues of retired jobs.
    async fn cancel_retired(&self, view: &View) -> Result<(), EngineError> {
        let live = view.deployment.live_jobs();
        let rolled_back: HashSet<JobId> = view
            .deployment
            .dags
            .values()
            .flat_map(|dag| dag.versions.values())
            .filter(|version| version.state == VersionState::RolledBack)
            .flat_map(|version| version.jobs.values().copied())
            .collect();
        let retired: Vec<JobId> = view.deployment.jobs.keys().copied().filter(|id| !live.contains(id)).collect();
        for id in retired {
            let running = rolled_back.contains(&id);
            self.cancel_tasks(&[id], running, "the version of the DAG was replaced").await?;
        }
        Ok(())
    }

    /// Makes versions ready whose rebuild tasks have all succeeded, and active those that wait for nobody.
    async fn finish_rebuilds(&self) -> Result<(), EngineError> {
        for (org, _) in self.shared().store.deployments().await? {
            let view = self.view(&org).await?;
            let staging: Vec<(Arc<str>, i64, bool)> = view
                .deployment
                .dags
                .keys()
                .filter_map(|dag| Some((Arc::clone(dag), view.deployment.staged(dag)?)))
                .filter(|(_, (_, version))| version.state == VersionState::Staging)
                .map(|(dag, (number, version))| (dag, number, version.manual))
                .collect();
            for (dag, number, manual) in staging {
                self.finish_rebuild(&org, &dag, number, manual).await?;
            }
        }
        Ok(())
    }

    async fn finish_rebuild(&self, org: &str, dag: &str, number: i64, manual: bool) -> Result<(), EngineError> {
        let view = self.view(org).await?;
        let Some(version) = view.deployment.version(dag, number) else { return Ok(()) };
        if !version.rebuilding {
            // What is there now is rebuilt. That it was looked at is noted: no tasks would mean nothing otherwise. What
            // comes later waits for the version.
            for id in version.jobs.values().filter(|id| is_held(&view.deployment, **id)) {
                self.reconcile_job(&view, *id).await?;
            }
            let mut deployment = view.deployment.clone();
            deployment.note_rebuilding(dag, number);
            let writes = DeploymentWrites { document: document(&deployment)?, ..DeploymentWrites::default() };
            self.write(org, view.seq, &writes).await?;
            self.recorded();
            return Ok(());
        }
        if self.rebuild_open(version.id.to_string()).await? || !self.shared().store.unrouted(1).await?.is_empty() {
            return Ok(());
        }
        let mut deployment = view.deployment.clone();
        if !deployment.make_ready(dag, number) {
            return Ok(());
        }
        let writes = DeploymentWrites { document: document(&deployment)?, ..DeploymentWrites::default() };
        if self.write(org, view.seq, &writes).await? && !manual {
            match self.cut_over(org, dag, number).await {
                Ok(_) | Err(super::DeployError::Refused(_) | super::DeployError::Invalid(_)) => {}
                Err(super::DeployError::Engine(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether a task that rebuilds this version has not succeeded. One that failed for good keeps the version waiting.
    async fn rebuild_open(&self, version: String) -> Result<bool, EngineError> {
        let waiting = [State::Blocked, State::Scheduled, State::Ready, State::Running, State::Failed, State::Canceled];
        for state in waiting {
            let filter = TaskFilter {
                state: Some(state),
                tag: Some((REBUILD_TAG.to_owned(), version.clone())),
                limit: 1,
                ..TaskFilter::default()
            };
            if !self.inner.engine.tasks(&filter).await?.items.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_held(deployment: &Deployment, id: JobId) -> bool {
    deployment.jobs.get(&id).is_some_and(|job| job.held)
}

/// What of an input caused a task.
struct Cause {
    input: usize,
    position: Position,
    generation: i64,
}

fn partition(key: &Arc<str>) -> Position {
    let ends = tenure_core::dag::PartitionKey::parse(key).ok().and_then(|key| key.numbers());
    let ends = ends.map(|(start, end)| (start.signed(), end.signed()));
    Position::Partition(Partition { key: Arc::clone(key), ends })
}

/// The id by which workers know an event.
fn uuid_of(id: i64, event: &Event<'_>) -> String {
    let bits = named_bits(&format!("{id}:{}", route::dedupe_key(event)));
    tenure_core::dag::DatasetId::from_u128(bits).to_string()
}
