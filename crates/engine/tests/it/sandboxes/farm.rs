//! Workers in this process: they keep runtimes, leases and files as real ones do, and fail, hang or lose answers when told.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tenure_core::sandbox::Held;
use tenure_core::sandbox::placement::{Capacity, Worker};
use tenure_core::time::{DurationMs, Timestamp};
use tenure_engine::Engine;
use tenure_engine::sandboxes::workers::{
    Archive, ArchiveBytes, NewFile, RuntimeStatus, SetupCommand, SetupOutcome, SpawnOrder, Spawned,
};
use tenure_engine::sandboxes::{
    BeatReply, CallClass, CallError, CallTerms, RpcLease, RuntimeRef, Sandboxes, Target, Workers,
};
use tenure_engine::store::Beat;
use tokio::sync::{Notify, watch};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Spawn,
    Destroy,
    Status,
    Exec,
    WriteFile,
    Renew,
    Shutdown,
    Undrain,
    Snapshot,
    Restore,
    GetSnapshot,
    PutSnapshot,
}

#[derive(Debug, Clone)]
pub enum Fault {
    Refuse(CallClass),
    /// Not delivered.
    Unreachable,
    /// Delivered and run; the answer is lost.
    LoseAnswer,
    /// Stands still before it is run, until released.
    HangBefore,
    /// Stands still after it was run, until released.
    HangAfter,
    /// Stands still after it was run, until released; then the answer is lost.
    HangAndLose,
}

#[derive(Debug, Clone)]
pub struct Seen {
    pub call: Call,
    pub worker: String,
    pub request_id: Arc<str>,
    pub lease: Option<RpcLease>,
}

#[derive(Debug, Clone, Default)]
pub struct Runtime {
    pub id: Arc<str>,
    pub state: String,
    pub env: std::collections::BTreeMap<String, String>,
    pub commands: Vec<String>,
    /// Variables of each command.
    pub given: Vec<std::collections::BTreeMap<String, String>>,
    pub files: HashMap<String, Vec<u8>>,
    pub ttl_ms: DurationMs,
}

#[derive(Debug, Default)]
pub struct Node {
    pub runtimes: HashMap<String, Runtime>,
    pub generations: HashMap<String, i64>,
    pub archives: HashMap<String, Vec<u8>>,
    pub is_draining: bool,
    pub capabilities: Vec<String>,
    pub capacity: Capacity,
    pub status: String,
    faults: HashMap<Call, VecDeque<Fault>>,
    seq: u64,
    /// Every runtime that was ever made, by sandbox.
    pub made: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Farm {
    nodes: Mutex<HashMap<String, Node>>,
    pub seen: Mutex<Vec<Seen>>,
    plane: watch::Sender<Option<(Engine, Sandboxes)>>,
    release: Notify,
    /// How many calls stand still.
    pub hanging: AtomicU64,
    count: AtomicU64,
    /// What commands answer.
    pub says: Mutex<Option<SetupOutcome>>,
    /// Corrupts archives on their way to the control plane.
    pub corrupts: std::sync::atomic::AtomicBool,
    /// A worker for which there is no credential.
    pub locked_out: Mutex<Vec<String>>,
}

pub const CAPABILITIES: [&str; 8] =
    ["remote_worker", "heartbeat", "inventory", "lease_renewal", "rpc_replay", "undrain", "snapshots", "rpc_code"];

impl Farm {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn attach(&self, engine: &Engine, sandboxes: &Sandboxes) {
        self.plane.send_replace(Some((engine.clone(), sandboxes.clone())));
    }

    /// The control plane is gone.
    pub fn detach(&self) {
        self.plane.send_replace(None);
    }

    /// A control plane calls its workers as soon as it runs, which can be before it is attached.
    async fn plane(&self) -> (Engine, Sandboxes) {
        let mut seen = self.plane.subscribe();
        let plane = seen.wait_for(Option::is_some).await.unwrap();
        plane.clone().unwrap()
    }

    pub fn with<T>(&self, worker: &str, f: impl FnOnce(&mut Node) -> T) -> T {
        let mut nodes = self.nodes.lock().unwrap();
        f(nodes.entry(worker.to_owned()).or_insert_with(|| Node {
            capabilities: CAPABILITIES.iter().map(|word| (*word).to_owned()).collect(),
            capacity: Capacity { rpc_url: Some(format!("http://{worker}")), ..Capacity::default() },
            status: "online".to_owned(),
            ..Node::default()
        }))
    }

