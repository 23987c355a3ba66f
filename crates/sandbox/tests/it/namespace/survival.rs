//! Sandboxes whose provider was killed, and what is left on the machine.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tenure_sandbox::{Deadlines, Egress, NamespaceProvider, Provider, RuntimeId, RuntimeState, Spec};

use super::{Machine, settings};
use crate::kit::{read, sh, text, wait_until, write};

/// Set for a process that plays a worker: `<data directory> <number of sandboxes> <die with it>`.
const ROLE: &str = "TENURE_TEST_WORKER";

/// Not a test by itself: the worker that others kill.
#[tokio::test]
async fn a_worker_that_is_killed() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let (dir, count, die) = (words[0], words[1].parse::<usize>().expect("a number"), words[2] == "true");
    let provider = NamespaceProvider::new(settings(Path::new(dir))).expect("a provider");
    for number in 0..count {
        let mut spec = Spec::new(format!("sb-{number}"), "host");
        spec.die_with_parent = die;
        spec.egress = Egress::Allow(vec!["192.0.2.1".to_owned()]);
        let id = provider.spawn(spec).await.expect("a sandbox").id;
        write(&provider, &id, "number", number.to_string().as_bytes()).await.expect("a file");
        println!("sandbox {id}");
    }
    println!("ready");
    std::future::pending::<()>().await;
}

/// Starts a worker and waits until it has its sandboxes.
fn worker(dir: &Path, count: usize, die: bool) -> (Child, Vec<RuntimeId>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "namespace::survival::a_worker_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(ROLE, format!("{} {count} {die}", dir.display()))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a worker");
    let mut ids = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("its output")).lines() {
        let line = line.expect("a line");
        match line.rsplit_once("sandbox ") {
            Some((_, id)) => ids.push(RuntimeId(id.to_owned())),
            None if line.ends_with("ready") => return (child, ids),
            None => {}
        }
    }
    panic!("the worker ended: {:?}", child.wait());
}

fn kill(mut child: Child) {
    child.kill().expect("killed");
    child.wait().expect("its end");
}

/// Directories of groups with this name, in all hierarchies.
fn groups(name: &str) -> Vec<PathBuf> {
    fn search(dir: &Path, name: &str, depth: usize, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(name) {
                    found.push(entry.path());
                } else if depth > 0 {
                    search(&entry.path(), name, depth - 1, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), name, 8, &mut found);
    found
}

/// Processes whose groups contain this name.
fn processes(name: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    all.map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(name)))
        // One that has ended waits for its parent to take note.
        .filter(|pid| !std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z ")))
        .collect()
}

#[tokio::test]
async fn fifty_sandboxes_outlive_their_killed_worker_and_are_adopted() {
    let Some(machine) = Machine::with_groups("fifty_sandboxes_outlive_their_killed_worker") else { return };
    let dir = machine.data_only();
    let (child, ids) = worker(dir.path(), 50, false);
    kill(child);
    let provider = NamespaceProvider::new(settings(dir.path())).expect("a provider");
    let adopted = provider.adopt().await.expect("adopted");
    assert_eq!(adopted.len(), 50);
    for (number, id) in ids.iter().enumerate() {
        let runtime = provider.status(id).await.expect("a status");
        assert_eq!((runtime.state, runtime.sandbox_id), (RuntimeState::Running, format!("sb-{number}")));
        assert_eq!(read(&provider, id, "number").await.expect("its file"), number.to_string().as_bytes());
    }
    let id = &ids[7];
    assert_eq!(text(&provider, id, "cat number; echo $HTTP_PROXY").await, "7http://127.0.0.1:3128\n");
    provider.set_allowed_hosts(id, vec!["192.0.2.2".to_owned()]).await.expect("its proxy is served again");
    provider.stats(id).await.expect("stats");
    provider.snapshot(id).await.map(drop).expect("its writable layer is known");
    provider.freeze(id).await.expect("frozen");
    provider.thaw(id).await.expect("thawed");
    // New sandboxes do not get the ids of adopted ones.
    let new = provider.spawn(Spec::new("new", "host")).await.expect("a sandbox").id;
    for id in ids.iter().chain([&new]) {
        provider.destroy(id).await.expect("an end");
    }
    for id in &ids {
        assert_eq!((processes(&id.0), groups(&id.0)), (Vec::new(), Vec::new()), "{id} is still there");
    }
}

