//! A worker without privileges.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tenure_sandbox::{
    AgentProgram, Enforcement, ErrorKind, Limits, NamespaceProvider, NamespaceSettings, Provider, Spec,
};

use crate::kit::{read, run, sh, text, write};

/// Set for a process that plays the worker: its data directory.
const ROLE: &str = "TENURE_TEST_ROOTLESS";

/// An id that nobody has.
const NOBODY: u32 = 54_321;

/// Printed by the worker if the machine does not let it make sandboxes.
const REFUSED: &str = "this machine refuses: ";

#[tokio::test]
async fn an_unprivileged_worker_confines_what_it_can_and_says_what_it_cannot() {
    let test = "an_unprivileged_worker_confines_what_it_can";
    if let Ok(dir) = std::env::var(ROLE) {
        if let Some(reason) = worker(Path::new(&dir)).await {
            println!("{REFUSED}{reason}");
        }
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return tenure_testkit::skip(
            test,
            "only root can start a process of another user; the other tests run without privileges here",
        );
    }
    // The folder of the build may not be open to others.
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("a mode");
    let program = dir.path().join("it");
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
    std::fs::copy(env!("CARGO_BIN_EXE_tenure-sandbox-agent"), dir.path().join("agent")).expect("a copy");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    chown(&data, Some(NOBODY), Some(NOBODY)).expect("an owner");
    let name = "namespace::rootless::an_unprivileged_worker_confines_what_it_can_and_says_what_it_cannot";
    let mut command = Command::new(&program);
    command.args(["--exact", name, "--nocapture"]).env(ROLE, &data).uid(NOBODY).gid(NOBODY).current_dir("/");
    let output = command.output().expect("a worker");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if let Some((_, reason)) = text.split_once(REFUSED) {
        return tenure_testkit::skip(test, reason.lines().next().unwrap_or(""));
    }
    assert!(output.status.success(), "{text}");
}

/// Returns why there is no sandbox, if there is none.
async fn worker(data: &Path) -> Option<String> {
    assert!(!rustix::process::geteuid().is_root());
    let program = AgentProgram { path: data.parent().expect("a folder").join("agent") };
    let settings = NamespaceSettings::new(data, program).expect("settings");
    let provider = match NamespaceProvider::new(settings) {
        Ok(provider) => provider,
        Err(error) => return Some(error.to_string()),
    };
    let id = provider.spawn(Spec::new("sb", "host")).await.expect("a sandbox").id;
    assert_eq!(
        text(&provider, &id, "id -u; pwd; ls /home /root /var 2>/dev/null | wc -l").await,
        "1000\n/workspace\n0\n"
    );
    write(&provider, &id, "f", b"content").await.expect("a file");
    assert_eq!(read(&provider, &id, "f").await.expect("a file"), b"content");
    let status = text(&provider, &id, "cat /proc/self/status").await;
    assert!(status.contains("CapEff:\t0000000000000000") && status.contains("Seccomp:\t2"), "{status}");
    for line in ["unshare -U true", "cat /proc/1/environ", "ls /proc/1/root/", "cat /etc/shadow"] {
        assert_ne!(sh(&provider, &id, line).await.exit().code, 0, "{line}");
    }
    assert_eq!(text(&provider, &id, "cat /proc/keys /proc/kallsyms | wc -c").await, "0\n");
    assert_eq!(text(&provider, &id, "cat /proc/net/route | wc -l").await, "1\n");
    let full = sh(&provider, &id, "head -c 1000000000 /dev/zero > big").await;
    assert!(String::from_utf8_lossy(&full.stderr).contains("No space left"), "{full:?}");
    if provider.capabilities().memory.enforcement == Enforcement::BestEffort {
        assert_ne!(
            sh(&provider, &id, "perl -e '$x = \"x\" x 1e9'").await.exit().code,
            0,
            "a process has more than its limit"
        );
    }
    // A timeout reaches what has left its parent, also without groups.
    let line = "(setsid sleep 1000 >/dev/null 2>&1 &); sleep 1000";
    let command = tenure_sandbox::Command::shell(line, &[]).timeout(Duration::from_secs(1));
    assert_eq!(run(&provider, &id, command).await.expect_err("a timeout").kind(), ErrorKind::Timeout);
    assert_eq!(text(&provider, &id, "cat /proc/[0-9]*/comm | grep -c sleep || true").await, "0\n");
    provider.destroy(&id).await.expect("an end");
    // What is not enforced is not promised.
    if provider.capabilities().memory.enforcement != Enforcement::Enforced {
        let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
        let error = provider.spawn(Spec { limits, ..Spec::new("sb", "host") }).await.expect_err("not enforced");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("Delegate=yes"), "{error}");
    }
    None
}
