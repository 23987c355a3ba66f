//! Users, workers and a control plane that routes, rebuilds, reconciles and may stop between any two of its transactions.
//!
//! Whoever reads what is deployed and acts on it later acts on what it has read: so a control plane that stood still, or
//! that another one has replaced, is part of the model. Leases are not: `model` has them. A holder may be lost, and then
//! another one works on the task or the late report counts.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use stateright::{Model, Property};
use tenure_core::dag::data::{NewInvalidation, Scope};
use tenure_core::dag::deployment::{Switch, VersionState};
use tenure_core::dag::route::Unrouted;
use tenure_core::dag::{Deployment, InvalidationId, JobId};

use super::mutant::Mutant;
use super::plane::{DAG, Doc, EventKey, Rows, TaskKey, TaskState, chain};
use super::rules::{self, Example};

#[derive(Debug, Clone)]
pub struct Config {
    pub execution: &'static str,
    /// Where `import` writes.
    pub fires: &'static [&'static str],
    /// It has run, and so has all that follows from it, before anything else happens.
    pub has_run: bool,
    /// A second version is deployed, which becomes active by itself or, with `manual`, by hand.
    pub deploys: bool,
    pub manual: bool,
    /// Cutovers and rollbacks by hand.
    pub switches: u8,
    /// Invalidations of the first position. Each is sent any number of times.
    pub invalidations: u8,
    /// Tasks whose holder is lost.
    pub losses: u8,
    /// Holders tell of what they have written before they end.
    pub tells: bool,
    /// Somebody looks for what was missed.
    pub reconciles: bool,
    /// The control plane stops in the middle of what it does.
    pub crashes: bool,
    /// Anything can happen between reading what is deployed and acting on it.
    pub stale: bool,
    /// Two control planes believe that they route: one looks whether a rebuild is done, while the other one routes.
    pub handover: bool,
    pub examples: &'static [Example],
    pub mutant: Mutant,
}

/// What the router has read and done.
#[derive(Debug, Clone, PartialEq)]
enum Router {
    Idle,
    /// Events and invalidations were read.
    Invalidations {
        events: Vec<EventKey>,
        open: Vec<InvalidationId>,
        doc: Arc<Doc>,
    },
    InvalidationsMade {
        events: Vec<EventKey>,
        open: Vec<InvalidationId>,
        seq: u8,
    },
    Events {
        events: Vec<EventKey>,
        doc: Arc<Doc>,
    },
    EventsMade {
        routed: Vec<(EventKey, Option<Unrouted>)>,
        seq: u8,
    },
}

#[derive(Debug, Clone)]
pub struct Inner {
    pub rows: Rows,
    router: Router,
    reconciler: Option<Arc<Doc>>,
    /// The tasks of a rebuild were made, by this deployment.
    rebuilder: Option<u8>,
    counted: Option<Counted>,
    /// Tasks that are to be canceled after a switch.
    cancels: Vec<(JobId, bool)>,
    deployed: bool,
    switches: u8,
    losses: u8,
    /// Invalidations that were sent.
    pub asked: u8,
    pub audit: Audit,
}

/// The tasks of a rebuild have all succeeded.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Counted {
    /// By this deployment.
    seq: u8,
    total: u64,
    /// Since then there was a moment at which all events were routed.
    routed: bool,
}

/// What an observer of every step notes.
#[derive(Debug, Clone, Default)]
pub struct Audit {
    /// A cursor moved back.
    pub back: bool,
    /// A task of a version that was not active was granted, and it rebuilt nothing.
    pub early: bool,
    /// A version became active without what was there when it was deployed.
    pub unready: bool,
    /// Events of versions that were old when they were recorded.
    pub old: BTreeSet<EventKey>,
    /// What `import` had written when the second version was deployed.
    pub before: BTreeSet<Arc<str>>,
    /// A version became active again after another one.
    pub returned: bool,
    /// The report of a holder that had been lost was accepted.
    pub late: bool,
}

