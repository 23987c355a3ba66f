use std::time::Duration;

use reqwest::{Method, Url};
use tenure_contract::duration;
use tenure_contract::sandboxes::{
    self as types, ExecAnswer, ExecRequest, ExtendRequest, RestoreRequest, SandboxState, SandboxStats, Snapshot,
    SnapshotWrite,
};

use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::filter;

/// Between two looks at a sandbox that is being created: grows from the first to the second.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LAST: Duration = Duration::from_secs(1);
/// Beyond the time-out of a command: what its worker takes to end it and to answer.
const EXEC_MARGIN: Duration = Duration::from_secs(30);
/// For a command without a time-out of its own. The server has a limit, which is shorter unless it was raised.
const EXEC_LONGEST: Duration = Duration::from_secs(24 * 3600);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(11 * 60);

/// One sandbox. It lives until it is destroyed or its time is over, and not as long as this value.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub(super) client: Client,
    info: types::Sandbox,
}

impl Sandbox {
    pub(super) fn new(client: Client, info: types::Sandbox) -> Self {
        Self { client, info }
    }

    pub fn id(&self) -> &str {
        &self.info.id
    }

    /// As it was when it was last asked about.
    pub fn info(&self) -> &types::Sandbox {
        &self.info
    }

    /// Asks the server, which asks the worker.
    pub async fn refresh(&mut self) -> Result<&types::Sandbox, ClientError> {
        self.info = self.client.call(Call::new(Method::GET, self.url_of(&[]))).await?;
        Ok(&self.info)
    }

    /// Waits while it is `creating`. An error unless it then runs.
    pub async fn wait_until_running(&mut self, timeout: Duration) -> Result<&types::Sandbox, ClientError> {
        let until = tokio::time::Instant::now() + timeout;
        let mut pause = LOOK_FIRST;
        while self.info.state == SandboxState::Creating && tokio::time::Instant::now() < until {
            tokio::time::sleep_until((tokio::time::Instant::now() + pause).min(until)).await;
            pause = (pause * 3 / 2).min(LOOK_LAST);
            match self.refresh().await {
                Ok(_) => {}
                // An outage that is shorter than the time given.
                Err(error) if error.is_temporary() && tokio::time::Instant::now() < until => {}
                Err(error) => return Err(error),
            }
        }
        match self.info.state {
            SandboxState::Running | SandboxState::Idle => Ok(&self.info),
            _ => Err(ClientError::NotRunning {
                sandbox_id: self.info.id.clone(),
                state: self.info.state.to_string(),
                reason: self.info.reason.clone(),
            }),
        }
    }

    /// Runs a shell command to its end. A non-zero exit code is not an error.
    pub async fn run(&self, command: impl Into<String>) -> Result<ExecAnswer, ClientError> {
        self.exec(&ExecRequest { command: command.into(), ..ExecRequest::default() }).await
    }

    /// Runs a command to its end. Up to 8 MiB of each output are returned; [`stream`](Self::stream) has no limit.
    pub async fn exec(&self, request: &ExecRequest) -> Result<ExecAnswer, ClientError> {
        let own = request.timeout.as_deref().and_then(duration::parse).filter(|timeout| !timeout.is_zero());
        let timeout = own.map_or(EXEC_LONGEST, |timeout| timeout.saturating_add(EXEC_MARGIN));
        let request = ExecRequest { stream: false, ..request.clone() };
        self.client.call(Call::new(Method::POST, self.url_of(&["exec"])).json(&request)?.timeout(timeout)).await
    }

    /// The last lines that the sandbox printed.
    pub async fn logs(&self, lines: Option<u32>) -> Result<Vec<String>, ClientError> {
        let mut url = self.url_of(&["logs"]);
        filter::write(&mut url, &[("lines", &filter::text(&lines))]);
        self.client.call(Call::new(Method::GET, url)).await
    }

    pub async fn stats(&self) -> Result<SandboxStats, ClientError> {
        self.client.call(Call::new(Method::GET, self.url_of(&["stats"]))).await
    }

    /// Lets it live for `ttl` from now on.
    pub async fn extend(&mut self, ttl: Duration) -> Result<&types::Sandbox, ClientError> {
        let request = ExtendRequest { ttl: duration::canonical(ttl) };
        let call = Call::new(Method::POST, self.url_of(&["extend"])).json(&request)?;
        self.info = self.client.call(call.repeatable(true)).await?;
        Ok(&self.info)
    }

    /// Keeps its files at the control plane.
    pub async fn snapshot(&self, name: Option<&str>) -> Result<Snapshot, ClientError> {
        let request = SnapshotWrite { name: name.map(ToOwned::to_owned) };
        let call = Call::new(Method::POST, self.url_of(&["snapshots"])).json(&request)?;
        self.client.call(call.timeout(SNAPSHOT_TIMEOUT)).await
    }

    /// The snapshots that were made of it.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, ClientError> {
        self.client.call(Call::new(Method::GET, self.url_of(&["snapshots"]))).await
    }

    /// Stops its processes and replaces its files by those of a snapshot.
    pub async fn restore(&mut self, snapshot_id: &str) -> Result<&types::Sandbox, ClientError> {
        let request = RestoreRequest { snapshot: snapshot_id.to_owned() };
        let call = Call::new(Method::POST, self.url_of(&["restore"])).json(&request)?;
        self.info = self.client.call(call.timeout(SNAPSHOT_TIMEOUT)).await?;
        Ok(&self.info)
    }

    /// The address of a port, for a browser. Without a preview domain that is [`proxy_url`](Self::proxy_url).
    pub fn url(&self, port: u16) -> String {
        match self.info.preview_domain.as_deref() {
            None => self.proxy_url(port).into(),
            Some(domain) => format!("{}://{port}-{}.{domain}/", self.client.inner.server.scheme(), self.info.id),
        }
    }

    /// The address of a port below the API, for requests with the key of this client.
    pub fn proxy_url(&self, port: u16) -> Url {
        self.url_of(&["proxy", &port.to_string(), ""])
    }

    /// A request to a port with the key of this client. The key does not reach the sandbox.
    pub fn request(&self, method: Method, port: u16, path: &str) -> reqwest::RequestBuilder {
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let port = port.to_string();
        let mut segments = vec!["proxy", &port];
        segments.extend(path.trim_start_matches('/').split('/'));
        let mut url = self.url_of(&segments);
        url.set_query(query);
        self.client.request(method, url)
    }

    /// Destroys it. Returns `destroyed`, or `destroying` if its worker cannot be reached now.
    pub async fn destroy(&self) -> Result<String, ClientError> {
        self.client.sandboxes().destroy(&self.info.id).await
    }

    pub(super) fn url_of(&self, segments: &[&str]) -> Url {
        self.client.url(&[&["sandboxes", self.info.id.as_str()], segments].concat())
    }
}
