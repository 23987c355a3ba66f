//! Calls to the worker of a sandbox, for a user.

use tenure_contract::worker_rpc as wire;
use tenure_engine::sandboxes::{CallError, ErrorClass, Route, SandboxError};
use tenure_rpc::{Call, Error, Target};

use super::{is_sandbox_id, workers};
use crate::access::caller::Caller;
use crate::error::{Fault, SandboxFault, SandboxFaultKind};
use crate::state::App;

/// A sandbox that can be called.
#[derive(Debug, Clone)]
pub struct Reached {
    pub target: Target,
    /// The sandbox, as calls name it.
    pub runtime: wire::TargetParams,
    /// Variables that every command is given.
    pub env: std::collections::BTreeMap<String, String>,
    request_id: std::sync::Arc<str>,
    lease: Option<wire::LeaseToken>,
}

impl Reached {
    fn new(route: Route) -> Self {
        Self {
            target: workers::target(&route.target),
            runtime: workers::runtime(&route.runtime()),
            lease: route.lease.as_ref().map(workers::lease),
            request_id: route.request_id,
            env: route.env,
        }
    }

    /// What a call carries: its id and the lease of the sandbox.
    pub fn call(&self) -> Call<'_> {
        Call { request_id: &self.request_id, lease: self.lease.as_ref() }
    }
}

/// The way to a sandbox, for a call that can be made once only.
pub async fn reach(app: &App, caller: &Caller, sandbox: &str) -> Result<Reached, Fault> {
    let part = app.sandboxes()?;
    known(sandbox)?;
    Ok(Reached::new(part.manager.route(sandbox, &caller.reach()).await?))
}

/// Calls the worker of a sandbox. The call is made again with a newer lease where that can help.
pub async fn call<T, F, R>(app: &App, caller: &Caller, sandbox: &str, calling: F) -> Result<T, Fault>
where
    F: Fn(Reached) -> R + Send + Sync,
    R: Future<Output = Result<T, Error>> + Send,
    T: Send,
{
    let part = app.sandboxes()?;
    known(sandbox)?;
    let route = part.manager.route(sandbox, &caller.reach()).await?;
    call_by(app, caller, route, calling).await
}

/// The same by a way that was found before.
pub async fn call_by<T, F, R>(app: &App, caller: &Caller, route: Route, calling: F) -> Result<T, Fault>
where
    F: Fn(Reached) -> R + Send + Sync,
    R: Future<Output = Result<T, Error>> + Send,
    T: Send,
{
    let once = |route: Route| {
        let called = calling(Reached::new(route));
        async move { called.await.map_err(workers::failed) }
    };
    Ok(app.sandboxes()?.manager.call_by(route, &caller.reach(), once).await?)
}

/// What cannot be the id of a sandbox is not looked up.
pub fn known(sandbox: &str) -> Result<(), Fault> {
    if is_sandbox_id(sandbox) {
        return Ok(());
    }
    Err(SandboxFault::fault(SandboxFaultKind::NotFound, "no such sandbox"))
}

/// A failed call, for the user.
pub fn fault(error: Error) -> Fault {
    let error: CallError = workers::failed(error);
    SandboxError::from(error).into()
}

impl From<SandboxError> for Fault {
    fn from(error: SandboxError) -> Self {
        let kind = match error.class {
            ErrorClass::NotFound => SandboxFaultKind::NotFound,
            ErrorClass::BadRequest => SandboxFaultKind::Invalid,
            ErrorClass::Forbidden => SandboxFaultKind::Denied,
            ErrorClass::Conflict => SandboxFaultKind::Conflict,
            ErrorClass::Unavailable => SandboxFaultKind::Unavailable,
            ErrorClass::Timeout => SandboxFaultKind::Timeout,
            ErrorClass::ResourceLimit => SandboxFaultKind::Limit,
            ErrorClass::Internal => SandboxFaultKind::Internal,
        };
        SandboxFault::with_reason(kind, error.message, error.reason)
    }
}
