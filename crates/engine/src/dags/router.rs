//! Routes events to the jobs that read their datasets, and looks for what was missed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::dag::data::{Partition, Position, Scope};
use tenure_core::dag::definition::ExecutionStrategy;
use tenure_core::dag::route::{self, Delivery, Event};
use tenure_core::dag::task::{Invalidated, TaskInput, Trigger};
use tenure_core::dag::{Deployment, JobId, VersionId, named_bits};
use tenure_store::dags::{DATA_PAGE, DataEvent, InvalidationRow, Routed, Unread};
use tokio::task::JoinSet;

use super::deploy::{REPLACED, ROLLED_BACK};
use super::tasks::{Making, input_of, version_of};
use super::{Dags, JobOf, View};
use crate::background::Pacer;
use crate::duty::Duty;
use crate::error::EngineError;

/// Events that are read at a time.
const EVENTS: usize = 500;
/// Events that are routed before all of them are marked.
const PASS_EVENTS: usize = 2_000;
/// Pages of a pass whose tasks are made at the same time.
const PAGES: usize = 2;
/// So many events at a look mean that events come fast. The next look then waits for more of them: what is written with few
/// events costs several times as much for each of their tasks.
const FAST: usize = 20;
const GATHER: Duration = Duration::from_millis(10);
/// How soon events are found that another control plane recorded.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// However often events come: a look goes through all partitions.
const RECONCILE_EVERY: Duration = Duration::from_secs(60);

impl Dags {
    /// One control plane routes; others would find the same events and make the same tasks.
    pub(super) async fn keep_routing(self) {
        let shared = Arc::clone(&self.inner.engine.shared);
        let mut pacer = Pacer::new(&shared);
        let mut reconcile_at = Instant::now() + RECONCILE_EVERY;
        let mut last_look = 0;
        loop {
            tokio::select! {
                more = pacer.pause(LOOK_EVERY) => if !more { return },
                () = self.inner.route.notified() => {}
            }
            if !shared.duties.is_mine(Duty::Router) {
                continue;
            }
            if let Err(error) = self.route_on(&mut last_look).await {
                tracing::debug!(error = %error, "events wait");
            }
            if Instant::now() >= reconcile_at {
                reconcile_at = Instant::now() + RECONCILE_EVERY;
                if let Err(error) = self.reconcile().await {
                    tracing::debug!(error = %error, "the reconciliation of datasets is put off");
                }
            }
        }
    }

    /// Routes everything that is there, and makes versions ready whose outputs are rebuilt. Several control planes may do
    /// so at once.
    pub async fn route_all(&self) -> Result<(), EngineError> {
        self.route_on(&mut 0).await
    }

    /// The same, after a look that found `last_look` events.
    async fn route_on(&self, last_look: &mut usize) -> Result<(), EngineError> {
        while self.pass(last_look).await? {}
        self.finish_rebuilds().await
    }

    /// Routes what there is, and what is recorded meanwhile, up to [`PASS_EVENTS`]. Returns whether there was anything.
    /// `last_look` is how many events were found when events were last looked for.
    ///
    /// While the tasks of one page are written, the next events are read. All are marked at the end, with one commit. A
    /// crash before that makes the same tasks again, which are there. The next pass begins with the oldest event: ids do not
    /// appear in their order.
    async fn pass(&self, last_look: &mut usize) -> Result<bool, EngineError> {
        let (mut after, mut seen, mut found) = (i64::MIN, 0, false);
        let mut pages: JoinSet<Vec<Part>> = JoinSet::new();
        let mut marks: BTreeMap<(Arc<str>, i64), Vec<Routed>> = BTreeMap::new();
        loop {
            let has_room = seen < PASS_EVENTS && pages.len() < PAGES;
            if has_room {
                if (FAST..EVENTS).contains(&std::mem::take(last_look)) {
                    tokio::time::sleep(GATHER).await;
                }
                let events = self.shared().store.unrouted(&self.troubled(), after, EVENTS).await?;
                *last_look = events.len();
                // An event that came with an invalidation has the same key. Its task must know of the invalidation, or what
                // is made from its outputs would not.
                let is_invalidated = self.route_invalidations().await?;
                if is_invalidated || !events.is_empty() {
                    found = true;
                    seen += events.len();
                    after = events.last().map_or(after, |last| last.id);
                    pages.spawn(self.clone().route_page(events));
                    continue;
                }
            }
            let done = tokio::select! {
                done = pages.join_next() => done,
                () = self.inner.route.notified(), if has_room && !pages.is_empty() => continue,
            };
            let Some(done) = done else { break };
            for Part { org, outcome } in done.map_err(|_| EngineError::Internal)? {
                let outcome =
                    outcome.map(|(seq, routed)| marks.entry((Arc::clone(&org), seq)).or_default().extend(routed));
                self.only_for(&org, outcome)?;
            }
        }
        for ((org, seq), routed) in marks {
            // Refused: what is deployed has changed. The events stay, and the next pass routes them by what is there then.
            let marked = self.shared().store.routed(&org, seq, &routed).await;
            self.only_for(&org, marked.map(drop).map_err(EngineError::from))?;
        }
        Ok(found)
    }

