//! Sources that fire by themselves: cron and `always_on`.
//!
//! One control plane has the duty. The task of a slot is created before the slot is marked as fired. Its key consists of job
//! and slot, so a repeat after a crash, or by another control plane, creates no second task. Slots are stored by the names of
//! DAG and job: a new version of the DAG continues where the previous one stopped.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::dag::definition::Source;
use tenure_core::dag::task::Trigger;
use tenure_core::schedule::{CatchUp, Jitter, Schedule};
use tenure_core::time::Timestamp;
use tenure_store::dags::CronSlot;

use super::tasks::{Making, input_of};
use super::webhooks::sources;
use super::{Dags, JobOf, View};
use crate::background::Pacer;
use crate::duty::Duty;
use crate::error::EngineError;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often it is made sure that nothing is missing.
const CHECK_EVERY_MS: i64 = 60_000;

/// The sources of an organisation that fire by themselves, as they were when they were last looked at.
struct Firing {
    seq: i64,
    checked_at: Timestamp,
    crons: Vec<Cron>,
}

struct Cron {
    job: Arc<JobOf>,
    schedule: Schedule,
    catch_up: CatchUp,
    slot: CronSlot,
}

impl Cron {
    fn of(job: &Arc<JobOf>) -> Option<Self> {
        let Some(Source::Cron { schedule, timezone, catch_up }) = job.definition.source() else { return None };
        let text = format!("{schedule} {timezone}");
        let parsed = match Schedule::parse(schedule, timezone) {
            Ok(parsed) => parsed,
            // It was checked when it was deployed; a zone may have left the database since.
            Err(error) => {
                tracing::error!(dag.name = %job.dag, job.name = %job.definition.name, %error, "a cron source cannot fire");
                return None;
            }
        };
        let (dag, name) = (Arc::clone(&job.dag), Arc::clone(&job.definition.name));
        let slot = CronSlot { dag, job: name, schedule: text.into(), next_ms: i64::MAX };
        Some(Self { job: Arc::clone(job), schedule: parsed, catch_up: *catch_up, slot })
    }
}

fn millis(slot: Option<Timestamp>) -> i64 {
    slot.map_or(i64::MAX, Timestamp::as_millis)
}

impl Dags {
    pub(super) async fn keep_firing(self) {
        let shared = Arc::clone(&self.inner.engine.shared);
        let mut pacer = Pacer::new(&shared);
        let mut known = HashMap::new();
        loop {
            tokio::select! {
                more = pacer.pause(LOOK_EVERY) => if !more { return },
                () = self.inner.fire.notified() => {}
            }
            if !shared.duties.is_mine(Duty::Router) {
                // Another control plane fires meanwhile.
                known.clear();
                continue;
            }
            if let Err(error) = self.fire_all(&mut known).await {
                tracing::debug!(error = %error, "sources wait");
            }
        }
    }

    /// Fires what is due in all organisations once, without checking the duty.
    pub async fn fire_due(&self) -> Result<(), EngineError> {
        self.fire_all(&mut HashMap::new()).await
    }

    async fn fire_all(&self, known: &mut HashMap<Arc<str>, Firing>) -> Result<(), EngineError> {
        let (troubled, deployments) = (self.troubled(), self.shared().store.deployments().await?);
        if deployments.is_empty() {
            return Ok(());
        }
        let now = self.now().await?;
        for (org, seq) in deployments.iter().filter(|(org, _)| !troubled.contains(org)) {
            self.only_for(org, self.fire_of(org, *seq, now, known).await)?;
        }
        Ok(())
    }

    async fn fire_of(
        &self,
        org: &Arc<str>,
        seq: i64,
        now: Timestamp,
        known: &mut HashMap<Arc<str>, Firing>,
    ) -> Result<(), EngineError> {
        let due = |firing: &Firing| firing.crons.iter().any(|cron| cron.slot.next_ms <= now.as_millis());
        let fresh = |firing: &Firing| firing.seq == seq && now.since(firing.checked_at) < CHECK_EVERY_MS;
        match known.get(org) {
            Some(firing) if fresh(firing) && !due(firing) => return Ok(()),
            Some(firing) if fresh(firing) => {}
            _ => {
                let view = self.view_at(org, seq).await?;
                match self.look_at_sources(org, &view, now).await? {
                    Some(firing) => known.insert(Arc::clone(org), firing),
                    None => return Ok(()),
                };
            }
        }
        let Some(firing) = known.get_mut(org) else { return Ok(()) };
        let view = self.view_at(org, firing.seq).await?;
        if view.seq != firing.seq || !self.fire_slots(org, &view, now, &mut firing.crons).await? {
            known.remove(org);
        }
        Ok(())
    }

