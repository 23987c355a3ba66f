//! Runs that are submitted.

use std::collections::HashMap;
use std::sync::Arc;

use super::consequences::misconfigured;
use super::{KnownRun, RunCell};
use crate::batch::{KeyOwner, Outcome, World};
use crate::command::run::{NewMember, RunSubmitted, SubmitRun};
use crate::command::{Answer, Change, Context, Rejection, submit};
use crate::event::FactKind;
use crate::run::reference::{self, Budget, Parts};
use crate::run::{Edge, InRun, Member, Run, RunCounts, RunState, RunTask};
use crate::task::{Blocked, Carry, End, Finished, Place};

impl World {
    pub(in crate::batch) fn submit_run(&mut self, command: &SubmitRun) -> Outcome {
        let new = &command.run;
        if self.runs.cells.get(&new.id.seq()).is_some_and(|cell| cell.run.id == new.id) {
            return Ok(Answer::RunSubmitted(RunSubmitted { id: new.id, created: true }));
        }
        let scope = new.key_scope();
        if let Some(known) = scope.as_ref().and_then(|scope| self.runs.keys.get(scope)) {
            let requested = new.fingerprint;
            // Another owner's run is not to be seen; that its key is taken cannot be hidden.
            if new.owner.is_some() && new.owner != known.owner {
                return Err(Rejection::RunKeyConflict { existing: None, requested });
            }
            if known.fingerprint != requested {
                let existing = Some((known.id, known.fingerprint));
                return Err(Rejection::RunKeyConflict { existing, requested });
            }
            return Ok(Answer::RunSubmitted(RunSubmitted { id: known.id, created: false }));
        }
        self.check_members(command)?;
        if let Some(scope) = scope {
            let known = KnownRun { id: new.id, owner: new.owner.clone(), fingerprint: new.fingerprint };
            self.runs.keys.insert(scope, known);
        }
        self.make_run(command);
        Ok(Answer::RunSubmitted(RunSubmitted { id: new.id, created: true }))
    }

    /// First all checks, then all changes. A task belongs to one run: a key that another task has cannot name one here.
    fn check_members(&self, command: &SubmitRun) -> Result<(), Rejection> {
        let mut keys = HashMap::new();
        for (index, member) in command.tasks.iter().enumerate() {
            let task = &member.task;
            let queue = self.names.get(&task.queue).and_then(|id| self.queues.get(id));
            if queue.is_some_and(|cell| !cell.queue.takes(&task.tenant)) {
                return Err(Rejection::QueueNotFound);
            }
            // A rerun may have lost the deadline that kept the first run's tokens short; heartbeats renew them.
            let ttl = queue.filter(|_| member.carried.is_none() && command.run.parent.is_none());
            if let Some(refusal) = ttl.and_then(|cell| submit::token_ttl(task, index, &cell.queue, self.now)) {
                return Err(refusal);
            }
            // A rerun into a queue that has changed fails when it would be granted, with the reason.
            if let Some(refusal) = ttl.and_then(|cell| submit::runtime(task, index, &cell.queue)) {
                return Err(refusal);
            }
            let Some(scope) = task.key_scope() else { continue };
            if let Some(known) = self.keys.get(&scope) {
                let hidden = task.owner.is_some() && task.owner != known.owner;
                return Err(Rejection::IdempotencyConflict { index, existing: (!hidden).then_some(known.id) });
            }
            if let Some(earlier) = keys.insert(scope, task.id) {
                return Err(Rejection::IdempotencyConflict { index, existing: Some(earlier) });
            }
        }
        Ok(())
    }

