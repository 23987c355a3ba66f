//! Idempotency keys: who has one.

use std::sync::Arc;

use crate::command::run::NewRun;
use crate::command::submit::NewTask;
use crate::id::TaskId;
use crate::task::{Body, State};

/// Where an idempotency key is unique: tenant, workspace, key.
pub type IdempotencyScope = (Arc<str>, Arc<str>, Arc<str>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyOwner {
    pub id: TaskId,
    /// Who submitted the task that has the key.
    pub owner: Option<Arc<str>>,
    pub fingerprint: [u8; 32],
    pub state: State,
}

impl KeyOwner {
    /// The task with this body, if it has a key.
    pub(super) fn of(body: &Body, state: State) -> Option<(IdempotencyScope, Self)> {
        let idempotency = body.idempotency.as_ref()?;
        let scope = scope(&body.tenant, &body.workspace, &idempotency.key);
        let (id, owner, fingerprint) = (body.id, body.owner.clone(), idempotency.fingerprint);
        Some((scope, Self { id, owner, fingerprint, state }))
    }
}

impl NewTask {
    pub fn key_scope(&self) -> Option<IdempotencyScope> {
        self.idempotency.as_ref().map(|idempotency| scope(&self.tenant, &self.workspace, &idempotency.key))
    }
}

impl NewRun {
    pub fn key_scope(&self) -> Option<IdempotencyScope> {
        self.key.as_ref().map(|key| scope(&self.tenant, &self.workspace, key))
    }
}

fn scope(tenant: &Arc<str>, workspace: &Arc<str>, key: &Arc<str>) -> IdempotencyScope {
    (Arc::clone(tenant), Arc::clone(workspace), Arc::clone(key))
}
