//! Schedules: which are due, what is submitted for them, and what users change about them.
//!
//! The rules are those of `core/src/schedule/firing.rs`. One control plane has the duty; should two look at the same
//! schedule for a moment, the version of its row lets one of them decide. A slot is decided before its work is submitted,
//! and the work has a key of schedule and slot: whoever repeats a submission after a crash finds the work that is there.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream;
use tenure_core::command::cancel::{Cancel, Mode};
use tenure_core::command::run::CancelRun;
use tenure_core::command::{Reach, Rejection};
use tenure_core::limits;
use tenure_core::run::RunState;
use tenure_core::schedule::{Definition, ScheduleError, Step, Timing, Work};
use tenure_core::task::Place;
use tenure_core::time::Timestamp;
use tenure_store::{NewSchedule, Page, ScheduleFilter, ScheduleRow, ScheduleSetting, TemplateKind};

use crate::background::Pacer;
use crate::duty::Duty;
use crate::engine::Engine;
use crate::error::EngineError;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Not at once again, whatever is due.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(20);
const ROWS: usize = 256;
const AT_ONCE: usize = 16;
/// Steps of one schedule before others have their turn.
const STEPS: usize = 64;
/// How often a change is tried against the firings of the same schedule.
const TRIES: usize = 20;
/// A schedule that cannot be understood is looked at again after this time.
const DAMAGED_MS: i64 = 600_000;
const CANCEL_REASON: &str = "schedule_overlap";

/// Turns templates into work: an HTTP server knows how submissions are written.
#[async_trait]
pub trait Submitter: Send + Sync + fmt::Debug {
    /// Submits the work of a firing under its key. The same key again gives the same work, also if the template has
    /// changed since.
    async fn submit(&self, schedule: &ScheduleRow, template: &str, firing: &FiringKey) -> Result<Work, NotSubmitted>;
}

/// Names one firing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiringKey {
    /// Unique among the work of the tenant.
    pub key: String,
    pub slot: Timestamp,
}

impl FiringKey {
    pub fn of_slot(schedule: &str, slot: Timestamp) -> Self {
        Self { key: format!("schedule:{schedule}:{slot}"), slot }
    }

    /// A firing by hand. The same request again is the same firing.
    pub fn of_trigger(schedule: &str, request: &str, now: Timestamp) -> Self {
        Self { key: format!("schedule:{schedule}:trigger:{request}"), slot: now }
    }
}

/// Why a firing has no work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotSubmitted {
    /// The template is refused: trying again would not help.
    Refused(String),
    /// Not now.
    Unavailable(String),
}

/// What a user changes about a schedule; `None` stays.
#[derive(Debug, Clone, Default)]
pub struct ScheduleChange {
    pub definition: Option<Definition>,
    pub paused: Option<bool>,
    pub template: Option<(TemplateKind, String)>,
}

/// Why a schedule was not created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleRefusal {
    /// The tenant has one of this name.
    Exists,
    /// The tenant has as many as it may have.
    TooMany,
}

impl Engine {
    /// Fires schedules while this control plane has the duty.
    pub fn fire_schedules(&self, submitter: Arc<dyn Submitter>) {
        let engine = self.clone();
        self.tracker().spawn(async move { fire(&engine, &*submitter).await });
    }