#[derive(Debug, Clone)]
pub struct State {
    pub inner: Arc<Inner>,
    digest: u64,
}

impl State {
    fn new(inner: Inner) -> Self {
        let mut hasher = DefaultHasher::new();
        format!("{inner:?}").hash(&mut hasher);
        Self { inner: Arc::new(inner), digest: hasher.finish() }
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Claim(TaskKey),
    /// The holder tells of what it has written and goes on.
    Tell(TaskKey),
    Complete(TaskKey),
    Lose(TaskKey),
    /// The router reads what there is to route.
    Look,
    /// It does the next step.
    Route,
    Crash,
    /// The reconciler reads what is deployed, or acts on it.
    Reconcile,
    /// A rebuild begins, is noted, or is found to be done.
    Rebuild,
    Cancel,
    Deploy,
    CutOver(i64),
    RollBack,
    Invalidate(u8),
}

#[derive(Debug)]
pub struct System(pub Config);

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Config { execution, fires, mutant, .. } = self.0;
        let mut first = State::new(Inner {
            rows: Rows::new(&chain(execution, 0), fires, mutant),
            router: Router::Idle,
            reconciler: None,
            rebuilder: None,
            counted: None,
            cancels: Vec::new(),
            deployed: false,
            switches: 0,
            losses: 0,
            asked: 0,
            audit: Audit::default(),
        });
        if self.0.has_run {
            while let Some(next) = self.work(&first) {
                first = next;
            }
        }
        vec![first]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (config, inner) = (&self.0, &*state.inner);
        for (key, task) in &inner.rows.tasks {
            if self.may_claim(inner, key) {
                actions.push(Action::Claim(key.clone()));
            }
            if task.state == TaskState::Running {
                if config.tells {
                    actions.push(Action::Tell(key.clone()));
                }
                if inner.losses < config.losses {
                    actions.push(Action::Lose(key.clone()));
                }
            }
            if matches!(task.state, TaskState::Running | TaskState::Lost) {
                actions.push(Action::Complete(key.clone()));
            }
        }
        if inner.router != Router::Idle {
            actions.push(Action::Route);
            if config.crashes {
                actions.push(Action::Crash);
            }
        } else if !inner.rows.unrouted().is_empty() || !inner.rows.open().is_empty() {
            actions.push(Action::Look);
        }
        if config.reconciles
            && config.mutant != Mutant::NoReconciler
            && (inner.reconciler.is_some() || inner.rows.open().is_empty())
        {
            actions.push(Action::Reconcile);
        }
        if inner.rows.doc.deployment.staged(DAG).is_some_and(|(_, version)| version.state == VersionState::Staging) {
            actions.push(Action::Rebuild);
        }
        if !inner.cancels.is_empty() {
            actions.push(Action::Cancel);
        }
        if config.deploys && !inner.deployed {
            actions.push(Action::Deploy);
        }
        if inner.deployed && inner.switches < config.switches {
            actions.extend([1, 2].map(Action::CutOver));
            actions.push(Action::RollBack);
        }
        actions.extend((0..config.invalidations).filter(|n| *n <= inner.asked).map(Action::Invalidate));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = (*last.inner).clone();
        self.step(&mut next, action)?;
        next.observe(&last.inner);
        let next = State::new(next);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules::all(self.0.examples)
    }
}

impl System {
    /// What workers and the router do next, if they have anything to do.
    fn work(&self, state: &State) -> Option<State> {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        let own = actions
            .into_iter()
            .filter(|action| matches!(action, Action::Claim(_) | Action::Complete(_) | Action::Look | Action::Route));
        own.filter_map(|action| self.next_state(state, action)).next()
    }

    fn may_claim(&self, inner: &Inner, key: &TaskKey) -> bool {
        let task = &inner.rows.tasks[key];
        task.waits() && (task.input.rebuild.is_some() || !inner.rows.held.contains(&key.0))
    }

