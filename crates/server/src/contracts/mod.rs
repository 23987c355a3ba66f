//! The contracts that this server speaks, one folder each: routes, words, and how a fault is answered.
//!
//! A new contract is a folder with its [`Dialect`], a variant of [`Contract`] and its lines in `access/rules.rs`.

pub mod callback;
pub mod category;
pub mod dispatch;
mod log_lines;
pub mod pull;
pub mod sandboxes;
pub mod wording;
pub mod worker_plane;

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use tenure_contract::CONTRACT_HEADER;

use crate::api;
use crate::error::Fault;
use crate::request::RequestId;
use crate::state::App;

/// The contract that a request speaks. Chosen once, from its path, and kept in the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contract {
    Pull,
    Callback,
    Dispatch,
    /// Sandboxes, for users.
    Sandboxes,
    /// Workers that hold sandboxes.
    WorkerPlane,
    User,
}

/// What tells one contract from another.
#[derive(Debug)]
pub struct Dialect {
    /// What answers name in `X-Tenure-Contract`; the user API names nothing.
    pub name: Option<&'static str>,
    /// Whether a path belongs to the contract, with a route or without.
    pub owns: fn(&str) -> bool,
    pub router: fn() -> Router<App>,
    pub refuse: fn(Fault, &RequestId) -> Response,
}

impl Contract {
    /// The user API is last: it owns what no other contract claims.
    const ALL: [Self; 6] = [Self::Pull, Self::Callback, Self::Dispatch, Self::Sandboxes, Self::WorkerPlane, Self::User];

    const fn dialect(self) -> &'static Dialect {
        match self {
            Self::Pull => &pull::DIALECT,
            Self::Callback => &callback::DIALECT,
            Self::Dispatch => &dispatch::DIALECT,
            Self::Sandboxes => &sandboxes::DIALECT,
            Self::WorkerPlane => &worker_plane::DIALECT,
            Self::User => &api::DIALECT,
        }
    }

    pub fn of(path: &str) -> Self {
        Self::ALL.into_iter().find(|contract| (contract.dialect().owns)(path)).unwrap_or(Self::User)
    }

    /// Names the contract in an answer.
    pub fn sign(self, headers: &mut HeaderMap) {
        if let Some(name) = self.dialect().name {
            headers.insert(HeaderName::from_static(CONTRACT_HEADER), HeaderValue::from_static(name));
        }
    }

    /// The answer to a request that failed, in the words of this contract.
    pub fn refuse(self, fault: Fault, id: &RequestId) -> Response {
        (self.dialect().refuse)(fault, id)
    }
}

/// The routes of those contracts that are wanted.
pub fn router(is_wanted: impl Fn(Contract) -> bool) -> Router<App> {
    let wanted = Contract::ALL.into_iter().filter(|contract| is_wanted(*contract));
    wanted.fold(Router::new(), |router, contract| router.merge((contract.dialect().router)()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Contract::{Callback, Dispatch, Pull, Sandboxes, User, WorkerPlane};

    #[test]
    fn a_path_belongs_to_one_contract() {
        for (path, contract) in [
            ("/internal/worker/claim", Pull),
            ("/internal/worker/unknown", Pull),
            ("/internal/worker", User),
            ("/internal/jwks/task", User),
            ("/internal/task-claim", Dispatch),
            ("/internal/task-unknown", Dispatch),
            ("/internal/heartbeat", Dispatch),
            ("/internal/heartbeats", User),
            ("/v1/task/heartbeat", Dispatch),
            ("/v1/task/unknown", Dispatch),
            ("/v1/task-claim", User),
            ("/v1/tasks/x/started", Callback),
            ("/v1/tasks/x/unknown", Callback),
            ("/v1/tasks/", Callback),
            ("/api/v1/tasks/x/completed", Callback),
            ("/api/v1/tasks/x/cancel", User),
            ("/api/v1/tasks/x/completed/more", User),
            ("/api/v1/tasks/started", User),
            ("/api/v1/tasks", User),
            ("/api/v1/sandboxes", Sandboxes),
            ("/api/v1/sandboxes/sb-0a1b2c3d/exec", Sandboxes),
            ("/api/v1/sandboxes/unknown/unknown", Sandboxes),
            ("/api/v1/sandboxesque", User),
            ("/api/v1/metrics", Sandboxes),
            ("/api/v1/metrics/prometheus", User),
            ("/api/v1/admin/workers/w-1/drain", Sandboxes),
            ("/api/v1/admin/worker-tokens", User),
            ("/api/v1/admin/tenants/acme", User),
            ("/api/v1/admin/tenants/acme/policies", Sandboxes),
            ("/api/v1/admin/tenants/acme/policies/pol-0a1b2c3d", Sandboxes),
            ("/api/v1/worker/w-1/heartbeat", WorkerPlane),
            ("/api/v1/worker/w-1/leases/sb-0a1b2c3d/renew", WorkerPlane),
            ("/api/v1/worker/w-1/token", User),
            ("/", User),
            ("", User),
        ] {
            assert_eq!(Contract::of(path), contract, "{path}");
        }
    }
}