    pub fn fail(&self, worker: &str, call: Call, faults: impl IntoIterator<Item = Fault>) {
        self.with(worker, |node| node.faults.entry(call).or_default().extend(faults));
    }

    /// What stands still goes on.
    pub fn release(&self) {
        self.release.notify_waiters();
    }

    pub fn calls(&self, call: Call) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.call == call).cloned().collect()
    }

    /// Runtimes of all workers: worker and sandbox.
    pub fn runtimes(&self) -> Vec<(String, String)> {
        let nodes = self.nodes.lock().unwrap();
        let mut all: Vec<_> = nodes
            .iter()
            .flat_map(|(worker, node)| node.runtimes.keys().map(|id| (worker.clone(), id.clone())))
            .collect();
        all.sort();
        all
    }

    /// How many runtimes were ever made.
    pub fn made(&self) -> usize {
        self.nodes.lock().unwrap().values().map(|node| node.made.len()).sum()
    }

    /// A heartbeat with the inventory. Orphans are destroyed and wishes followed, as a worker does.
    pub async fn beat(&self, worker: &str) -> BeatReply {
        let beat = self.with(worker, |node| {
            node.seq += 1;
            let held = node.runtimes.iter().map(|(sandbox, runtime)| Held {
                sandbox_id: sandbox.as_str().into(),
                runtime_id: Arc::clone(&runtime.id),
                provider: "mock".to_owned(),
                state: runtime.state.clone(),
                generation: node.generations.get(sandbox).copied().unwrap_or_default(),
                since: Timestamp::MIN,
                orphan_beats: 0,
            });
            Beat {
                worker: worker.into(),
                hostname: "h".to_owned(),
                status: if node.is_draining && node.status == "online" {
                    "draining".to_owned()
                } else {
                    node.status.clone()
                },
                providers: vec!["mock".to_owned()],
                capabilities: node.capabilities.clone(),
                capacity: node.capacity.clone(),
                boot_id: Some("boot".to_owned()),
                seq: Some(node.seq),
                inventory: Some(held.collect()),
            }
        });
        let reply = self.plane().await.1.heartbeat(&beat).await.unwrap();
        self.with(worker, |node| {
            for orphan in &reply.orphans {
                node.runtimes.retain(|_, runtime| runtime.id != orphan.runtime_id);
            }
            if let Some(desired) = &reply.desired_status {
                node.is_draining = desired == "draining";
            }
        });
        reply
    }

    async fn enter(&self, target: &Target, terms: &CallTerms, call: Call) -> Result<Option<Fault>, CallError> {
        let worker = target.worker.to_string();
        let seen = Seen {
            call,
            worker: worker.clone(),
            request_id: Arc::clone(&terms.request_id),
            lease: terms.lease.clone(),
        };
        self.seen.lock().unwrap().push(seen);
        let fault = self.with(&worker, |node| node.faults.get_mut(&call).and_then(VecDeque::pop_front));
        match &fault {
            Some(Fault::Refuse(class)) => Err(CallError::refused(*class, format!("{} says the test", class.as_str()))),
            Some(Fault::Unreachable) => {
                Err(CallError::Unreachable { maybe_executed: false, message: "connection refused".to_owned() })
            }
            Some(Fault::HangBefore) => {
                self.hang().await;
                Ok(None)
            }
            _ => Ok(fault),
        }
    }

    async fn hang(&self) {
        struct Count<'a>(&'a AtomicU64);
        impl Drop for Count<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let released = self.release.notified();
        tokio::pin!(released);
        released.as_mut().enable();
        self.hanging.fetch_add(1, Ordering::SeqCst);
        let _count = Count(&self.hanging);
        released.await;
    }

    async fn leave<T>(&self, fault: Option<Fault>, result: T) -> Result<T, CallError> {
        match fault {
            Some(Fault::LoseAnswer) => {
                Err(CallError::Unreachable { maybe_executed: true, message: "the answer was lost".to_owned() })
            }
            Some(Fault::HangAfter) => {
                self.hang().await;
                Ok(result)
            }
            Some(Fault::HangAndLose) => {
                self.hang().await;
                Err(CallError::Unreachable { maybe_executed: true, message: "the connection broke".to_owned() })
            }
            _ => Ok(result),
        }
    }

    /// The checks of a worker on a lease.
    async fn check(&self, target: &Target, terms: &CallTerms, sandbox: &str) -> Result<(), CallError> {
        let lease = terms.lease.as_ref().ok_or_else(|| CallError::refused(CallClass::Invalid, "lease is missing"))?;
        let now = self.plane().await.0.now().await.unwrap();
        let highest = self.with(&target.worker, |node| node.generations.get(sandbox).copied().unwrap_or_default());
        if lease.holder != target.worker || &*lease.resource != sandbox || lease.generation < highest {
            return Err(CallError::refused(CallClass::LeaseStale, "the lease is stale"));
        }
        if lease.expires_at <= now {
            return Err(CallError::refused(CallClass::LeaseExpired, "the lease has expired"));
        }
        self.with(&target.worker, |node| node.generations.insert(sandbox.to_owned(), lease.generation));
        Ok(())
    }

    fn on<T>(&self, target: &Target, runtime: &RuntimeRef, f: impl FnOnce(&mut Runtime) -> T) -> Result<T, CallError> {
        self.with(&target.worker, |node| {
            let found = node.runtimes.get_mut(&*runtime.sandbox);
            let found = found.filter(|found| runtime.runtime_id.as_ref().is_none_or(|id| *id == found.id));
            found.map(f).ok_or_else(|| CallError::refused(CallClass::NotFound, "the runtime is unknown"))
        })
    }
}

