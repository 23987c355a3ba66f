//! One attempt in its sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_bundle::{Archive, FileReader, Language};
use tenure_client::TaskError;
use tenure_client::dispatch::{Completion, Task};
use tenure_sandbox::{
    Command, Control, Egress, ErrorKind, Event, Execution, Exit, FileWrite, GATEWAY_PORT, OutputStream, Provider,
    RuntimeId, Signal, Spec,
};
use tokio::runtime::Handle;

use super::Site;
use super::fetch::{ObjectStore, Told, bad, said};
use crate::command::{LastBytes, failed, feed};

/// More on standard output is not a completion.
const STDOUT_BYTES: usize = 1 << 20;
const STDERR_BYTES: usize = 1 << 20;
/// As much of standard error as is reported.
const REPORTED_BYTES: usize = 16 << 10;
const BUCKET: &str = "tenure";
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The worker ends code this much before the control plane gives the attempt up, so that its report says why.
const BEFORE_DEADLINE: Duration = Duration::from_secs(2);
const SHORTEST: Duration = Duration::from_millis(500);

/// A sandbox that is removed when it is dropped.
struct Sandbox {
    id: Option<RuntimeId>,
    provider: Arc<dyn Provider>,
}

impl Sandbox {
    async fn destroy(mut self) {
        if let Some(id) = self.id.take() {
            remove(&*self.provider, &id).await;
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and the sandbox ends with it.
        if let (Some(id), Ok(handle)) = (self.id.take(), Handle::try_current()) {
            let provider = Arc::clone(&self.provider);
            handle.spawn(async move { remove(&*provider, &id).await });
        }
    }
}

async fn remove(provider: &dyn Provider, id: &RuntimeId) {
    if let Err(error) = provider.destroy(id).await {
        tracing::warn!(runtime.id = %id, %error, "cannot remove a sandbox");
    }
}

enum Ended {
    Exited { exit: Exit, stdout: Vec<u8>, stderr: LastBytes },
    TooMuch,
    TimedOut,
    Lost(TaskError),
}

impl Site {
    pub(super) async fn run(&self, task: &Task) -> Result<Completion, TaskError> {
        let began = Instant::now();
        let told = Told::of(task)?;
        let archive = self.fetch(task, &told).await?;
        let entrypoint = archive.manifest().entrypoint.clone();
        let sandbox = self.spawn(&told.object_store).await?;
        let outcome = match &sandbox.id {
            Some(id) => self.run_in(id, task, &told, archive, &entrypoint, began).await,
            None => Err(TaskError::infrastructure("the sandbox was not created")),
        };
        sandbox.destroy().await;
        outcome
    }

    async fn spawn(&self, store: &ObjectStore) -> Result<Sandbox, TaskError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut spec = Spec {
            limits: self.sandbox.limits,
            die_with_parent: true,
            metadata: BTreeMap::from([("tenure.use".to_owned(), "bundle".to_owned())]),
            ..Spec::new(format!("bundle-{}-{number}", std::process::id()), &*self.sandbox.image)
        };
        if self.has_gateway() {
            spec.egress = Egress::Allow(store.endpoint_url.as_deref().and_then(authority).into_iter().collect());
            spec.gateway = Some(self.gateway.address());
        }
        let runtime = self.provider.spawn(spec).await.map_err(|error| failed("the sandbox was not created", &error))?;
        Ok(Sandbox { id: Some(runtime.id), provider: Arc::clone(&self.provider) })
    }

    /// Without a network of its own a sandbox reaches the gateway as any process does: for development only.
    fn has_gateway(&self) -> bool {
        self.provider.capabilities().egress_allow_list
    }

    fn gateway_url(&self) -> String {
        let port = if self.has_gateway() { GATEWAY_PORT } else { self.gateway.address().port() };
        format!("http://127.0.0.1:{port}")
    }