    /// One look at what is due, whoever has the duty. Returns how long until the next one.
    pub async fn fire_due_schedules(&self, submitter: &dyn Submitter) -> Result<Duration, EngineError> {
        let due = self.shared.store.due_schedules(ROWS).await?;
        let now = due.now;
        let mut steps = stream::iter(due.rows).map(|row| self.advance(row, now, submitter)).buffer_unordered(AT_ONCE);
        // One that fails does not hold up the others.
        let mut failed = None;
        while let Some(step) = steps.next().await {
            failed = step.err().or(failed);
        }
        drop(steps);
        if let Some(error) = failed {
            return Err(error);
        }
        let ms = due.next_at.map_or(i64::MAX, |at| at.since(now));
        Ok(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
    }

    /// Does what is due for one schedule.
    async fn advance(
        &self,
        mut row: ScheduleRow,
        now: Timestamp,
        submitter: &dyn Submitter,
    ) -> Result<(), EngineError> {
        let timing = match timing(&row) {
            Ok(timing) => timing,
            Err(error) => {
                tracing::error!(schedule.id = row.id, %error, "a schedule cannot be understood: looking again later");
                let setting = ScheduleSetting { due_at: Some(now.plus(DAMAGED_MS)), ..row.setting.clone() };
                self.save(&row, &setting).await?;
                return Ok(());
            }
        };
        for _ in 0..STEPS {
            let last_ended = self.has_ended(row.setting.state.last).await?;
            let mut setting = row.setting.clone();
            let step = timing.step(&mut setting.state, now, setting.paused, last_ended);
            if let (Step::CancelLast, Some(last)) = (step, setting.state.last) {
                self.cancel_work(last).await?;
                setting.state.canceled = true;
            }
            setting.due_at = timing.look_at(&setting.state, now, setting.paused);
            if setting != row.setting {
                let Some(saved) = self.save(&row, &setting).await? else { return Ok(()) };
                row = saved;
            }
            match step {
                Step::Nothing => return Ok(()),
                Step::CancelLast => {}
                Step::Fire(slot) => match self.fire(&row, &timing, slot, submitter).await? {
                    Some(saved) => row = saved,
                    None => return Ok(()),
                },
            }
        }
        Ok(())
    }

    /// Submits the work of a slot that is decided, and records it. `None` if it is to be tried later, or if somebody else
    /// changed the schedule meanwhile.
    async fn fire(
        &self,
        row: &ScheduleRow,
        timing: &Timing,
        slot: Timestamp,
        submitter: &dyn Submitter,
    ) -> Result<Option<ScheduleRow>, EngineError> {
        let Some(template) = self.shared.store.schedule_template(&row.id).await? else { return Ok(None) };
        let submitted = submitter.submit(row, &template, &FiringKey::of_slot(&row.id, slot)).await;
        let now = self.shared.store.now().await?;
        let mut setting = row.setting.clone();
        let outcome = match submitted {
            Err(NotSubmitted::Unavailable(reason)) => {
                tracing::warn!(schedule.id = row.id, schedule.slot = %slot, reason, "cannot fire a schedule yet");
                setting.due_at = Some(now.plus(limits::SCHEDULE_RECHECK_MS));
                self.save(row, &setting).await?;
                return Ok(None);
            }
            Ok(work) => Ok(work),
            Err(NotSubmitted::Refused(reason)) => {
                tracing::warn!(schedule.id = row.id, schedule.slot = %slot, reason, "the work of a schedule was refused");
                Err(limits::cut(&reason, limits::MESSAGE_BYTES).to_owned())
            }
        };
        let label = if outcome.is_ok() { "fired" } else { "refused" };
        setting.state.fired(slot, now, outcome);
        setting.due_at = timing.look_at(&setting.state, now, setting.paused);
        let saved = self.save(row, &setting).await?;
        if saved.is_some() {
            metrics::counter!("tenure_schedule_firings_total", "outcome" => label).increment(1);
        }
        Ok(saved)
    }

    async fn save(&self, row: &ScheduleRow, setting: &ScheduleSetting) -> Result<Option<ScheduleRow>, EngineError> {
        Ok(self.shared.store.save_schedule(&row.id, row.version, setting, None, false).await?)
    }

    /// Work that is not there any more has ended.
    async fn has_ended(&self, work: Option<Work>) -> Result<bool, EngineError> {
        Ok(match work {
            None => true,
            Some(Work::Task(id)) => {
                let view = self.shared.store.task(id, &Reach::All).await?;
                view.is_none_or(|view| matches!(view.place, Place::Finished(_)))
            }
            Some(Work::Run(id)) => {
                let view = self.shared.store.run(id, &Reach::All).await?;
                view.is_none_or(|view| !matches!(view.run.state(), RunState::Running | RunState::Canceling))
            }
        })
    }

    /// What has ended meanwhile needs no cancel.
    async fn cancel_work(&self, work: Work) -> Result<(), EngineError> {
        let (reason, mode, reach) = (CANCEL_REASON.into(), Mode::Cooperative, Reach::All);
        let refused = match work {
            Work::Task(task) => self.cancel(Cancel { task, reason, mode, reach }).await?.err(),
            Work::Run(run) => self.cancel_run(CancelRun { run, reason, mode, reach }).await?.err(),
        };
        match refused {
            None
            | Some(
                Rejection::AlreadyTerminal { .. }
                | Rejection::RunAlreadyTerminal { .. }
                | Rejection::NotFound
                | Rejection::RunNotFound,
            ) => Ok(()),
            Some(rejection) => {
                tracing::error!(reason = ?rejection, "the work of a schedule cannot be canceled");
                Err(EngineError::Internal)
            }
        }
    }

    /// Creates a schedule. Its first slot is counted from now.
    pub async fn create_schedule(
        &self,
        mut new: NewSchedule,
    ) -> Result<Result<ScheduleRow, ScheduleRefusal>, EngineError> {
        let now = self.now().await?;
        restart(&mut new.setting, &new.id, now);
        if let Some(row) = self.shared.store.create_schedule(&new).await? {
            self.shared.schedules_set.notify_one();
            return Ok(Ok(row));
        }
        let taken = self.shared.store.schedule_named(&new.tenant, &new.name).await?;
        Ok(Err(if taken.is_some() { ScheduleRefusal::Exists } else { ScheduleRefusal::TooMany }))
    }

    /// Applies a change to a schedule as it was read. `None` if it has changed since: read it again.
    pub async fn change_schedule(
        &self,
        row: &ScheduleRow,
        change: &ScheduleChange,
    ) -> Result<Option<ScheduleRow>, EngineError> {
        let now = self.now().await?;
        let mut setting = row.setting.clone();
        let resumed = setting.paused && change.paused == Some(false);
        setting.paused = change.paused.unwrap_or(setting.paused);
        if setting.paused {
            setting.state.pause(now);
        }
        let moved = change.definition.as_ref().is_some_and(|new| *new != setting.definition);
        setting.definition = change.definition.clone().unwrap_or(setting.definition);
        let mut template = None;
        if let Some((kind, text)) = &change.template {
            (setting.kind, template) = (*kind, Some(text.as_str()));
        }
        if moved || resumed {
            restart(&mut setting, &row.id, now);
        } else if let Ok(timing) = setting.definition.timing(number(&row.id)) {
            setting.due_at = timing.look_at(&setting.state, now, setting.paused);
        }
        let saved = self.shared.store.save_schedule(&row.id, row.version, &setting, template, true).await?;
        self.shared.schedules_set.notify_one();
        Ok(saved)
    }

    /// Records work that was submitted by hand.
    pub async fn schedule_triggered(&self, id: &str, work: Work) -> Result<(), EngineError> {
        for _ in 0..TRIES {
            let Some(row) = self.shared.store.schedule(id).await? else { return Ok(()) };
            let now = self.now().await?;
            let mut setting = row.setting.clone();
            setting.state.triggered(now, work);
            if self.save(&row, &setting).await?.is_some() {
                metrics::counter!("tenure_schedule_firings_total", "outcome" => "triggered").increment(1);
                return Ok(());
            }
        }
        Err(EngineError::busy())
    }

    pub async fn schedule(&self, id: &str) -> Result<Option<ScheduleRow>, EngineError> {
        Ok(self.shared.store.schedule(id).await?)
    }

    pub async fn schedule_named(&self, tenant: &str, name: &str) -> Result<Option<ScheduleRow>, EngineError> {
        Ok(self.shared.store.schedule_named(tenant, name).await?)
    }

    pub async fn schedule_template(&self, id: &str) -> Result<Option<String>, EngineError> {
        Ok(self.shared.store.schedule_template(id).await?)
    }

    pub async fn schedules(&self, filter: &ScheduleFilter) -> Result<Page<ScheduleRow>, EngineError> {
        Ok(self.shared.store.schedules(filter).await?)
    }

    /// Deletes a schedule. Work that it has submitted goes on.
    pub async fn delete_schedule(&self, id: &str) -> Result<bool, EngineError> {
        Ok(self.shared.store.delete_schedule(id).await?)
    }
}

async fn fire(engine: &Engine, submitter: &dyn Submitter) {
    let shared = &engine.shared;
    let at_least_every = shared.config.look_every.unwrap_or(LOOK_EVERY);
    let mut pacer = Pacer::new(shared);
    let mut sleep = Duration::ZERO;
    loop {
        tokio::select! {
            more = pacer.turn(Duty::Schedules, sleep) => if !more { return },
            () = shared.schedules_set.notified() => {}
        }
        if !shared.duties.is_mine(Duty::Schedules) {
            continue;
        }
        sleep = match engine.fire_due_schedules(submitter).await {
            Ok(next) => next.clamp(LOOK_AT_MOST_EVERY, at_least_every),
            Err(EngineError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot fire schedules");
                if !pacer.pause(LOOK_EVERY).await {
                    return;
                }
                at_least_every
            }
        };
    }
}

/// Counts slots from now on.
fn restart(setting: &mut ScheduleSetting, id: &str, now: Timestamp) {
    match setting.definition.timing(number(id)) {
        Ok(timing) => {
            setting.state.next = timing.upcoming(now, 1).first().copied();
            setting.due_at = timing.look_at(&setting.state, now, setting.paused);
        }
        Err(error) => tracing::error!(schedule.id = id, %error, "a schedule cannot be understood"),
    }
}

fn timing(row: &ScheduleRow) -> Result<Timing, ScheduleError> {
    row.setting.definition.timing(number(&row.id))
}

/// The id as a number, for the jitter.
fn number(id: &str) -> u128 {
    u128::from_str_radix(&id.replace('-', ""), 16).unwrap_or(0)
}
