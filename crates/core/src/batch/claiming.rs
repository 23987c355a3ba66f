//! Claims inside a batch: queues in the listed order, their limits, and repeats of the same claim.

use std::collections::HashMap;
use std::sync::Arc;

use super::World;
use crate::command::claim::{self, Claim, ClaimTask, Claimed, Grant, NotGranted, NotGrantedReason};
use crate::command::{Answer, Context, expire};
use crate::id::{AttemptId, Seq, WorkerId};
use crate::mutant;
use crate::queue::{Limit, Queue, QueueId};
use crate::task::{Place, Running};

impl World {
    pub(super) fn claim(&mut self, index: usize, command: &Claim) -> Claimed {
        let repeated = self.repeated(index, command);
        if !repeated.is_empty() && !mutant!("claim-repeat-ignored") {
            return Claimed { grants: repeated, ..Claimed::default() };
        }
        let mut claimed = Claimed::default();
        for name in &command.queues {
            if claimed.grants.len() >= command.max_jobs {
                break;
            }
            if let Some(queue) = self.names.get(name).copied() {
                self.claim_from(queue, command, &mut claimed);
            }
        }
        if let Some((worker, claim_id)) = command.claimer.name()
            && !claimed.grants.is_empty()
        {
            let rows = claimed.grants.iter().map(Grant::seq).collect();
            self.made.claims.insert((Arc::clone(worker), Arc::clone(claim_id)), rows);
        }
        claimed
    }

    /// What this very claim was granted before and still holds. A lease that has run out is left to the reaper.
    fn repeated(&mut self, index: usize, command: &Claim) -> Vec<Grant> {
        let claimer = &command.claimer;
        let mut rows = self.repeats.get(&index).cloned().unwrap_or_default();
        if let Some((worker, claim_id)) = claimer.name() {
            let key = (Arc::clone(worker), Arc::clone(claim_id));
            rows.extend(self.made.claims.get(&key).into_iter().flatten());
        }
        let ctx = Context::new(self.now, self.grace, &mut self.numbers);
        let mut grants = Vec::new();
        for cell in rows.iter().filter_map(|row| self.tasks.get(row)) {
            // An earlier command of the batch may have ended this claim's attempt and given the task to somebody else.
            if let Place::Running(running) = &cell.task.place
                && claimer.was_granted(running, command.max_jobs)
                && !expire::is_over(running, &ctx)
            {
                grants.push(Grant::of(cell.task.id, running));
            }
        }
        grants
    }

    fn claim_from(&mut self, id: QueueId, command: &Claim, claimed: &mut Claimed) {
        while claimed.grants.len() < command.max_jobs {
            let Some(cell) = self.queues.get(&id).filter(|cell| cell.queue.serves(&command.claimer)) else { return };
            let room = cell.queue.room(cell.running, self.now);
            if room.grants == 0 {
                self.note_limit(id, room.held_by, claimed);
                return;
            }
            let Some(row) = self.candidates.get_mut(&id).and_then(|rows| rows.pop_front()) else { return };
            // An earlier command of the batch, or a deadline, may have taken it out of the queue.
            self.settle(row);
            let (Some(cell), Some(task)) = (self.queues.get(&id), self.tasks.get(&row).map(|cell| &cell.task)) else {
                continue;
            };
            let Place::Ready(waiting) = &task.place else { continue };
            let ctx = Context::new(self.now, self.grace, &mut self.numbers);
            if !cell.queue.settings.runs(&waiting.carry.spec) {
                let change = claim::refuse_runtime(task.id, waiting, &cell.queue.settings, &ctx);
                self.apply(row, change);
                // There may be others after it, which nobody is told of.
                claimed.retry_at = Some(self.now);
                continue;
            }
            // What may be granted of a held job has a higher priority and came before it.
            if cell.queue.settings.holds(&waiting.carry.spec) {
                return;
            }
            let index = claimed.grants.len();
            let (change, grant) = claim::grant(task.id, waiting, &command.claimer, index, &cell.queue, &ctx);
            let fair = waiting.fair.clone();
            self.apply(row, change);
            self.spend(id, fair);
            claimed.grants.push(grant);
        }
    }