    async fn run_in(
        &self,
        id: &RuntimeId,
        task: &Task,
        told: &Told,
        archive: Archive<FileReader>,
        entrypoint: &str,
        began: Instant,
    ) -> Result<Completion, TaskError> {
        self.unpack(id, archive).await?;
        let program = self.find(id, told.runtime).await?;
        let payload = Bytes::copy_from_slice(task.invocation()?.as_str().as_bytes());
        let timeout = task.raw().timeout_seconds.map(|seconds| {
            let all = Duration::from_secs(seconds.into());
            all.saturating_sub(began.elapsed()).saturating_sub(BEFORE_DEADLINE.min(all / 4)).max(SHORTEST)
        });
        let command = Command {
            env: self.environment(task, told),
            timeout,
            stdin: true,
            bare_env: true,
            ..Command::argv([program, format!("./{entrypoint}")])
        };
        let execution = self.provider.exec(id, command).await;
        let execution = execution.map_err(|error| failed("the code was not started", &error))?;

        // No await between the start and what makes sure of the end.
        let control = execution.control();
        let on_lost = Arc::clone(&control);
        let _lost = task.on_lease_lost(move || on_lost.kill());
        let input = tokio::spawn(feed(Arc::clone(&control), payload));
        let ended = supervise(execution, &*control, self.kill_grace, task).await;
        input.abort();
        match ended {
            Ended::Exited { exit, stdout, stderr } => judge(&exit, &stdout, &stderr, task),
            Ended::TooMuch => {
                let message = format!("standard output has more than {STDOUT_BYTES} bytes: write data to an output");
                Err(TaskError::permanent("USER_CODE", message))
            }
            Ended::TimedOut => {
                let seconds = task.raw().timeout_seconds.unwrap_or_default();
                let message = format!("the code ran into `timeout_seconds` ({seconds}) and was killed");
                Err(TaskError::retryable("TIMEOUT", message))
            }
            Ended::Lost(error) => Err(error),
        }
    }

    /// Writes every file below `/workspace`, each compared with the manifest.
    async fn unpack(&self, id: &RuntimeId, archive: Archive<FileReader>) -> Result<(), TaskError> {
        let archive = Arc::new(archive);
        for index in 0.. {
            let own = Arc::clone(&archive);
            let read = tokio::task::spawn_blocking(move || own.file(index)).await;
            let read = read.map_err(|error| TaskError::infrastructure(format!("unpacking ended: {error}")))?;
            let Some(file) = read.map_err(bad)? else { break };
            let mode = if file.executable { 0o755 } else { 0o644 };
            let write = FileWrite { path: file.path, mode, content: Box::pin(std::io::Cursor::new(file.content)) };
            let written = self.provider.write_file(id, write).await;
            written.map_err(|error| failed("the bundle was not unpacked", &error))?;
        }
        Ok(())
    }

    /// The program that runs a bundle. The image says which one it has.
    async fn find(&self, id: &RuntimeId, language: Language) -> Result<String, TaskError> {
        if let Some(known) = self.program(language) {
            return Ok(known);
        }
        let line = match language {
            Language::Node => "command -v node",
            Language::Python => "command -v python || command -v python3",
        };
        let command = Command { bare_env: true, ..Command::shell(line, &[]).timeout(PROBE_TIMEOUT) };
        let looked = async { self.provider.exec(id, command).await?.output(4096).await };
        let output = looked.await.map_err(|error| failed("the code was not started", &error))?;
        let program = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.exit().code != 0 || program.is_empty() {
            let (name, image) = (language.as_str(), &self.sandbox.image);
            let message = format!(
                "the image `{image}` of this worker's sandboxes has no `{name}`: install it, or choose another image"
            );
            return Err(TaskError::infrastructure(message));
        }
        self.found(language, &program);
        Ok(program)
    }

