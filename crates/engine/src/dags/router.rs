//! Routes events to the jobs that read their datasets, and looks for what was missed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::dag::data::{Partition, Position, Scope};
use tenure_core::dag::definition::ExecutionStrategy;
use tenure_core::dag::route::{self, Event};
use tenure_core::dag::task::{Invalidated, Trigger};
use tenure_core::dag::{Deployment, JobId, named_bits};
use tenure_store::dags::{DATA_PAGE, DataEvent, InvalidationRow, Routed};

use super::deploy::{REPLACED, ROLLED_BACK};
use super::tasks::{Making, input_of, version_of};
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
            let events = self.shared().store.unrouted(&self.troubled(), EVENTS).await?;
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
            let troubled = self.troubled();
            for (org, events) in orgs.iter().filter(|(org, _)| !troubled.contains(org)) {
                self.only_for(org, self.route_events(org, events).await)?;
            }
        }
    }

    /// Routes every invalidation that is open. Returns whether there was one.
    async fn route_invalidations(&self) -> Result<bool, EngineError> {
        let mut found = false;
        loop {
            let open = self.shared().store.open_invalidations(&self.troubled(), EVENTS).await?;
            if open.is_empty() {
                return Ok(found);
            }
            found = true;
            let mut orgs: BTreeMap<&Arc<str>, Vec<&InvalidationRow>> = BTreeMap::new();
            for invalidation in &open {
                orgs.entry(&invalidation.org).or_default().push(invalidation);
            }
            for (org, invalidations) in orgs {
                self.only_for(org, self.route_invalidations_of(&invalidations).await)?;
            }
        }
    }

    async fn route_invalidations_of(&self, invalidations: &[&InvalidationRow]) -> Result<(), EngineError> {
        for invalidation in invalidations {
            self.route_invalidation(invalidation).await?;
        }
        Ok(())
    }

    /// Whether events of an organisation wait to be routed. Says yes if there are too many events of others to know.
    pub(super) async fn has_unrouted(&self, org: &str) -> Result<bool, EngineError> {
        let events = self.shared().store.unrouted(&self.troubled(), EVENTS).await?;
        Ok(events.len() == EVENTS || events.iter().any(|event| &*event.org == org))
    }

    /// The tasks are made before the events are marked: a crash in between makes the same tasks again, which are there.
    /// A deployment in between leaves the events as they are, to be routed by what is deployed then.
    async fn route_events(&self, org: &str, events: &[DataEvent]) -> Result<(), EngineError> {
        let view = self.view(org).await?;
        let (mut making, mut routed) = (Vec::new(), Vec::with_capacity(events.len()));
        for event in events {
            let DataEvent { dataset, version, position, generation, .. } = event;
            let seen = Event { dataset: *dataset, version: *version, position, generation: *generation };
            let why_not = match route::route(&view.deployment, &view.readers, &seen) {
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
        let deliveries = route::route(&view.deployment, &view.readers, &seen).unwrap_or_default();
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
        let troubled = self.troubled();
        // Tasks for changed data say which change they are for, and come first.
        let open = self.shared().store.open_invalidations(&troubled, EVENTS).await?;
        if open.len() == EVENTS {
            return Ok(());
        }
        let waiting: HashSet<&Arc<str>> = open.iter().map(|row| &row.org).chain(&troubled).collect();
        for (org, seq) in self.shared().store.deployments().await? {
            if !waiting.contains(&org) {
                self.only_for(&org, self.reconcile_org(&org, seq).await)?;
            }
        }
        Ok(())
    }

    async fn reconcile_org(&self, org: &Arc<str>, seq: i64) -> Result<(), EngineError> {
        let view = self.view_at(org, seq).await?;
        // What a version that waits has to rebuild is looked for once, when it is deployed.
        let live = view.deployment.live_jobs();
        for id in live.iter().copied().filter(|id| !is_held(&view.deployment, *id)) {
            self.reconcile_job(&view, id).await?;
        }
        self.cancel_retired(&view).await?;
        self.clean(org, &view).await
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
        let rolled_back = view.deployment.rolled_back_jobs();
        let retired = view.deployment.jobs.keys().copied().filter(|id| !live.contains(id));
        let (taken_back, replaced): (Vec<JobId>, Vec<JobId>) = retired.partition(|id| rolled_back.contains(id));
        self.cancel_tasks(&taken_back, true, ROLLED_BACK).await?;
        self.cancel_tasks(&replaced, false, REPLACED).await?;
        Ok(())
    }
}

pub(super) fn is_held(deployment: &Deployment, id: JobId) -> bool {
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
