//! Helpers of the tests.

use std::time::Duration;

use tenure_sandbox::{Command, Event, Execution, FileWrite, Output, Provider, Result, RuntimeId};
use tokio::io::AsyncReadExt;

/// Much longer than anything takes: a machine may stop for seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps the first megabyte of each stream.
pub const OUTPUT_LIMIT: usize = 1 << 20;

/// Asks until the answer is yes.
pub async fn wait_until(what: &str, condition: impl AsyncFnMut() -> bool) {
    tenure_testkit::wait_until(what, PATIENCE, condition).await;
}

pub async fn sh(provider: &dyn Provider, id: &RuntimeId, line: &str) -> Output {
    run(provider, id, Command::shell(line, &[])).await.expect("an exit")
}

pub async fn run(provider: &dyn Provider, id: &RuntimeId, command: Command) -> Result<Output> {
    provider.exec(id, command).await?.output(OUTPUT_LIMIT).await
}

/// Runs a shell command and returns its stdout.
pub async fn text(provider: &dyn Provider, id: &RuntimeId, line: &str) -> String {
    let output = sh(provider, id, line).await;
    assert_eq!(output.exit().code, 0, "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

pub async fn write(provider: &dyn Provider, id: &RuntimeId, path: &str, content: &[u8]) -> Result<()> {
    let content = Box::pin(std::io::Cursor::new(content.to_vec()));
    provider.write_file(id, FileWrite { path: path.to_owned(), mode: 0o644, content }).await
}

pub async fn read(provider: &dyn Provider, id: &RuntimeId, path: &str) -> Result<Vec<u8>> {
    let mut file = provider.read_file(id, path).await?;
    let mut content = Vec::new();
    file.content.read_to_end(&mut content).await.expect("content");
    Ok(content)
}

/// Reads output until it contains a text.
pub async fn read_until(execution: &mut Execution, wanted: &str) -> String {
    let mut seen = Vec::new();
    loop {
        let event = tokio::time::timeout(PATIENCE, execution.next()).await.expect("an event in time");
        match event {
            Some(Event::Output(chunk)) => seen.extend_from_slice(&chunk.bytes),
            other => panic!("{wanted:?} did not come: {other:?} after {:?}", String::from_utf8_lossy(&seen)),
        }
        let text = String::from_utf8_lossy(&seen);
        if text.contains(wanted) {
            return text.into_owned();
        }
    }
}

/// Whether a process with this argument runs on this machine, in a sandbox or not.
pub fn runs(argument: &str) -> bool {
    std::fs::read_dir("/proc").expect("/proc").flatten().any(|process| {
        let line = std::fs::read(process.path().join("cmdline"));
        line.is_ok_and(|line| line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
    })
}
