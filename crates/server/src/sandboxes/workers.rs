//! Calls of the manager of sandboxes, over worker RPC.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use tenure_contract::duration;
use tenure_contract::worker_rpc as wire;
use tenure_core::sandbox::placement::Worker;
use tenure_core::time::{DurationMs, Timestamp};
use tenure_engine::sandboxes::workers::{
    Archive, ArchiveBytes, CallClass, CallError, CallTerms, NewFile, RpcLease, RuntimeRef, RuntimeStatus, SetupCommand,
    SetupOutcome, SpawnOrder, Spawned, Target, Workers,
};
use tenure_rpc::{Call, Capabilities, Client, Error};

/// Workers that are called over HTTP.
#[derive(Debug, Clone)]
pub struct RpcWorkers(Client);

impl RpcWorkers {
    pub fn new(client: Client) -> Self {
        Self(client)
    }
}

/// The worker, as the client names it.
pub fn target(target: &Target) -> tenure_rpc::Target {
    tenure_rpc::Target {
        worker_id: target.worker.to_string(),
        rpc_url: target.rpc_url.to_string(),
        capabilities: Capabilities::of(target.capabilities.iter()),
    }
}

pub fn lease(lease: &RpcLease) -> wire::LeaseToken {
    wire::LeaseToken {
        resource_id: lease.resource.to_string(),
        holder_id: lease.holder.to_string(),
        generation: lease.generation,
        expires_at: jiff::Timestamp::from_millisecond(lease.expires_at.as_millis()).unwrap_or(jiff::Timestamp::MAX),
    }
}

pub fn runtime(runtime: &RuntimeRef) -> wire::TargetParams {
    wire::TargetParams {
        sandbox_id: runtime.sandbox.to_string(),
        provider: runtime.provider.clone(),
        runtime_id: runtime.runtime_id.as_deref().unwrap_or_default().to_owned(),
    }
}

/// What a failed call means for the manager.
pub fn failed(error: Error) -> CallError {
    match error {
        Error::Failed { code, message } => CallError::Refused { class: class(code), message },
        Error::Unsupported { capability } => {
            CallError::refused(CallClass::Invalid, format!("the worker lacks the capability {capability}"))
        }
        Error::Unreachable { sent, message } => CallError::Unreachable { maybe_executed: sent, message },
        Error::Unauthorized { .. } => CallError::Unreachable { maybe_executed: false, message: error.to_string() },
        Error::Content { .. } => CallError::Unreachable { maybe_executed: true, message: error.to_string() },
    }
}

fn class(code: wire::Code) -> CallClass {
    match code {
        wire::Code::Invalid => CallClass::Invalid,
        wire::Code::Draining => CallClass::Draining,
        wire::Code::LeaseStale => CallClass::LeaseStale,
        wire::Code::LeaseExpired => CallClass::LeaseExpired,
        wire::Code::ProviderUnavailable => CallClass::ProviderUnavailable,
        wire::Code::NotFound => CallClass::NotFound,
        wire::Code::Destroyed => CallClass::Destroyed,
        wire::Code::Timeout => CallClass::Timeout,
        wire::Code::Internal => CallClass::Internal,
    }
}

/// The lease of a call, as the wire has it.
fn token(terms: &CallTerms) -> Option<wire::LeaseToken> {
    terms.lease.as_ref().map(lease)
}

fn carried<'a>(terms: &'a CallTerms, lease: &'a Option<wire::LeaseToken>) -> Call<'a> {
    Call { request_id: &terms.request_id, lease: lease.as_ref() }
}

/// Waits for a call for as long as the manager does.
async fn within<T>(terms: &CallTerms, calling: impl Future<Output = Result<T, Error>> + Send) -> Result<T, CallError> {
    match tokio::time::timeout(terms.within, calling).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(CallError::Unreachable {
            maybe_executed: true,
            message: format!("the worker did not answer within {}", duration::canonical(terms.within)),
        }),
    }
}