    /// All variables of the code but `PATH`. Those of Tenure take precedence.
    fn environment(&self, task: &Task, told: &Told) -> BTreeMap<String, String> {
        let mut variables = told.env.clone();
        variables.remove("PATH");
        let own = self.gateway_url();
        let store = &told.object_store;
        let endpoint = store.endpoint_url.clone().unwrap_or_else(|| own.clone());
        let mut set = |name: &str, value: String| drop(variables.insert(name.to_owned(), value));
        set("TRACE_TASK_CAPABILITY_TOKEN", task.capability_token());
        set("TRACE_DISPATCHER_URL", own.clone());
        set("TRACE_QUERY_SERVICE_URL", own.clone());
        set("TRACE_OBJECT_STORE_ENDPOINT", endpoint);
        set("TRACE_OBJECT_STORE_BUCKET", store.bucket.clone().unwrap_or_else(|| BUCKET.to_owned()));
        if store.endpoint_url.is_some() && self.has_gateway() {
            // An object store elsewhere is reached through the proxy of the sandbox, which knows no other host.
            set("HTTPS_PROXY", own.clone());
            set("HTTP_PROXY", own);
            set("NO_PROXY", "127.0.0.1".to_owned());
        }
        variables
    }
}

/// The host and port of an address.
fn authority(url: &str) -> Option<String> {
    let url = reqwest::Url::parse(url).ok()?;
    Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
}

/// Reads output until the code ends, and makes it end when it has to.
async fn supervise(mut execution: Execution, control: &dyn Control, kill_grace: Duration, task: &Task) -> Ended {
    let (mut stdout, mut stderr) = (Vec::new(), LastBytes::new(STDERR_BYTES));
    let mut kill_at = None;
    loop {
        let kill = async {
            match kill_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = execution.next() => match event {
                Some(Event::Output(chunk)) => match chunk.stream {
                    OutputStream::Stdout if stdout.len() + chunk.bytes.len() > STDOUT_BYTES => return Ended::TooMuch,
                    OutputStream::Stdout => stdout.extend_from_slice(&chunk.bytes),
                    OutputStream::Stderr => stderr.push(&chunk.bytes),
                },
                Some(Event::Exited(exit)) => return Ended::Exited { exit, stdout, stderr },
                Some(Event::Failed(error)) if error.kind() == ErrorKind::Timeout => return Ended::TimedOut,
                Some(Event::Failed(error)) => return Ended::Lost(failed("the sandbox was lost", &error)),
                None => return Ended::Lost(TaskError::infrastructure("the sandbox was lost")),
            },
            () = task.cancellation().cancelled(), if kill_at.is_none() => {
                if let Err(error) = control.signal(Signal::Term).await {
                    tracing::warn!(task.id = task.task_id(), %error, "cannot signal code in its sandbox");
                }
                kill_at = Some(tokio::time::Instant::now() + kill_grace);
            }
            () = kill => {
                control.kill();
                // It cannot refuse. Should its end be slow to come, there is nothing more to send.
                kill_at = Some(tokio::time::Instant::now() + Duration::from_secs(3600));
            }
        }
    }
}

fn judge(exit: &Exit, stdout: &[u8], stderr: &LastBytes, task: &Task) -> Result<Completion, TaskError> {
    let with_stderr = |error: TaskError| {
        let text = stderr.text();
        let from = text.len().saturating_sub(REPORTED_BYTES);
        let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        if text.is_empty() { error } else { error.with_stack(&text[from..]) }
    };
    if exit.code == 0 {
        let completion = said(stdout).map(Completion::of).map_err(with_stderr)?;
        // The code has said how it ended, whatever it was told meanwhile.
        task.keep_result();
        return Ok(completion);
    }
    let how = match exit.code {
        _ if exit.out_of_memory => "the code ran out of the memory of its sandbox and was killed".to_owned(),
        code if code > 128 => format!("the code was killed by signal {}", code - 128),
        code => format!("the code ended with exit code {code}"),
    };
    if exit.code > 128 && task.cancellation().is_cancelled() {
        return Err(TaskError::cancelled(how));
    }
    let text = stderr.text();
    let last = text.trim_end().rsplit('\n').next().unwrap_or_default().trim();
    let message = if last.is_empty() { how } else { format!("{how}: {last}") };
    Err(with_stderr(TaskError::retryable("USER_CODE", message)))
}