    fn step(&self, inner: &mut Inner, action: Action) -> Option<()> {
        let Config { execution, manual, mutant, .. } = self.0;
        match action {
            Action::Claim(key) => {
                let task = inner.rows.tasks.get_mut(&key)?;
                let rebuilds = task.input.rebuild.is_some();
                task.state = TaskState::Running;
                inner.audit.early |= !rebuilds && !inner.rows.doc.active().contains(&key.0);
            }
            Action::Tell(key) => {
                let report = inner.rows.told(&key, false, mutant);
                inner.rows.commit(&report, mutant);
            }
            Action::Complete(key) => {
                let report = inner.rows.told(&key, true, mutant);
                inner.rows.commit(&report, mutant);
                let task = inner.rows.tasks.get_mut(&key)?;
                inner.audit.late |= task.state == TaskState::Lost;
                task.state = TaskState::Done;
            }
            Action::Lose(key) => {
                inner.rows.tasks.get_mut(&key)?.state = TaskState::Lost;
                inner.losses += 1;
            }
            Action::Look => {
                inner.look();
                self.act(inner);
            }
            Action::Route => {
                inner.route(mutant);
                self.act(inner);
            }
            Action::Crash => {
                (inner.router, inner.reconciler, inner.rebuilder) = (Router::Idle, None, None);
                inner.counted = None;
                inner.cancels.clear();
            }
            Action::Reconcile => match inner.reconciler.take() {
                None if self.0.stale => inner.reconciler = Some(Arc::clone(&inner.rows.doc)),
                doc => inner.rows.reconcile(&doc.unwrap_or_else(|| Arc::clone(&inner.rows.doc)), mutant),
            },
            Action::Rebuild => self.rebuild(inner)?,
            Action::Cancel => {
                let cancels = std::mem::take(&mut inner.cancels);
                inner.rows.cancel(&cancels, mutant);
            }
            Action::Deploy => {
                let (_, version) = inner.rows.imported();
                let there =
                    inner.rows.partitions.iter().filter(|((of, _), row)| *of == version && row.made_from.is_some());
                inner.audit.before = there.map(|((_, key), _)| Arc::clone(key)).collect();
                let retired = inner.rows.deploy(&chain(execution, 1), manual, mutant);
                inner.cancels.extend(retired.into_iter().map(|job| (job, false)));
                inner.deployed = true;
            }
            Action::CutOver(number) => inner.switch(|deployment| deployment.cut_over(DAG, number).ok(), mutant)?,
            Action::RollBack => inner.switch(|deployment| deployment.roll_back(DAG).ok(), mutant)?,
            Action::Invalidate(n) => {
                let (dataset, version) = inner.rows.imported();
                let scope = match self.0.execution {
                    "PerPartition" => Scope::Partition { partition_key: self.0.fires[0].into() },
                    _ => Scope::RowRange { row_filter: "{\"n\":{\"gte\":1}}".into() },
                };
                let id = InvalidationId::from_u128(1 + u128::from(n));
                let new = NewInvalidation { id, dataset, version, scope, reason: "reorg".into() };
                // The model ends also with a system that counts every repeat.
                let again = inner.rows.invalidations.values().any(|row| row.generation > 1);
                if !again {
                    inner.rows.invalidate(&new, mutant);
                }
                inner.asked = inner.asked.max(n + 1);
            }
        }
        Some(())
    }

    /// What was read is acted on at once, unless it can become stale.
    fn act(&self, inner: &mut Inner) {
        if !self.0.stale && matches!(inner.router, Router::Invalidations { .. } | Router::Events { .. }) {
            inner.route(self.0.mutant);
        }
    }

