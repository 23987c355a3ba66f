use std::collections::BTreeMap;

use jiff::Timestamp;
use tenure_sandbox::RuntimeId;

use super::FENCE_KEPT;
use super::record::{Order, Record};
use crate::node::clock::Moment;

/// What is known about one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The highest that was seen.
    pub(crate) generation: i64,
    /// The highest that is on the disk.
    pub(crate) synced_generation: i64,
    /// Of the last token that was seen.
    pub(crate) token_expires_at: Timestamp,
    /// Until when the lease holds, by this machine.
    pub(crate) held_until: Moment,
    /// The end of its time to live.
    pub(crate) expires: Option<Moment>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) stage: Stage,
    /// Its lease lapsed: no command and no file call until it is renewed. Not kept over a restart; the lease is.
    pub(crate) frozen: bool,
    /// Why it has to be destroyed, if that has been decided.
    pub(crate) doomed: Option<&'static str>,
    /// When its lease is to be renewed, and whether that goes on.
    pub(crate) renew_at: Moment,
    pub(crate) renewing: bool,
    /// It is being frozen or destroyed.
    pub(crate) acting: bool,
    /// Renewals or destroys that failed one after the other, and when the next destroy is due.
    pub(crate) failures: u32,
    pub(crate) retry_at: Moment,
}

#[derive(Debug, Clone)]
pub(crate) enum Stage {
    /// Only the fence is known.
    Absent,
    /// The provider was asked for it, and did not answer yet.
    Intended {
        order: Box<Order>,
    },
    Held {
        order: Box<Order>,
        runtime_id: RuntimeId,
        metadata: BTreeMap<String, String>,
        created_at: Timestamp,
    },
    Gone {
        generation: i64,
        runtime_id: Option<RuntimeId>,
        at: Timestamp,
    },
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            generation: i64::MIN,
            synced_generation: i64::MIN,
            token_expires_at: Timestamp::MIN,
            held_until: Moment::START,
            expires: None,
            expires_at: None,
            stage: Stage::Absent,
            frozen: false,
            doomed: None,
            renew_at: Moment::START,
            renewing: false,
            acting: false,
            failures: 0,
            retry_at: Moment::START,
        }
    }
}

impl Entry {
    pub(crate) fn runtime_id(&self) -> Option<&RuntimeId> {
        match &self.stage {
            Stage::Held { runtime_id, .. } => Some(runtime_id),
            Stage::Gone { runtime_id, .. } => runtime_id.as_ref(),
            Stage::Absent | Stage::Intended { .. } => None,
        }
    }

    pub(super) fn destroyed_at_generation(&self) -> Option<i64> {
        match self.stage {
            Stage::Gone { generation, .. } => Some(generation),
            _ => None,
        }
    }

    /// Nothing is there, and no delayed call can carry a token that is valid.
    pub(super) fn may_be_forgotten(&self, now: Timestamp) -> bool {
        let gone_at = match &self.stage {
            Stage::Gone { at, .. } => *at,
            Stage::Absent => Timestamp::MIN,
            Stage::Intended { .. } | Stage::Held { .. } => return false,
        };
        let last = gone_at.max(self.token_expires_at);
        last.checked_add(FENCE_KEPT).is_ok_and(|until| until < now)
    }

    /// Moments of a former start of the machine say nothing: the lease has to be renewed within its grace, and the time to live is
    /// taken from the calendar.
    pub(super) fn after_machine_start(&mut self) {
        self.held_until = Moment::now();
        self.expires = self.expires_at.map(|at| {
            let left = std::time::Duration::try_from(at.duration_since(Timestamp::now()));
            Moment::now().after(left.unwrap_or_default())
        });
    }

    /// Records that lead to this entry.
    pub(super) fn records(&self, sandbox_id: &str) -> Vec<Record> {
        let id = || sandbox_id.to_owned();
        let mut records = vec![Record::Fence {
            sandbox_id: id(),
            generation: self.generation,
            token_expires_at: self.token_expires_at,
            held_until: self.held_until,
        }];
        let expiry = || Record::Expiry { sandbox_id: id(), expires: self.expires, expires_at: self.expires_at };
        match &self.stage {
            Stage::Absent => {}
            Stage::Intended { order } => {
                let order = order.clone();
                records.extend([Record::Intent { sandbox_id: id(), order, expires: self.expires }, expiry()]);
            }
            Stage::Held { order, runtime_id, metadata, created_at } => records.extend([
                Record::Intent { sandbox_id: id(), order: order.clone(), expires: self.expires },
                expiry(),
                Record::Runtime {
                    sandbox_id: id(),
                    runtime_id: runtime_id.clone(),
                    metadata: metadata.clone(),
                    created_at: *created_at,
                },
            ]),
            Stage::Gone { generation, runtime_id, at } => {
                let (generation, at) = (*generation, *at);
                records.push(Record::Gone { sandbox_id: id(), runtime_id: runtime_id.clone(), generation, at });
            }
        }
        records
    }
}

impl Stage {
    pub(crate) fn is_present(&self) -> bool {
        matches!(self, Self::Intended { .. } | Self::Held { .. })
    }

    /// An intent becomes a runtime.
    pub(super) fn run(&mut self, runtime_id: RuntimeId, metadata: BTreeMap<String, String>, created_at: Timestamp) {
        *self = match std::mem::replace(self, Self::Absent) {
            Self::Intended { order } | Self::Held { order, .. } => {
                Self::Held { order, runtime_id, metadata, created_at }
            }
            // Nobody asked for it: whoever finds it destroys it.
            other => other,
        };
    }
}
