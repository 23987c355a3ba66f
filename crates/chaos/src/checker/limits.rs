//! Rules about queues with limits: how many attempts are open, how fast they are granted, and to whom.

use std::collections::BTreeMap;

use super::events::{Sorted, TaskHistory, first_asked, void_from};
use super::rules::story;
use super::{Ended, Rule, Violation};
use crate::history::{Answer, Call, Limited};
use crate::system::{BURST, PACE, SLOTS_OF_QUEUE};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// By how much clocks and rounding may shorten a lease.
const TOLERANCE_NS: u64 = 20 * MS;

/// Longest window in which grants are counted.
const WINDOW_NS: u64 = 5 * SECOND;

/// Grants that may come before that of one who waits. There are two who submit, so that it is one; another may have been decided
/// in the same transaction.
const BEFORE: usize = 2;

/// One attempt of such a queue: granted between two points in time, and open for certain until a third.
struct Slot<'a> {
    task: &'a str,
    op: &'a str,
    who: Limited,
    attempt: u32,
    asked: u64,
    answered: u64,
    until: u64,
}

pub fn check(sorted: &Sorted<'_>, ended: &Ended) -> Vec<Violation> {
    let mut slots: Vec<Slot<'_>> = sorted.tasks.values().flat_map(|task| of_task(sorted, task)).collect();
    slots.sort_by_key(|slot| slot.asked);
    let mut found: Vec<Found<'_>> = Vec::new();
    let (paced, slots): (Vec<_>, Vec<_>) = slots.into_iter().partition(|slot| slot.who == Limited::Paced);
    found.extend(too_many(&slots));
    found.extend(too_fast(&paced));
    found.extend(unfair(sorted, &slots));
    let violation = |(rule, id, what): Found<'_>| {
        let task = sorted.tasks.get(id).map(|task| story(task, ended.tasks.get(id)));
        Violation { rule, task: Some(id.to_owned()), what, ops: task.unwrap_or_default() }
    };
    found.into_iter().map(violation).collect()
}

fn of_task<'a>(sorted: &Sorted<'a>, task: &'a TaskHistory<'a>) -> Vec<Slot<'a>> {
    let Some(who) = task.submission().and_then(|submission| submission.limited) else { return Vec::new() };
    let mut slots: BTreeMap<u32, Slot<'a>> = BTreeMap::new();
    for grant in &task.grants {
        let Some(answered) = grant.op.answered else { continue };
        let asked = first_asked(sorted, grant.op);
        let ttl_ns = (grant.job.ttl_ms * MS).saturating_sub(TOLERANCE_NS);
        let slot = slots.entry(grant.job.attempt).or_insert(Slot {
            task: task.id,
            op: &grant.op.id,
            who,
            attempt: grant.job.attempt,
            asked,
            answered,
            until: asked + ttl_ns,
        });
        slot.asked = slot.asked.min(asked);
        slot.answered = slot.answered.min(answered);
        for op in &task.ops {
            if let (Call::Heartbeat { attempt_id, .. }, Answer::Renewed { .. }) = (&op.call, &op.answer)
                && *attempt_id == grant.job.attempt_id
            {
                slot.until = slot.until.max(op.asked + ttl_ns);
            }
        }
        // Whatever may have ended it.
        let ends = task.ops.iter().filter(|op| match &op.call {
            Call::Report { attempt_id, .. } => *attempt_id == grant.job.attempt_id,
            Call::Cancel { .. } => true,
            _ => false,
        });
        let ends = ends.filter(|op| !matches!(op.answer, Answer::Refused { .. })).map(|op| op.asked);
        let ends = ends.chain(void_from(sorted, grant.op)).min();
        slot.until = slot.until.min(ends.unwrap_or(u64::MAX));
    }
    slots.into_values().collect()
}

type Found<'a> = (Rule, &'a str, String);

fn too_many<'a>(slots: &[Slot<'a>]) -> Vec<Found<'a>> {
    let mut edges: Vec<(u64, bool, &Slot<'a>)> = Vec::new();
    for slot in slots.iter().filter(|slot| slot.until > slot.answered) {
        edges.extend([(slot.answered, true, slot), (slot.until, false, slot)]);
    }
    // An end comes before a beginning at the same time.
    edges.sort_by_key(|(at, begins, _)| (*at, *begins));
    let (mut open, mut found) = (0_u64, Vec::new());
    for (_, begins, slot) in edges {
        open = if begins { open + 1 } else { open - 1 };
        if begins && open > SLOTS_OF_QUEUE {
            let what = format!("{} was granted it while {} others were open", slot.op, open - 1);
            found.push((Rule::LimitExceeded, slot.task, what));
        }
    }
    found
}

/// Counts the grants that lie in a window from the question of one of them. The slots are in the order of their questions.
fn too_fast<'a>(slots: &[Slot<'a>]) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    for (index, first) in slots.iter().enumerate() {
        let near = slots[index..].iter().take_while(|slot| slot.asked < first.asked + WINDOW_NS);
        let mut answers: Vec<(u64, &Slot<'a>)> = near.map(|slot| (slot.answered, slot)).collect();
        answers.sort_by_key(|(answered, _)| *answered);
        let broken = answers.iter().zip(1_u64..).find(|((answered, _), count)| {
            let refilled = (answered - first.asked).div_ceil(SECOND / PACE);
            *count > BURST + refilled + 1
        });
        if let Some(((answered, slot), count)) = broken {
            let ms = (answered - first.asked) / MS;
            found.push((Rule::RateExceeded, slot.task, format!("{} is the grant number {count} in {ms} ms", slot.op)));
        }
    }
    found
}

/// Counts the grants to a crowd while one of the others waits for certain: since it was submitted, and since the last grant to
/// another one of them.
fn unfair<'a>(sorted: &Sorted<'a>, slots: &[Slot<'a>]) -> Vec<Found<'a>> {
    let mut found = Vec::new();
    // A retry waits for its back-off first.
    for own in slots.iter().filter(|slot| slot.who == Limited::Loner && slot.attempt == 1) {
        let Some(task) = sorted.tasks.get(own.task) else { continue };
        let Some(submitted) = task.submits.iter().filter_map(|(op, _)| op.answered).min() else { continue };
        let others = slots.iter().filter(|slot| slot.who == Limited::Loner && slot.asked < own.asked);
        let since = others.map(|slot| slot.answered).chain([submitted]).max().unwrap_or(submitted);
        let before = slots.iter().filter(|slot| slot.who == Limited::Crowd && slot.asked > since);
        let before = before.filter(|slot| slot.answered < own.asked).count();
        if before > BEFORE {
            let what = format!("{before} of a crowd were granted between its submit and {}", own.op);
            found.push((Rule::Unfair, own.task, what));
        }
    }
    found
}
