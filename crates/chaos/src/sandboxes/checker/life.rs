//! What a history says about each sandbox.

use std::collections::BTreeMap;

use super::{Answer, Call, Limits, MS, Op, Row, Sighting, Story};

/// Everything about one sandbox.
#[derive(Debug, Default)]
pub struct Life<'a> {
    pub id: &'a str,
    pub owner: Option<&'a str>,
    /// Creates of its nonce, whatever they were answered.
    pub creates: Vec<&'a Op>,
    /// Requests that name it.
    pub ops: Vec<&'a Op>,
    pub sightings: Vec<&'a Sighting>,
    /// Moments in which it lived: somewhere between the two.
    pub alive: Vec<(u64, u64)>,
    /// Runtimes that answers named, and the request that got the first of these answers.
    pub named: BTreeMap<&'a str, usize>,
}

impl<'a> Life<'a> {
    fn sign(&mut self, op: &Op) {
        self.alive.extend(op.answered.map(|answered| (op.asked, answered)));
    }

    fn shown(&mut self, op: &Op, row: &'a Row) {
        if row.counts() {
            self.sign(op);
        }
        if let Some(runtime) = &row.runtime {
            self.named.entry(runtime).or_insert(op.id);
        }
    }

    /// It lived at every moment from the first to the second. `None` when it was not seen twice.
    pub fn certain(&self) -> Option<(u64, u64)> {
        let from = self.alive.iter().map(|(_, answered)| *answered).min()?;
        let to = self.alive.iter().map(|(asked, _)| *asked).max()?;
        (from <= to).then_some((from, to))
    }

    /// The latest moment at which its time may end.
    pub fn expires_by(&self, limits: &Limits) -> Option<u64> {
        let set = |op: &Op, ttl_ms: u64| match op.answer {
            Answer::Refused { .. } | Answer::NotSent => None,
            _ => Some(op.answered.unwrap_or(op.asked + limits.request_ms * MS) + ttl_ms * MS),
        };
        let creates = self.creates.iter().filter_map(|op| match &op.call {
            Call::Create { ttl_ms, .. } => set(op, *ttl_ms),
            _ => None,
        });
        let extends = self.ops.iter().filter_map(|op| match &op.call {
            Call::Extend { ttl_ms, .. } => set(op, *ttl_ms),
            _ => None,
        });
        creates.chain(extends).max()
    }

    /// The earliest moment at which its time may end, as far as requests before `until` have set it.
    pub fn expires_from(&self, until: u64) -> Option<u64> {
        let mut from: Option<u64> = None;
        for op in self.creates.iter().chain(&self.ops).filter(|op| op.asked < until) {
            let ttl_ms = match &op.call {
                Call::Create { ttl_ms, .. } | Call::Extend { ttl_ms, .. } => *ttl_ms,
                _ => continue,
            };
            let set = op.asked + ttl_ms * MS;
            from = match &op.answer {
                Answer::Refused { .. } | Answer::NotSent => from,
                // What was answered before replaces what was valid before it. A repeated create sets nothing.
                Answer::Extended if op.answered.is_some_and(|at| at < until) && self.is_alone(op) => Some(set),
                _ => Some(from.map_or(set, |from| from.min(set))),
            };
        }
        from
    }

    /// Whether no other extend can have come after this one.
    fn is_alone(&self, op: &Op) -> bool {
        !self.ops.iter().any(|other| {
            let open = other.answered.is_none_or(|answered| answered > op.asked);
            other.id != op.id && other.asked < op.asked && matches!(other.call, Call::Extend { .. }) && open
        })
    }
}

/// All sandboxes that somebody was told of, or that were found on a worker.
pub fn lives(story: &Story) -> BTreeMap<&str, Life<'_>> {
    let mut lives: BTreeMap<&str, Life<'_>> = BTreeMap::new();
    let mut nonces: BTreeMap<&str, &str> = BTreeMap::new();
    for op in &story.ops {
        if let Some(id) = op.call.sandbox() {
            let life = lives.entry(id).or_default();
            life.ops.push(op);
            match &op.answer {
                Answer::Ran { runtime } => {
                    life.named.entry(runtime).or_insert(op.id);
                    life.sign(op);
                }
                Answer::Written | Answer::Content { .. } | Answer::Extended => life.sign(op),
                Answer::Seen { row } => life.shown(op, row),
                _ => {}
            }
        }
        match &op.answer {
            Answer::Created { row } => {
                lives.entry(&row.sandbox).or_default().shown(op, row);
                if let Call::Create { nonce, .. } = &op.call {
                    nonces.insert(nonce, &row.sandbox);
                }
            }
            Answer::Listed { rows } => {
                for row in rows {
                    lives.entry(&row.sandbox).or_default().shown(op, row);
                    nonces.extend(row.nonce.as_deref().map(|nonce| (nonce, row.sandbox.as_str())));
                }
            }
            _ => {}
        }
    }
    for seen in &story.sightings {
        lives.entry(&seen.sandbox).or_default().sightings.push(seen);
        nonces.extend(seen.nonce.as_deref().map(|nonce| (nonce, seen.sandbox.as_str())));
    }
    for op in &story.ops {
        if let Call::Create { nonce, owner, .. } = &op.call
            && let Some(life) = nonces.get(nonce.as_str()).and_then(|id| lives.get_mut(id))
        {
            life.owner = Some(owner);
            life.creates.push(op);
        }
    }
    for (id, life) in &mut lives {
        life.id = id;
    }
    lives
}