#[async_trait]
impl Workers for Farm {
    fn can_call(&self, worker: &Worker) -> bool {
        !self.locked_out.lock().unwrap().iter().any(|locked| **locked == *worker.id)
    }

    async fn spawn(&self, target: &Target, terms: &CallTerms, order: &SpawnOrder) -> Result<Spawned, CallError> {
        let fault = self.enter(target, terms, Call::Spawn).await?;
        if self.with(&target.worker, |node| node.is_draining) {
            return Err(CallError::refused(CallClass::Draining, "the worker drains"));
        }
        self.check(target, terms, &order.sandbox).await?;
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let runtime_id = self.with(&target.worker, |node| {
            if let Some(known) = node.runtimes.get(&*order.sandbox) {
                return Arc::clone(&known.id);
            }
            node.made.push(order.sandbox.to_string());
            let files = order.spec.snapshot.as_ref().map(|snapshot| {
                let archive = node.archives.get(snapshot).cloned().unwrap_or_default();
                HashMap::from([("/data".to_owned(), archive)])
            });
            let runtime = Runtime {
                id: format!("rt-{number}").into(),
                state: "running".to_owned(),
                env: order.env.clone(),
                files: files.unwrap_or_default(),
                ttl_ms: order.ttl_ms,
                ..Runtime::default()
            };
            let id = Arc::clone(&runtime.id);
            node.runtimes.insert(order.sandbox.to_string(), runtime);
            id
        });
        self.leave(fault, Spawned { runtime_id }).await
    }

    async fn destroy(&self, target: &Target, terms: &CallTerms, runtime: &RuntimeRef) -> Result<(), CallError> {
        let fault = self.enter(target, terms, Call::Destroy).await?;
        self.check(target, terms, &runtime.sandbox).await?;
        self.with(&target.worker, |node| node.runtimes.remove(&*runtime.sandbox));
        self.leave(fault, ()).await
    }

    async fn status(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
    ) -> Result<RuntimeStatus, CallError> {
        let fault = self.enter(target, terms, Call::Status).await?;
        let status = self.on(target, runtime, |runtime| RuntimeStatus {
            state: runtime.state.clone(),
            runtime_id: None,
            error: None,
        })?;
        self.leave(fault, status).await
    }

    async fn exec(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
        command: &SetupCommand,
    ) -> Result<SetupOutcome, CallError> {
        let fault = self.enter(target, terms, Call::Exec).await?;
        self.on(target, runtime, |runtime| {
            runtime.commands.push(command.command.clone());
            runtime.given.push(command.env.clone());
        })?;
        let says = self.says.lock().unwrap().clone();
        if let Some(says) = says {
            return self.leave(fault, says).await;
        }
        let exit_code = i32::from(command.command == "false");
        self.leave(fault, SetupOutcome { exit_code, stderr: "went wrong".to_owned(), ..SetupOutcome::default() }).await
    }