fn millis(ms: DurationMs) -> String {
    duration::canonical(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
}

#[async_trait]
impl Workers for RpcWorkers {
    fn can_call(&self, worker: &Worker) -> bool {
        self.0.can_authenticate(&tenure_rpc::Target {
            worker_id: worker.id.to_string(),
            rpc_url: worker.capacity.rpc_url.clone().unwrap_or_default(),
            capabilities: Capabilities::of(&worker.capabilities),
        })
    }

    async fn spawn(&self, to: &Target, terms: &CallTerms, order: &SpawnOrder) -> Result<Spawned, CallError> {
        let lease = token(terms);
        let spec = &order.spec;
        let params = wire::SpawnParams {
            sandbox_id: order.sandbox.to_string(),
            image: spec.image.clone(),
            provider: spec.provider.clone(),
            memory_mb: spec.memory_mb,
            vcpus: spec.vcpus,
            owner_id: order.owner.as_deref().unwrap_or_default().to_owned(),
            ttl: millis(order.ttl_ms),
            metadata: spec.metadata.clone(),
            env: order.env.clone(),
            disk_size_mb: spec.disk_mb,
            pids_limit: spec.pids_limit,
            allowed_hosts: spec.allowed_hosts.clone(),
            read_only_root: spec.read_only_root,
            snapshot: spec.snapshot.clone().unwrap_or_default(),
        };
        let to = target(to);
        let result = within(terms, self.0.spawn(&to, carried(terms, &lease), &params)).await?;
        Ok(Spawned { runtime_id: result.runtime_id.into() })
    }

    async fn destroy(&self, to: &Target, terms: &CallTerms, what: &RuntimeRef) -> Result<(), CallError> {
        let lease = token(terms);
        let (to, params) = (target(to), runtime(what));
        within(terms, self.0.destroy(&to, carried(terms, &lease), &params)).await
    }

    async fn status(&self, to: &Target, terms: &CallTerms, what: &RuntimeRef) -> Result<RuntimeStatus, CallError> {
        let lease = token(terms);
        let (to, params) = (target(to), runtime(what));
        let result = within(terms, self.0.status(&to, carried(terms, &lease), &params)).await?;
        Ok(RuntimeStatus { state: result.state, runtime_id: result.runtime_id.map(Into::into), error: result.error })
    }

    async fn exec(
        &self,
        to: &Target,
        terms: &CallTerms,
        what: &RuntimeRef,
        command: &SetupCommand,
    ) -> Result<SetupOutcome, CallError> {
        let lease = token(terms);
        let wire::TargetParams { sandbox_id, provider, runtime_id } = runtime(what);
        let params = wire::ExecParams {
            sandbox_id,
            provider,
            runtime_id,
            command: command.command.clone(),
            timeout: duration::canonical(command.timeout),
            env: command.env.clone(),
            ..wire::ExecParams::default()
        };
        let to = target(to);
        let result = within(terms, self.0.exec(&to, carried(terms, &lease), &params)).await?;
        Ok(SetupOutcome { exit_code: result.exit_code, stdout: result.stdout, stderr: result.stderr })
    }

    async fn write_file(
        &self,
        to: &Target,
        terms: &CallTerms,
        what: &RuntimeRef,
        file: &NewFile,
    ) -> Result<(), CallError> {
        let lease = token(terms);
        let wire::TargetParams { sandbox_id, provider, runtime_id } = runtime(what);
        let place = wire::FilePathParams { sandbox_id, provider, runtime_id, path: file.path.clone() };
        let (to, mode, content) = (target(to), format!("{:04o}", file.mode), file.content.clone());
        within(terms, self.0.file_write(&to, carried(terms, &lease), &place, &mode, content.into())).await
    }

    async fn renew_lease(
        &self,
        to: &Target,
        terms: &CallTerms,
        sandbox: &str,
        ttl_ms: DurationMs,
    ) -> Result<RpcLease, CallError> {
        let lease = token(terms);
        let params = wire::RenewLeaseParams { resource_id: sandbox.to_owned(), ttl: millis(ttl_ms) };
        let to_worker = target(to);
        let token = within(terms, self.0.renew_lease(&to_worker, carried(terms, &lease), &params)).await?;
        Ok(RpcLease {
            resource: token.resource_id.into(),
            holder: token.holder_id.into(),
            generation: token.generation,
            expires_at: Timestamp::from_millis(token.expires_at.as_millisecond()),
        })
    }

    async fn shutdown(&self, to: &Target, terms: &CallTerms) -> Result<(), CallError> {
        let lease = token(terms);
        let to = target(to);
        within(terms, self.0.shutdown(&to, carried(terms, &lease))).await
    }

    async fn undrain(&self, to: &Target, terms: &CallTerms) -> Result<(), CallError> {
        let lease = token(terms);
        let to = target(to);
        within(terms, self.0.undrain(&to, carried(terms, &lease))).await
    }

    async fn snapshot(
        &self,
        to: &Target,
        terms: &CallTerms,
        what: &RuntimeRef,
        snapshot: &str,
    ) -> Result<Archive, CallError> {
        let lease = token(terms);
        let (to, params) = (target(to), snapshot_params(what, snapshot));
        let result = within(terms, self.0.snapshot(&to, carried(terms, &lease), &params)).await?;
        Ok(archive(result))
    }

    async fn restore(
        &self,
        to: &Target,
        terms: &CallTerms,
        what: &RuntimeRef,
        snapshot: &str,
    ) -> Result<(), CallError> {
        let lease = token(terms);
        let (to, params) = (target(to), snapshot_params(what, snapshot));
        within(terms, self.0.restore(&to, carried(terms, &lease), &params)).await.map(drop)
    }

    async fn get_snapshot(&self, to: &Target, terms: &CallTerms, snapshot: &str) -> Result<ArchiveBytes, CallError> {
        let lease = token(terms);
        let to = target(to);
        let found = within(terms, self.0.get_snapshot(&to, carried(terms, &lease), snapshot)).await?;
        let pieces = stream::unfold(found.content, |mut content| async move {
            let piece = content.next().await?;
            Some((piece.map_err(std::io::Error::other), content))
        });
        Ok(Box::pin(pieces))
    }

    async fn put_snapshot(
        &self,
        to: &Target,
        terms: &CallTerms,
        snapshot: &str,
        size_bytes: u64,
        content: ArchiveBytes,
    ) -> Result<Archive, CallError> {
        let lease = token(terms);
        let to = target(to);
        let putting = self.0.put_snapshot(&to, carried(terms, &lease), snapshot, Some(size_bytes), content);
        Ok(archive(within(terms, putting).await?))
    }
}

fn snapshot_params(what: &RuntimeRef, snapshot: &str) -> wire::SnapshotParams {
    let wire::TargetParams { sandbox_id, provider, runtime_id } = runtime(what);
    wire::SnapshotParams { sandbox_id, provider, runtime_id, snapshot_id: snapshot.to_owned() }
}

fn archive(result: wire::SnapshotResult) -> Archive {
    Archive { size_bytes: result.size_bytes, sha256: result.sha256 }
}

/// The shared form, for the manager.
pub fn shared(client: Client) -> Arc<dyn Workers> {
    Arc::new(RpcWorkers::new(client))
}