    fn note_limit(&self, id: QueueId, held_by: Option<Limit>, claimed: &mut Claimed) {
        match held_by {
            Some(Limit::Slots) => claimed.full.extend(self.queues.get(&id).map(|cell| Arc::clone(&cell.queue.name))),
            Some(Limit::Rate) => {
                let next = self.queues.get(&id).and_then(|cell| cell.queue.next_token_at(self.now));
                claimed.retry_at = match (claimed.retry_at, next) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            Some(Limit::Paused) | None => {}
        }
    }

    fn spend(&mut self, id: QueueId, fair: Option<Arc<str>>) {
        if let Some(cell) = self.queues.get_mut(&id) {
            cell.queue.spend(self.now);
            if cell.queue.settings.fairness_key.is_some() && fair.is_some() {
                cell.queue.fair_cursor = fair;
            }
        }
    }

    pub(super) fn claim_task(&mut self, command: &ClaimTask) -> Answer {
        let not_found = NotGranted { reason: NotGrantedReason::NotFound, ack: true, live: None };
        let row = command.task.seq();
        let Some(cell) = self.tasks.get(&row).filter(|cell| cell.task.id == command.task) else {
            return Answer::NotGranted(not_found);
        };
        let queue = cell.task.place.queue();
        let before = cell.task.place.attempt();
        let (settings, running) = self
            .queues
            .get(&queue)
            .map_or_else(|| (Queue::new(queue, "".into()), 0), |cell| (cell.queue.clone(), cell.running));
        let outcome = self.on_row(row, |task, _, _, ctx| claim::decide_task(task, command, &settings, running, ctx));
        match outcome {
            Ok(Answer::Claimed(claimed)) => {
                // The same claim sent again was granted nothing new and takes no second token of the rate.
                if let Some(Place::Running(granted)) = self.tasks.get(&row).map(|cell| &cell.task.place)
                    && granted.attempt > before
                {
                    let fair = granted.fair.clone();
                    self.spend(queue, fair);
                }
                Answer::Claimed(claimed)
            }
            Ok(answer) => answer,
            Err(_) => Answer::NotGranted(not_found),
        }
    }

    fn settle(&mut self, row: Seq) {
        let _ = self.on_row(row, |task, _, queue, ctx| expire::decide(task, queue, ctx));
    }
}

/// Which leases a claim was granted when it was sent or decided before.
pub(super) enum EarlierGrants<'a> {
    /// Those under its id.
    Named(&'a WorkerId, &'a Arc<str>),
    /// Those under the attempt ids that it draws.
    Drawn(HashMap<AttemptId, usize>),
}

impl EarlierGrants<'_> {
    pub fn contain(&self, running: &Running) -> bool {
        match self {
            Self::Named(worker, claim_id) => {
                running.lease.holder.as_ref() == Some(worker) && running.claim_id.as_ref() == Some(claim_id)
            }
            Self::Drawn(order) => order.contains_key(&running.attempt_id),
        }
    }
}

impl Claim {
    pub(super) fn earlier_grants(&self) -> EarlierGrants<'_> {
        match self.claimer.name() {
            Some((worker, claim_id)) => EarlierGrants::Named(worker, claim_id),
            None => EarlierGrants::Drawn(self.grant_order()),
        }
    }

    /// The attempt ids that this claim draws, each with the place of its grant.
    pub(super) fn grant_order(&self) -> HashMap<AttemptId, usize> {
        self.attempt_ids().enumerate().map(|(grant, id)| (id, grant)).collect()
    }

    /// The attempt ids that this claim draws, in the order of its grants.
    pub fn attempt_ids(&self) -> impl Iterator<Item = AttemptId> {
        (0..self.max_jobs).map(|grant| self.claimer.seed.draw(grant).0)
    }
}