    async fn write_file(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
        file: &NewFile,
    ) -> Result<(), CallError> {
        let fault = self.enter(target, terms, Call::WriteFile).await?;
        self.on(target, runtime, |runtime| runtime.files.insert(file.path.clone(), file.content.clone()))?;
        self.leave(fault, ()).await
    }

    async fn renew_lease(
        &self,
        target: &Target,
        terms: &CallTerms,
        sandbox: &str,
        ttl_ms: DurationMs,
    ) -> Result<RpcLease, CallError> {
        let fault = self.enter(target, terms, Call::Renew).await?;
        self.check(target, terms, sandbox).await?;
        let renewed = self.plane().await.1.renew(&target.worker, sandbox, ttl_ms).await;
        let renewed = renewed.map_err(|error| CallError::refused(CallClass::LeaseStale, error.to_string()))?;
        self.with(&target.worker, |node| {
            node.generations.insert(sandbox.to_owned(), renewed.lease.generation);
            if let Some(runtime) = node.runtimes.get_mut(sandbox)
                && runtime.state == "unhealthy"
            {
                runtime.state = "running".to_owned();
            }
        });
        self.leave(fault, renewed.lease).await
    }

    async fn shutdown(&self, target: &Target, terms: &CallTerms) -> Result<(), CallError> {
        let fault = self.enter(target, terms, Call::Shutdown).await?;
        self.with(&target.worker, |node| node.is_draining = true);
        self.leave(fault, ()).await
    }

    async fn undrain(&self, target: &Target, terms: &CallTerms) -> Result<(), CallError> {
        let fault = self.enter(target, terms, Call::Undrain).await?;
        self.with(&target.worker, |node| node.is_draining = false);
        self.leave(fault, ()).await
    }

    async fn snapshot(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
        snapshot: &str,
    ) -> Result<Archive, CallError> {
        let fault = self.enter(target, terms, Call::Snapshot).await?;
        self.check(target, terms, &runtime.sandbox).await?;
        let content = self.on(target, runtime, |runtime| runtime.files.get("/data").cloned().unwrap_or_default())?;
        let archive = archive(&content);
        self.with(&target.worker, |node| node.archives.insert(snapshot.to_owned(), content));
        self.leave(fault, archive).await
    }

    async fn restore(
        &self,
        target: &Target,
        terms: &CallTerms,
        runtime: &RuntimeRef,
        snapshot: &str,
    ) -> Result<(), CallError> {
        let fault = self.enter(target, terms, Call::Restore).await?;
        self.check(target, terms, &runtime.sandbox).await?;
        let content = self.with(&target.worker, |node| node.archives.get(snapshot).cloned());
        let content = content.ok_or_else(|| CallError::refused(CallClass::NotFound, "no such snapshot"))?;
        self.on(target, runtime, |runtime| runtime.files.insert("/data".to_owned(), content))?;
        self.leave(fault, ()).await
    }

    async fn get_snapshot(
        &self,
        target: &Target,
        terms: &CallTerms,
        snapshot: &str,
    ) -> Result<ArchiveBytes, CallError> {
        let fault = self.enter(target, terms, Call::GetSnapshot).await?;
        let mut content = self.with(&target.worker, |node| node.archives.get(snapshot).cloned()).unwrap_or_default();
        if self.corrupts.load(Ordering::SeqCst) {
            content[0] ^= 1;
        }
        let parts: Vec<_> = content.chunks(300_000).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
        let stream: ArchiveBytes = Box::pin(futures_util::stream::iter(parts));
        self.leave(fault, stream).await
    }

    async fn put_snapshot(
        &self,
        target: &Target,
        terms: &CallTerms,
        snapshot: &str,
        size_bytes: u64,
        mut content: ArchiveBytes,
    ) -> Result<Archive, CallError> {
        let fault = self.enter(target, terms, Call::PutSnapshot).await?;
        let mut all = Vec::new();
        while let Some(part) = content.next().await {
            all.extend_from_slice(&part.map_err(|error| CallError::refused(CallClass::Invalid, error.to_string()))?);
        }
        assert_eq!(all.len() as u64, size_bytes);
        let archive = archive(&all);
        self.with(&target.worker, |node| node.archives.insert(snapshot.to_owned(), all));
        self.leave(fault, archive).await
    }
}

pub fn archive(content: &[u8]) -> Archive {
    let sha256 = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    Archive { size_bytes: content.len() as u64, sha256 }
}
