//! A worker's listener for `tenure bench sandbox`.

use std::sync::Arc;

use anyhow::Context;
use tempfile::TempDir;
use tenure_auth::{Secret, WorkerAuth};
use tenure_bench::sandbox::RpcTarget;
use tenure_sandbox::Provider;
use tenure_worker::node::{Holdings, Node, NodeSettings, Providers};
use tenure_worker::rpc::{self, Credentials, Rpc, RpcSettings};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

const WORKER: &str = "bench";

/// A listener on loopback, with its state in a folder of its own. It ends when dropped.
#[derive(Debug)]
pub struct Listener {
    served: AbortHandle,
    _folder: TempDir,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.served.abort();
    }
}

pub async fn listen(provider: &Arc<dyn Provider>, image: &str) -> anyhow::Result<(RpcTarget, Listener)> {
    let folder = TempDir::with_prefix("tenure-bench-")?;
    let token = Secret::random();
    let name = provider.name();
    let holdings = Holdings::open(&folder.path().join("node"), WORKER).context("the worker has no folder")?;
    let providers = Providers::new(name, [Arc::clone(provider)]);
    let node = Node::new(holdings, providers, None, NodeSettings::default());
    let auth = WorkerAuth { shared: Secret::new(token.reveal()), ..WorkerAuth::default() };
    let rpc = Rpc::new(node, Arc::new(Credentials::new(auth)), None, RpcSettings::new(folder.path()))?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let served = tokio::spawn(rpc::run(listener, rpc, std::future::pending())).abort_handle();
    let target = RpcTarget::new(&url, token.reveal(), WORKER, name, image)?;
    Ok((target, Listener { served, _folder: folder }))
}