    /// Makes the tasks of events, those of each organisation by themselves.
    async fn route_page(self, events: Vec<DataEvent>) -> Vec<Part> {
        let mut orgs: BTreeMap<Arc<str>, Vec<DataEvent>> = BTreeMap::new();
        for event in events {
            orgs.entry(Arc::clone(&event.org)).or_default().push(event);
        }
        let troubled = self.troubled();
        let mut parts = Vec::new();
        for (org, events) in orgs.into_iter().filter(|(org, _)| !troubled.contains(org)) {
            let outcome = self.route_events(&org, &events).await;
            parts.push(Part { org, outcome });
        }
        parts
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

    /// Whether events or invalidations of an organisation wait to be routed. Says yes if there are too many of others to
    /// know.
    pub(super) async fn has_unrouted(&self, org: &str) -> Result<bool, EngineError> {
        let (store, troubled) = (&self.shared().store, self.troubled());
        let events = store.unrouted(&troubled, i64::MIN, EVENTS).await?;
        if events.len() == EVENTS || events.iter().any(|event| &*event.org == org) {
            return Ok(true);
        }
        let open = store.open_invalidations(&troubled, EVENTS).await?;
        Ok(open.len() == EVENTS || open.iter().any(|row| &*row.org == org))
    }

    /// Makes the tasks of events of one organisation. Returns what came of each event, by which deployment.
    async fn route_events(&self, org: &str, events: &[DataEvent]) -> Result<(i64, Vec<Routed>), EngineError> {
        let view = self.view(org).await?;
        let (mut deliveries, mut routed) = (Vec::new(), Vec::with_capacity(events.len()));
        for (at, event) in events.iter().enumerate() {
            let seen = seen(event);
            let why_not = match route::route(&view.deployment, &view.readers, &seen) {
                Err(why) => Some(why.as_str()),
                Ok(found) => {
                    let event_id: Arc<str> = uuid_of(event.id, &seen).into();
                    deliveries.extend(found.into_iter().map(|delivery| (at, Arc::clone(&event_id), delivery)));
                    None
                }
            };
            routed.push(Routed { event: event.id, why_not });
        }
        let jobs = self.templates(&view, deliveries.iter().map(|(_, _, delivery)| delivery.job)).await?;
        let making = deliveries.into_iter().filter_map(|(at, event_id, delivery)| {
            let event = events.get(at)?;
            let trigger = Trigger::Event { input_index: delivery.input, event_id };
            let cause = Cause { position: event.position.clone(), generation: event.generation, trigger };
            Some(jobs.get(&delivery.job)?.task(&view, delivery, cause))
        });
        self.make(making).await?;
        Ok((view.seq, routed))
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
        // A range of rows may be in any partition.
        let by_partition = match row.scope {
            Scope::RowRange { .. } => {
                route::partition_readers(&view.deployment, &view.readers, row.dataset, row.version)
            }
            Scope::Partition { .. } => Vec::new(),
        };
        let jobs = deliveries.iter().map(|delivery| delivery.job);
        let jobs: Vec<JobId> = jobs.chain(by_partition.iter().map(|reader| reader.job)).collect();
        let templates = self.templates(&view, jobs.iter().copied()).await?;
        let task = |template: &Template, delivery, position, generation| {
            let cause = Cause { position, generation, trigger: Trigger::Invalidation };
            let mut making = template.task(&view, delivery, cause);
            let (id, scope, reason) = (row.id, row.scope.clone(), Arc::clone(&row.reason));
            making.input.invalidation = Some(Invalidated { id, scope, reason });
            making
        };
        let making = deliveries.into_iter().filter_map(|delivery| {
            let template = templates.get(&delivery.job)?;
            Some(task(template, delivery, position.clone(), row.generation))
        });
        self.make(making).await?;
        for reader in by_partition {
            let Some(template) = templates.get(&reader.job) else { continue };
            let each = |position: Position, generation: i64| {
                let seen = Event { dataset: row.dataset, version: row.version, position: &position, generation };
                let key = route::dedupe_key(&seen).into();
                let delivery = Delivery { job: reader.job, input: reader.input, key, rebuild: reader.rebuild };
                task(template, delivery, position, generation)
            };
            self.make_unread(reader.job, row.version, each).await?;
        }
        let _ = self.shared().store.invalidation_routed(&row.org, view.seq, row.id, &jobs).await?;
        Ok(())
    }

    /// What tasks of these jobs have in common. A job that is not deployed any more has no tasks.
    async fn templates(
        &self,
        view: &View,
        ids: impl Iterator<Item = JobId>,
    ) -> Result<HashMap<JobId, Template>, EngineError> {
        let ids: Vec<JobId> = ids.collect::<BTreeSet<_>>().into_iter().collect();
        let jobs = self.jobs(&ids).await?.into_iter();
        Ok(jobs
            .filter_map(|job| Some((job.id, Template { input: input_of(view, job.id, Trigger::Rebuild)?, job })))
            .collect())
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
        let Some(template) = self.templates(view, std::iter::once(id)).await?.remove(&id) else { return Ok(()) };
        for (index, input) in job.inputs.iter().enumerate() {
            let Some(version) = view.deployment.reads(input) else { continue };
            let task = |position: Position, generation: i64| {
                let seen = Event { dataset: input.dataset, version, position: &position, generation };
                let delivery =
                    Delivery { job: id, input: index, key: route::dedupe_key(&seen).into(), rebuild: job.held };
                let trigger = if job.held {
                    Trigger::Rebuild
                } else {
                    Trigger::Event { input_index: index, event_id: uuid_of(0, &seen).into() }
                };
                template.task(view, delivery, Cause { position, generation, trigger })
            };
            let Some(generation) = self.shared().store.generations(&[version]).await?.pop() else { continue };
            if job.execution == Some(ExecutionStrategy::PerUpdate)
                && let Some(produced) = generation.cursor
            {
                let read = self.shared().store.job_state(id, &[version]).await?.cursors;
                if read.iter().all(|(_, cursor)| *cursor < produced) {
                    self.make([task(Position::Cursor(produced), generation.generation)]).await?;
                }
            }
            self.make_unread(id, version, task).await?;
        }
        Ok(())
    }

    /// Makes tasks for the partitions that a job has not read as they are now.
    async fn make_unread(
        &self,
        job: JobId,
        version: VersionId,
        task: impl Fn(Position, i64) -> Making + Send + Sync,
    ) -> Result<(), EngineError> {
        let mut after: Option<Arc<str>> = None;
        loop {
            let page = self.shared().store.unread(job, version, after.as_deref(), DATA_PAGE).await?;
            let is_last = page.len() < DATA_PAGE;
            after = page.last().map(|last| Arc::clone(&last.key));
            let making = page
                .into_iter()
                .map(|Unread { key, ends, generation }| task(Position::Partition(Partition { key, ends }), generation));
            self.make(making).await?;
            if is_last {
                return Ok(());
            }
        }
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

/// The events of one organisation in a page.
struct Part {
    org: Arc<str>,
    /// What came of each, and by which deployment.
    outcome: Result<(i64, Vec<Routed>), EngineError>,
}

/// What caused a task.
struct Cause {
    position: Position,
    generation: i64,
    trigger: Trigger,
}

/// A task of a job without what caused it.
struct Template {
    job: Arc<JobOf>,
    input: TaskInput,
}

impl Template {
    fn task(&self, view: &View, delivery: Delivery, cause: Cause) -> Making {
        let mut input = TaskInput { trigger: cause.trigger, ..self.input.clone() };
        if let Some(at) = input.inputs.iter_mut().find(|at| at.input_index == delivery.input) {
            at.position = Some(cause.position);
            at.generation = cause.generation;
        }
        if delivery.rebuild {
            let row = view.deployment.jobs.get(&delivery.job);
            input.rebuild = row.and_then(|row| version_of(view, row, delivery.job)).map(|(_, version)| version);
        }
        Making { job: Arc::clone(&self.job), key: delivery.key, input }
    }
}

/// An event as far as routing looks at it.
fn seen(event: &DataEvent) -> Event<'_> {
    let DataEvent { dataset, version, position, generation, .. } = event;
    Event { dataset: *dataset, version: *version, position, generation: *generation }
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