#[tokio::test]
async fn sandboxes_that_are_to_die_with_their_worker_do_and_the_rest_is_swept() {
    let Some(machine) = Machine::with_groups("sandboxes_that_are_to_die_with_their_worker") else { return };
    let dir = machine.data_only();
    let (child, ids) = worker(dir.path(), 3, true);
    assert!(ids.iter().all(|id| !processes(&id.0).is_empty()));
    kill(child);
    for id in &ids {
        wait_until("no process", async || processes(&id.0).is_empty()).await;
    }
    let provider = NamespaceProvider::new(settings(dir.path())).expect("a provider");
    assert!(provider.adopt().await.expect("a sweep").is_empty());
    for id in &ids {
        assert!(groups(&id.0).is_empty(), "{:?}", groups(&id.0));
    }
    let left: Vec<_> = std::fs::read_dir(dir.path().join("namespace/sandboxes")).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_deadline_holds_when_the_worker_is_gone() {
    let Some(machine) = Machine::with_groups("a_deadline_holds_when_the_worker_is_gone") else { return };
    let dir = machine.data_only();
    let provider = NamespaceProvider::new(settings(dir.path())).expect("a provider");
    let id = provider.spawn(Spec::new("sb", "host")).await.expect("a sandbox").id;
    sh(&provider, &id, "sleep 1000 >/dev/null 2>&1 &").await;
    let deadlines = Deadlines { freeze_after: None, destroy_after: Some(std::time::Duration::from_secs(6)) };
    provider.set_deadlines(&id, deadlines).await.expect("deadlines");
    drop(provider);
    assert!(!processes(&id.0).is_empty());
    wait_until("the end", async || processes(&id.0).is_empty()).await;
    let provider = NamespaceProvider::new(settings(dir.path())).expect("a provider");
    assert!(provider.adopt().await.expect("a sweep").is_empty());
    assert!(groups(&id.0).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sandboxes_leave_nothing() {
    let Some(machine) = Machine::with_groups("a_thousand_sandboxes_leave_nothing") else { return };
    let dir = machine.data_only();
    let provider = NamespaceProvider::new(settings(dir.path())).expect("a provider");
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").expect("mounts").lines().count();
    let before = mounts();
    let provider = std::sync::Arc::new(provider);
    let mut last = None;
    for round in 0..250 {
        let four = (0..4).map(|number| {
            let provider = std::sync::Arc::clone(&provider);
            tokio::spawn(async move {
                let id = provider.spawn(Spec::new(format!("{round}-{number}"), "host")).await.expect("a sandbox").id;
                if round % 10 == 0 {
                    assert_eq!(text(provider.as_ref(), &id, "echo $$ > f; cat f | wc -l").await, "1\n");
                }
                provider.destroy(&id).await.expect("an end");
                id
            })
        });
        for one in four.collect::<Vec<_>>() {
            last = Some(one.await.expect("a sandbox"));
        }
    }
    assert_eq!(mounts(), before);
    let last = last.expect("a sandbox");
    assert!(groups(&last.0).is_empty());
    let groups = groups("tenure-").into_iter().filter(|group| group.parent().is_some()).collect::<Vec<_>>();
    let own: Vec<_> =
        groups.iter().filter(|group| has_sandboxes(group)).filter(|group| is_own(group, dir.path())).collect();
    assert!(own.is_empty(), "{own:?}");
    let left: Vec<_> = std::fs::read_dir(dir.path().join("namespace/sandboxes")).expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    assert!(open < 500, "{open} descriptors are open");
}

fn has_sandboxes(group: &Path) -> bool {
    std::fs::read_dir(group)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("ns-"))
}

/// Other tests have groups too: theirs have another name.
fn is_own(group: &Path, dir: &Path) -> bool {
    let state = dir.join("namespace").canonicalize().expect("a folder");
    let digest = <sha2::Sha256 as sha2::Digest>::digest(state.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    group.file_name().is_some_and(|name| name.to_string_lossy() == format!("tenure-{hex}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_sandboxes_live_at_once() {
    let Some(machine) = Machine::with_groups("two_hundred_sandboxes_live_at_once") else { return };
    let provider = &machine.provider;
    let mut ids = Vec::new();
    for number in 0..200 {
        ids.push(machine.spawn_with(|spec| spec.sandbox_id = format!("sb-{number}")).await.id);
    }
    for id in ids.iter().step_by(20) {
        assert_eq!(text(provider, id, "echo alive").await, "alive\n");
    }
    assert_eq!(provider.list().await.expect("a list").len(), 200);
    let memory: u64 = {
        let mut total = 0;
        for id in &ids {
            total += provider.stats(id).await.expect("stats").memory_bytes;
        }
        total / 200
    };
    assert!(memory < 2 << 20, "{memory} bytes per sandbox");
    for id in &ids {
        provider.destroy(id).await.expect("an end");
    }
}