    /// Looks once at what a staged version has to rebuild, and makes the version ready when that is done.
    fn rebuild(&self, inner: &mut Inner) -> Option<()> {
        let Config { manual, mutant, handover, .. } = self.0;
        let doc = Arc::clone(&inner.rows.doc);
        let (number, version) = doc.deployment.staged(DAG)?;
        let (id, rebuilding) = (version.id, version.rebuilding);
        if let Some(seq) = inner.rebuilder.take() {
            if seq == inner.rows.doc.seq {
                inner.rows.note_rebuilding(number);
            }
            return Some(());
        }
        let all_routed = inner.rows.open().is_empty() && inner.rows.unrouted().is_empty();
        if !handover && !all_routed {
            return None;
        }
        if !rebuilding {
            for job in version.jobs.values().filter(|job| doc.deployment.jobs[*job].held) {
                inner.rows.reconcile_job(&doc, *job, mutant);
            }
            inner.rebuilder = Some(doc.seq);
            return Some(());
        }
        let (total, done) = inner.rows.rebuild_counts(id);
        if handover {
            match inner.counted.take() {
                None if done < total => return None,
                None => {
                    inner.counted = Some(Counted { seq: doc.seq, total, routed: false });
                    return Some(());
                }
                Some(counted) if !counted.routed => {
                    inner.counted = all_routed.then_some(Counted { routed: true, ..counted });
                    return Some(());
                }
                // Counted once more: nothing has come of the events.
                Some(counted) if counted.seq != doc.seq => return Some(()),
                Some(counted) if (total, done) != (counted.total, counted.total) && mutant != Mutant::CountedOnce => {
                    return Some(());
                }
                Some(_) => {}
            }
        } else if done < total && mutant != Mutant::ReadyAtOnce {
            return None;
        }
        inner.rows.make_ready(number, total);
        if !manual {
            inner.switch(|deployment| deployment.cut_over(DAG, number).ok(), mutant)?;
        }
        Some(())
    }

    /// Nothing is left to do for the control plane.
    pub fn is_settled(&self, state: &State) -> bool {
        let Inner { rows, router, reconciler, rebuilder, counted, cancels, .. } = &*state.inner;
        let looks = reconciler.is_some() || rebuilder.is_some() || counted.is_some();
        let idle = *router == Router::Idle && !looks && cancels.is_empty();
        let staged = rows.doc.deployment.staged(DAG).filter(|(_, version)| version.state == VersionState::Staging);
        let waits = staged.is_some_and(|(_, version)| {
            let (total, done) = rows.rebuild_counts(version.id);
            version.rebuilding && done < total
        });
        if !idle || !rows.unrouted().is_empty() || !rows.open().is_empty() || staged.is_some() && !waits {
            return false;
        }
        if !self.0.reconciles || self.0.mutant == Mutant::NoReconciler {
            return true;
        }
        let mut after = rows.clone();
        after.reconcile(&rows.doc, self.0.mutant);
        after.tasks == rows.tasks
    }

    /// Nothing is left to do for anybody.
    pub fn is_quiet(&self, state: &State) -> bool {
        let tasks = &state.inner.rows.tasks;
        let busy = |key: &TaskKey| {
            matches!(tasks[key].state, TaskState::Running | TaskState::Lost) || self.may_claim(&state.inner, key)
        };
        !tasks.keys().any(busy) && self.is_settled(state)
    }
}

impl Inner {
    fn look(&mut self) {
        let (events, open) = (self.rows.unrouted(), self.rows.open());
        self.router = Self::next(&self.rows, events, open);
    }

    /// Invalidations come first: the task of changed data is told what has changed.
    fn next(rows: &Rows, events: Vec<EventKey>, open: Vec<InvalidationId>) -> Router {
        let doc = Arc::clone(&rows.doc);
        match (open.is_empty(), events.is_empty()) {
            (false, _) => Router::Invalidations { events, open, doc },
            (true, false) => Router::Events { events, doc },
            (true, true) => Router::Idle,
        }
    }