    fn make_run(&mut self, command: &SubmitRun) {
        let new = &command.run;
        let run = Run {
            id: new.id,
            key: new.key.clone(),
            tenant: Arc::clone(&new.tenant),
            workspace: Arc::clone(&new.workspace),
            owner: new.owner.clone(),
            fingerprint: new.fingerprint,
            labels: new.labels.clone(),
            deadline: new.deadline,
            parent: new.parent,
            created_at: self.now,
            finished_at: None,
            cancel_reason: None,
            counts: RunCounts { open: command.tasks.len() as u32, ..RunCounts::default() },
        };
        self.runs.cells.insert(new.id.seq(), RunCell { run, original: None });
        self.record_run(new.id, RunState::Running);
        let (mut parts, mut budget) = (Parts::default(), Budget::default());
        for member in &command.tasks {
            self.make_member(command, member, &mut parts, &mut budget);
        }
    }

    fn make_member<'c>(
        &mut self,
        command: &'c SubmitRun,
        member: &'c NewMember,
        parts: &mut Parts<'c>,
        budget: &mut Budget,
    ) {
        let task = &member.task;
        let Some(queue) = self.names.get(&task.queue).and_then(|id| self.queues.get(id)) else {
            unreachable!("the store makes the queues that a submit names before it loads them")
        };
        let ctx = Context::new(self.now, self.grace, &mut self.numbers);
        let (mut body, change) = submit::decide(task, &queue.queue, &ctx);
        let (Place::Scheduled(waiting) | Place::Ready(waiting)) = &change.place else { return };
        let (run, row) = (command.run.id, task.id.seq());
        body.run = Some(InRun { run, key: Arc::clone(&member.key) });
        let named = |index: &usize| command.tasks.get(*index);
        let refs = member.refs.iter().filter_map(named).map(|other| (other.key.to_string(), other.task.id.seq()));
        let mark = Member { run: run.seq(), sealed: false, refs: refs.collect() };
        let open = member.depends_on.iter().filter_map(named).filter(|other| other.carried.is_none());
        let open: Vec<Edge> = open.map(|other| Edge { upstream: other.task.id.seq(), downstream: row }).collect();
        let mut blocked = Blocked {
            queue: waiting.queue,
            priority: waiting.priority,
            waiting_on: open.len() as u32,
            at: waiting.at,
            fair: waiting.fair.clone(),
            carry: Carry { run: Some(Box::new(mark)), ..waiting.carry.clone() },
        };
        let change = if let Some(carried) = &member.carried {
            blocked.carry.run.iter_mut().for_each(|mark| mark.refs.clear());
            let finished = Finished { result: carried.result.clone(), ..blocked.ended(End::Succeeded, self.now) };
            Change::to(Place::Finished(finished))
        } else if blocked.waiting_on > 0 {
            Change::to(Place::Blocked(blocked))
        } else {
            // Whatever it names was carried over: its outputs are at hand.
            let outputs: HashMap<&str, Option<&str>> = member
                .refs
                .iter()
                .filter_map(named)
                .map(|other| (&*other.key, other.carried.as_ref().and_then(|carried| carried.result.as_deref())))
                .collect();
            let output = |key: &str| *outputs.get(key)?;
            let filled = if outputs.is_empty() {
                Ok(None)
            } else {
                reference::fill(&body.payload, parts, budget, output).map(Some)
            };
            match filled {
                Ok(filled) => {
                    body.payload = filled.map_or(body.payload, Arc::from);
                    Change::to(blocked.freed(row, self.now))
                }
                Err(message) => Change::to(misconfigured(&blocked, &message, self.now)),
            }
        };
        let change = change.with_fact(task.id, FactKind::Submitted, None).with_wake(task.id);
        let depends_on = member.depends_on.iter().filter_map(named).map(|other| other.task.id.seq()).collect();
        self.runs.made.tasks.push(RunTask { run: run.seq(), task: row, depends_on });
        self.runs.made.edges.extend(open);
        // A new task has not been anything else before: what it is born as counts as a move.
        let ended = change.place.end().is_some();
        self.keys.extend(KeyOwner::of(&body, change.place.state()));
        self.born(body, change);
        if ended {
            self.runs.consequences.moved.push(row);
        }
    }
}
