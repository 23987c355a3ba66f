//! The compiled probe `tenure-sandbox-probe`, run in sandboxes: no attempt to get out may succeed.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use tenure_sandbox::{Command, FileWrite, Provider, RuntimeId};

use crate::kit::{run, sh};
use crate::namespace::Machine;

const PROBE: &str = env!("CARGO_BIN_EXE_tenure-sandbox-probe");

/// More than the probe has is a mistake of this test, fewer one of the probe.
const ATTEMPTS: std::ops::Range<usize> = 110..200;

/// Copies the probe into a sandbox, runs it, and returns what succeeded.
async fn successes(provider: &dyn Provider, id: &RuntimeId, host_paths: &str) -> Vec<String> {
    let content = Box::pin(tokio::fs::File::open(PROBE).await.expect("the probe"));
    let file = FileWrite { path: "/workspace/probe".to_owned(), mode: 0o755, content };
    provider.write_file(id, file).await.expect("written");
    let name = format!("tenure-probe-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("an address");
    let _socket = UnixListener::bind_addr(&address).ok();

    let mut command = Command::argv(["/workspace/probe"]);
    command.env = BTreeMap::from([("HOST_PATHS".to_owned(), host_paths.to_owned()), ("HOST_SOCKET".to_owned(), name)]);
    let output = run(provider, id, command).await.expect("an exit");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.exit().code, 0, "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(ATTEMPTS.contains(&lines.len()), "{} lines: {stdout}", lines.len());
    assert!(lines.iter().all(|line| line.contains(": refused ") || line.contains(": succeeded ")), "{stdout}");
    lines.iter().filter(|line| line.contains(": succeeded ")).map(|line| (*line).to_owned()).collect()
}

/// Attempts that do not leave the sandbox: `/proc/1` belongs to the user of commands or is not readable, and what is
/// shown there is the sandbox's own.
async fn attack_namespace(test: &str, user_id: u32) {
    let Some(machine) = Machine::new(test) else { return };
    let runtime = machine.spawn_with(|spec| spec.user_id = Some(user_id)).await;
    let target = std::path::Path::new(PROBE).parent().expect("a folder").display().to_string();
    let host_paths = format!("{}:{target}", machine.dir.path().display());
    let succeeded = successes(&machine.provider, &runtime.id, &host_paths).await;
    assert_eq!(succeeded, Vec::<String>::new());
    // A signal to the first process is accepted and has no effect.
    sh(&machine.provider, &runtime.id, "kill -9 1; kill -9 -1; kill -19 1").await;
    assert_eq!(sh(&machine.provider, &runtime.id, "exit 3").await.exit().code, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_gets_out_of_a_namespace_as_an_ordinary_user() {
    attack_namespace("attack::nothing_gets_out_of_a_namespace_as_an_ordinary_user", 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_gets_out_of_a_namespace_as_root() {
    attack_namespace("attack::nothing_gets_out_of_a_namespace_as_root", 0).await;
}