    /// Finds the sources of active versions and where they are. `None` if what is deployed has changed.
    async fn look_at_sources(
        &self,
        org: &Arc<str>,
        view: &View,
        now: Timestamp,
    ) -> Result<Option<Firing>, EngineError> {
        let active = view.deployment.dags.keys().filter_map(|dag| view.deployment.active(dag));
        let jobs = sources(&view.deployment, active.flat_map(|version| version.jobs.values().copied()));
        let jobs = self.jobs(&jobs).await?;
        self.keep_always_on(view, &jobs).await?;
        let mut crons: Vec<Cron> = jobs.iter().filter_map(Cron::of).collect();
        let rows = self.shared().store.cron_slots(org).await?;
        let named = |slot: &CronSlot| (Arc::clone(&slot.dag), Arc::clone(&slot.job));
        let stored: HashMap<_, &CronSlot> = rows.iter().map(|row| (named(row), row)).collect();
        let mut new = Vec::new();
        for cron in &mut crons {
            match stored.get(&named(&cron.slot)).filter(|row| row.schedule == cron.slot.schedule) {
                Some(row) => cron.slot.next_ms = row.next_ms,
                None => {
                    // Slots count from when it became active.
                    cron.slot.next_ms = millis(cron.schedule.next_after(now));
                    new.push(cron.slot.clone());
                }
            }
        }
        let kept: HashSet<_> = crons.iter().map(|cron| named(&cron.slot)).collect();
        let gone: Vec<_> = rows.iter().map(named).filter(|row| !kept.contains(row)).collect();
        if (!new.is_empty() || !gone.is_empty())
            && self.shared().store.save_cron_slots(org, view.seq, &new, &gone).await?.is_err()
        {
            return Ok(None);
        }
        Ok(Some(Firing { seq: view.seq, checked_at: now, crons }))
    }

    /// Makes the tasks of slots that are due, and then marks the slots. Returns false if what is deployed has changed:
    /// the next look begins anew, and a version that took over fires what was not marked.
    async fn fire_slots(
        &self,
        org: &Arc<str>,
        view: &View,
        now: Timestamp,
        crons: &mut [Cron],
    ) -> Result<bool, EngineError> {
        let (mut making, mut moved) = (Vec::new(), Vec::new());
        for cron in crons.iter().filter(|cron| cron.slot.next_ms <= now.as_millis()) {
            let next = Timestamp::from_millis(cron.slot.next_ms);
            let due = cron.schedule.due(next, now, cron.catch_up, Jitter::NONE);
            if let Some((first, last)) = due.missed {
                tracing::warn!(
                    dag.name = %cron.slot.dag, job.name = %cron.slot.job, first = %first, last = %last,
                    "slots of a cron source were missed"
                );
            }
            for scheduled_at in due.fire {
                let key = format!("cron:{}:{scheduled_at}", cron.slot.job).into();
                let input = input_of(view, cron.job.id, Trigger::Cron { scheduled_at });
                making.extend(input.map(|input| Making { job: Arc::clone(&cron.job), key, input }));
            }
            moved.push(CronSlot { next_ms: millis(due.next), ..cron.slot.clone() });
        }
        if moved.is_empty() {
            return Ok(true);
        }
        let made = self.make(making).await?;
        let fired = made.iter().filter(|made| made.created).count();
        metrics::counter!("tenure_dag_firings_total", "kind" => "cron").increment(fired as u64);
        if self.shared().store.save_cron_slots(org, view.seq, &moved, &[]).await?.is_err() {
            return Ok(false);
        }
        for slot in moved {
            let cron = crons.iter_mut().find(|cron| cron.slot.dag == slot.dag && cron.slot.job == slot.job);
            if let Some(cron) = cron {
                cron.slot = slot;
            }
        }
        Ok(true)
    }

    /// Every `always_on` job has its one task, which goes on if the version is active again after another one.
    async fn keep_always_on(&self, view: &View, jobs: &[Arc<JobOf>]) -> Result<(), EngineError> {
        let always_on = jobs.iter().filter(|job| job.definition.source() == Some(&Source::AlwaysOn));
        let making: Vec<Making> = always_on
            .filter_map(|job| {
                let input = input_of(view, job.id, Trigger::AlwaysOn)?;
                let key = format!("always_on:{}", job.definition.name).into();
                Some(Making { job: Arc::clone(job), key, input })
            })
            .collect();
        self.make(making).await.map(drop)
    }
}
