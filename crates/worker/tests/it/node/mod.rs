//! This machine as a worker: what it holds, and how it defends that, against a control plane over HTTP.

mod adoption;
mod defence;
mod fake;
mod heartbeats;
mod lifecycle;
mod peer;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tenure_client::{WorkerCalls, WorkerToken};
use tenure_contract::worker_plane::Capacity;
use tenure_sandbox::{Provider, Spec};
use tenure_worker::node::{Face, Holdings, Lease, Node, NodeSettings, Plane, Providers, SpawnOrder, Target};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use fake::Fake;
use peer::Peer;

const WORKER: &str = "worker-a";
/// Longer than any pause of a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Waits for a condition, which is looked at every few milliseconds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "did not happen: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn lease(sandbox_id: &str, generation: i64) -> Lease {
    Lease {
        resource_id: sandbox_id.to_owned(),
        holder_id: WORKER.to_owned(),
        generation,
        expires_at: Timestamp::now().checked_add(HOUR).unwrap(),
    }
}

fn order(sandbox_id: &str) -> SpawnOrder {
    SpawnOrder {
        provider: "mock".to_owned(),
        spec: Spec::new(sandbox_id, "host"),
        owner_id: None,
        ttl: HOUR,
        prepare: None,
    }
}

fn target(sandbox_id: &str) -> Target {
    Target { sandbox_id: sandbox_id.to_owned(), ..Target::default() }
}

fn face() -> Face {
    Face::new("host-a".to_owned(), vec!["inventory".to_owned()], Capacity { vcpus: 2, ..Capacity::default() })
}

/// Renews and beats often, and has all the time for the rest.
fn settings() -> NodeSettings {
    NodeSettings {
        renewal_interval: Duration::from_millis(20),
        heartbeat_interval: Duration::from_millis(20),
        lease_ttl: HOUR,
        lease_grace: HOUR,
        ttl_grace: HOUR,
        retry_wait: (Duration::from_millis(5), Duration::from_millis(50)),
        call_timeout: Duration::from_secs(30),
        max_sandboxes: 0,
    }
}

fn node(folder: &Path, provider: Arc<dyn Provider>, peer: Option<&Peer>, settings: NodeSettings) -> Arc<Node> {
    let calls = peer.map(|peer| WorkerCalls::new(&peer.url, WORKER, WorkerToken::text("t"), None).unwrap());
    let plane = calls.map(|calls| Plane::new(calls, settings.call_timeout));
    let holdings = Holdings::open(folder, WORKER).unwrap();
    Node::new(holdings, Providers::new("process", [provider]), plane, settings)
}

/// A worker that runs beside the test.
struct Running {
    node: Arc<Node>,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl Running {
    fn start(node: Arc<Node>) -> Self {
        let stop = CancellationToken::new();
        let (own, told) = (Arc::clone(&node), stop.clone());
        let serve = |stop: CancellationToken| async move {
            stop.cancelled().await;
            Ok(())
        };
        let task = tokio::spawn(async move { own.run(&face(), serve, told).await });
        Self { node, stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// A worker with one sandbox `sb-1` that runs as `rt-1`, under a control plane that was heard of.
async fn with_sandbox(folder: &Path, fake: &Arc<Fake>, peer: &Peer, settings: NodeSettings) -> Running {
    let running = Running::start(node(folder, Arc::clone(fake) as _, Some(peer), settings));
    let knows = !peer.with(|script| script.knows_no_renewal);
    until("a heartbeat is answered", || {
        !peer.with(|script| script.beats.is_empty()) && running.node.holdings().lease_renewal() == knows
    })
    .await;
    running.node.spawn(lease("sb-1", 1), order("sb-1")).await.unwrap();
    running
}