    fn route(&mut self, mutant: Mutant) {
        self.router = match std::mem::replace(&mut self.router, Router::Idle) {
            Router::Idle => Router::Idle,
            Router::Invalidations { events, open, doc } => {
                open.iter().for_each(|id| self.rows.route_invalidation(&doc, *id, mutant));
                Router::InvalidationsMade { events, open, seq: doc.seq }
            }
            Router::InvalidationsMade { events, open, seq } => {
                if seq == self.rows.doc.seq {
                    for id in open {
                        self.rows.invalidations.entry(id).and_modify(|row| row.routed = true);
                    }
                }
                Self::next(&self.rows, events, self.rows.open())
            }
            Router::Events { events, doc } if mutant == Mutant::MarkedFirst => {
                self.mark(events.iter().map(|key| (key.clone(), None)).collect());
                Router::EventsMade { routed: events.into_iter().map(|key| (key, None)).collect(), seq: doc.seq }
            }
            Router::Events { events, doc } => {
                let routed = events.into_iter().map(|key| (key.clone(), self.rows.route(&doc, &key, mutant)));
                Router::EventsMade { routed: routed.collect(), seq: doc.seq }
            }
            Router::EventsMade { routed, .. } if mutant == Mutant::MarkedFirst => {
                let doc = Arc::clone(&self.rows.doc);
                for (key, _) in routed {
                    self.rows.route(&doc, &key, mutant);
                }
                Router::Idle
            }
            Router::EventsMade { routed, seq } => {
                if seq == self.rows.doc.seq {
                    self.mark(routed);
                }
                Router::Idle
            }
        };
    }

    fn mark(&mut self, routed: Vec<(EventKey, Option<Unrouted>)>) {
        for (key, why_not) in routed {
            let looked_at = self.rows.events.entry(key).or_default();
            looked_at.get_or_insert(why_not);
        }
    }

    fn switch(&mut self, change: impl FnOnce(&mut Deployment) -> Option<Switch>, mutant: Mutant) -> Option<()> {
        let mut deployment = self.rows.doc.deployment.clone();
        let switch = change(&mut deployment)?;
        if deployment == self.rows.doc.deployment {
            return None;
        }
        let first = switch.active == Some(2)
            && self.rows.doc.deployment.version(DAG, 2).is_some_and(|it| it.state == VersionState::Ready);
        self.audit.returned |= !first;
        let cancels = self.rows.switched(deployment, switch, mutant);
        self.cancels.extend(cancels);
        self.switches += 1;
        if first {
            let decode = self.rows.doc.deployment.active(DAG)?.jobs["decode"];
            let version = self.rows.doc.deployment.jobs[&decode].outputs[0].version;
            let made = |key: &Arc<str>| {
                self.rows.partitions.get(&(version, Arc::clone(key))).is_some_and(|it| it.made_from.is_some())
            };
            let id = self.rows.doc.deployment.active(DAG)?.id;
            let (total, done) = self.rows.rebuild_counts(id);
            self.audit.unready |= done < total || !self.audit.before.iter().all(made);
        }
        Some(())
    }

    fn observe(&mut self, before: &Self) {
        let highest = |rows: &Rows| rows.versions.iter().map(|(version, it)| (*version, it.1)).collect::<Vec<_>>();
        let produced = highest(&before.rows).into_iter().any(|(version, was)| self.rows.versions[&version].1 < was);
        let read = before.rows.read_cursors.iter().any(|(edge, was)| self.rows.read_cursors[edge] < *was);
        self.audit.back |= produced || read;
        let doc = &self.rows.doc;
        let new = self.rows.events.keys().filter(|key| !before.rows.events.contains_key(*key));
        let old: Vec<EventKey> = new.filter(|(dataset, version, ..)| doc.is_old(*dataset, *version)).cloned().collect();
        self.audit.old.extend(old);
        // A version that is at work again is read again.
        self.audit.old.retain(|(dataset, version, ..)| doc.is_old(*dataset, *version));
    }
}
