//! Sandboxes of a server: a control plane, a worker that holds them, and the commands of people.

#[path = "../../../../../examples/rust/sandbox.rs"]
mod example;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::openpty;
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use tenure_testkit::{Child, Output, Signal, Tenure, wait_until};

use crate::commands::kit::{Home, SOON, code, finish, providers};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const WORKER: &str = "worker-of-the-test";

/// A control plane with one worker.
struct Fleet {
    server: Tenure,
    home: Home,
    _worker: Child,
}

impl Fleet {
    async fn start() -> Self {
        Self::with("process").await
    }

    async fn with(provider: &str) -> Self {
        let server = Tenure::serve_with(&[], |command| {
            command.env("TENURE_AUTH__WORKER_TOKEN", TOKEN).env("TENURE_PROVIDERS__DEFAULT", provider);
            command.env("TENURE_PROVIDERS__PROCESS__ENABLED", "true");
        })
        .await;
        let home = Home::new();
        let mut command = home.command(&["worker", "--id", WORKER, "--listen", "127.0.0.1:0"]);
        command.args(["--heartbeat-interval", "200ms", "--worker-token", TOKEN, "--server", server.url(), "--data"]);
        command
            .arg(home.path().join("worker"))
            .env("TENURE_WORKER__CAPACITY__VCPUS", "64")
            .env("TENURE_WORKER__CAPACITY__MEMORY_MB", "65536")
            .env("TENURE_PROVIDERS__NAMESPACE__ENABLED", (provider == "namespace").to_string())
            .env("TENURE_PROVIDERS__PROCESS__ENABLED", "true")
            .env("TENURE_PROVIDERS__DEFAULT", provider);
        let fleet = Self { _worker: Child::spawn(command), server, home };
        wait_until("the worker is online", SOON, async || {
            let workers = fleet.json(&["worker", "list"]).await;
            workers.as_array().unwrap().iter().any(|worker| worker["id"] == WORKER && worker["status"] == "online")
        })
        .await;
        fleet
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(args);
        command.env("TENURE_SERVER", self.server.url());
        command
    }

    async fn run(&self, args: &[&str]) -> Output {
        finish(self.command(args)).await
    }

    async fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(code(&output), 0, "{args:?}: {output:?}");
        output.stdout
    }

    async fn json(&self, args: &[&str]) -> Value {
        let stdout = self.ok(&[args, &["--json"]].concat()).await;
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {stdout}"))
    }

    /// Creates a sandbox and returns its id.
    async fn create(&self) -> String {
        self.ok(&["sandbox", "create", "host", "--wait", "--quiet"]).await.trim().to_owned()
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.home.path().join(name)
    }
}

#[tokio::test]
async fn a_sandbox_is_created_shown_extended_and_removed() {
    let fleet = Fleet::start().await;
    let made = fleet.json(&["sandbox", "create", "host", "--wait", "--ttl", "10m", "--metadata", "team=etl"]).await;
    let id = made["id"].as_str().unwrap();
    assert!(id.starts_with("sb-") && made["state"] == "running" && made["worker_id"] == WORKER, "{made}");
    assert_eq!(made["metadata"]["team"], "etl");

    let list = fleet.json(&["sandbox", "list"]).await;
    assert_eq!((list.as_array().unwrap().len(), &list[0]["id"]), (1, &made["id"]), "{list}");
    let table = fleet.ok(&["sandbox", "ls", "--state", "RUNNING"]).await;
    assert!(table.contains(id) && table.contains("process"), "{table}");
    let card = fleet.ok(&["sandbox", "show", id]).await;
    assert!(card.contains("team=etl") && card.contains(WORKER), "{card}");

    let before = made["expires_at"].as_str().unwrap();
    let extended = fleet.json(&["sandbox", "extend", id, "2h"]).await;
    assert!(extended["expires_at"].as_str().unwrap() > before, "{extended}");
    let port = fleet.json(&["sandbox", "port", id, "8080"]).await;
    assert!(port["proxy_url"].as_str().unwrap().ends_with(&format!("/sandboxes/{id}/proxy/8080/")), "{port}");
    fleet.json(&["sandbox", "stats", id]).await;

    fleet.ok(&["sandbox", "rm", id]).await;
    assert_eq!(code(&fleet.run(&["sandbox", "show", id]).await), 3);
    assert_eq!(code(&fleet.run(&["sandbox", "exec", id, "--", "true"]).await), 125);
    assert_eq!(fleet.json(&["sandbox", "list"]).await, serde_json::json!([]));
}

#[tokio::test]
async fn a_command_has_its_output_its_input_and_its_exit_code() {
    let fleet = Fleet::start().await;
    // Not waited for: exec does.
    let id = fleet.ok(&["sandbox", "create", "host", "--quiet", "-e", "GREETING=hello"]).await;
    let id = id.trim();
    let output = fleet.run(&["sandbox", "exec", id, "--", "sh", "-c", "echo $GREETING; echo err >&2; exit 7"]).await;
    assert_eq!((code(&output), output.stdout.as_str()), (7, "hello\n"), "{output:?}");
    assert!(output.stderr.contains("err\n"), "{output:?}");
    let output = fleet.run(&["sandbox", "exec", id, "--json", "--", "sh", "-c", "echo out; exit 3"]).await;
    let answer: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((code(&output), &answer["exit_code"], &answer["stdout"]), (3, &3.into(), &"out\n".into()));
    let output = fleet.run(&["sandbox", "exec", id, "--timeout", "300ms", "--", "sleep", "60"]).await;
    assert_eq!(code(&output), 124, "{output:?}");
    assert_eq!(
        code(&fleet.run(&["sandbox", "exec", id]).await),
        125,
        "a usage error must not look like the exit code of a command"
    );

    let input = fleet.path("input");
    std::fs::write(&input, vec![b'x'; 300_000]).unwrap();
    let mut command = fleet.command(&["sandbox", "exec", "-i", id, "--", "wc", "-c"]);
    command.stdin(File::open(&input).unwrap());
    let output = finish(command).await;
    assert_eq!((code(&output), output.stdout.trim()), (0, "300000"), "{output:?}");

    // A script for the shell.
    let script = fleet.path("script");
    std::fs::write(&script, "x=5\necho value $x\nexit $x\n").unwrap();
    let mut command = fleet.command(&["sandbox", "shell", id]);
    command.stdin(File::open(&script).unwrap());
    let output = finish(command).await;
    assert_eq!((code(&output), output.stdout.as_str()), (5, "value 5\n"), "{output:?}");
}

#[tokio::test]
async fn a_signal_reaches_a_command_with_input_and_ends_one_without() {
    let fleet = Fleet::start().await;
    let id = fleet.create().await;
    let line = "trap 'echo stopping; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let mut command = fleet.command(&["sandbox", "exec", "-i", &id, "--", "sh", "-c", line]);
    command.stdin(Stdio::piped());
    let mut child = Child::spawn(command);
    child.wait_for_stdout("ready", SOON).await;
    child.signal(Signal::SIGTERM);
    assert_eq!(child.wait(SOON).await.code(), Some(3));

    let marker = format!("6{}.25", std::process::id());
    let line = format!("echo ready; sleep {marker}");
    let mut child = Child::spawn(fleet.command(&["sandbox", "exec", &id, "--", "sh", "-c", &line]));
    child.wait_for_stdout("ready", SOON).await;
    child.signal(Signal::SIGINT);
    assert_eq!(child.wait(SOON).await.code(), Some(130));
    wait_until("the command is gone", SOON, async || {
        let found = fleet.run(&["sandbox", "exec", &id, "--", "pgrep", "-f", &format!("^sleep {marker}")]).await;
        code(&found) != 0
    })
    .await;
}

#[tokio::test]
async fn files_and_folders_are_copied_in_both_directions() {
    let fleet = Fleet::start().await;
    let id = fleet.create().await;
    let at = |path: &str| format!("{id}:{path}");
    let source = fleet.path("source");
    std::fs::create_dir_all(source.join("sub/empty")).unwrap();
    let content: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
    std::fs::write(source.join("sub/data.bin"), &content).unwrap();
    std::fs::write(source.join("run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(source.join("run.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();

    // A file: under its own name in a folder, or under a new name. Modes are kept.
    fleet.ok(&["sandbox", "cp", "source/run.sh", &at("")]).await;
    fleet.ok(&["sandbox", "cp", "source/run.sh", &at("/workspace/deep/er/other.sh")]).await;
    for path in ["./run.sh", "deep/er/other.sh"] {
        assert_eq!(fleet.ok(&["sandbox", "exec", &id, "--", path]).await, "ran\n");
    }
    // A folder needs -r.
    let refused = fleet.run(&["sandbox", "cp", "source", &at("/workspace/tree")]).await;
    assert!(code(&refused) == 2 && refused.stderr.contains("-r"), "{refused:?}");
    let copied = fleet.json(&["sandbox", "cp", "-r", "source", &at("/workspace/tree")]).await;
    assert_eq!(copied["files"], 2, "{copied}");
    // Once more: the target is a folder now.
    fleet.ok(&["sandbox", "cp", "-r", "source", &at("/workspace/tree")]).await;
    let found = fleet.ok(&["sandbox", "exec", &id, "--", "sh", "-c", "cd tree && find . -print"]).await;
    let mut found: Vec<_> = found.lines().collect();
    found.sort_unstable();
    let expected = [
        ".",
        "./run.sh",
        "./source",
        "./source/run.sh",
        "./source/sub",
        "./source/sub/data.bin",
        "./source/sub/empty",
        "./sub",
        "./sub/data.bin",
        "./sub/empty",
    ];
    assert_eq!(found, expected);

    // And back.
    fleet.ok(&["sandbox", "cp", "-r", &at("tree/sub"), "back"]).await;
    assert_eq!(std::fs::read(fleet.path("back/data.bin")).unwrap(), content);
    assert!(fleet.path("back/empty").is_dir());
    fleet.ok(&["sandbox", "cp", &at("/workspace/run.sh"), "."]).await;
    let mode = std::fs::metadata(fleet.path("run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    // From one sandbox to another.
    let other = fleet.create().await;
    fleet.ok(&["sandbox", "cp", &at("tree/sub/data.bin"), &format!("{other}:")]).await;
    fleet.ok(&["sandbox", "cp", &format!("{other}:data.bin"), "again.bin"]).await;
    assert_eq!(std::fs::read(fleet.path("again.bin")).unwrap(), content);

    for (args, expected) in [
        (vec!["source/run.sh".to_owned(), "elsewhere".to_owned()], 2),
        (vec!["nowhere".to_owned(), at("")], 1),
        (vec![at("/workspace/nowhere"), ".".to_owned()], 3),
        (vec!["run.sh".to_owned(), "sb-ffffffff:".to_owned()], 3),
    ] {
        let args: Vec<_> = ["sandbox", "cp"].into_iter().chain(args.iter().map(String::as_str)).collect();
        let output = fleet.run(&args).await;
        assert_eq!(code(&output), expected, "{args:?}: {output:?}");
    }
}

#[tokio::test]
async fn a_snapshot_is_restored_and_starts_another_sandbox() {
    let name = "a_snapshot_is_restored_and_starts_another_sandbox";
    if !providers(name).await.contains(&"namespace") {
        return;
    }
    let fleet = Fleet::with("namespace").await;
    let id = fleet.create().await;
    let sh = async |id: &str, line: &str| fleet.run(&["sandbox", "exec", id, "--", "sh", "-c", line]).await;
    assert_eq!(code(&sh(&id, "echo first > /workspace/a").await), 0);
    let snapshot = fleet.json(&["sandbox", "snapshot", &id, "--name", "before"]).await;
    let snapshot = snapshot["id"].as_str().unwrap();
    assert!(snapshot.starts_with("snap-"), "{snapshot}");
    let table = fleet.ok(&["sandbox", "snapshots"]).await;
    assert!(table.contains(snapshot) && table.contains("before"), "{table}");

    assert_eq!(code(&sh(&id, "echo second > /workspace/a; touch /workspace/b").await), 0);
    fleet.ok(&["sandbox", "restore", &id, snapshot]).await;
    assert_eq!(sh(&id, "cat a; ls").await.stdout, "first\na\n");
    let other = fleet.ok(&["sandbox", "create", "host", "--snapshot", snapshot, "--wait", "--quiet"]).await;
    assert_eq!(sh(other.trim(), "cat a").await.stdout, "first\n");
    fleet.ok(&["sandbox", "rm", &id, other.trim(), snapshot]).await;
    assert_eq!(fleet.json(&["sandbox", "snapshots"]).await, serde_json::json!([]));
}

#[tokio::test]
async fn a_template_is_created_used_and_deleted() {
    let fleet = Fleet::start().await;
    let setup = "echo ready > setup";
    fleet.ok(&["template", "create", "tools", "--image", "host", "--ttl", "20m", "--setup", setup, "-e", "A=b"]).await;
    let again = fleet.run(&["template", "create", "tools", "--image", "host"]).await;
    assert!(code(&again) == 4 && again.stderr.contains("already exists"), "{again:?}");
    let list = fleet.json(&["template", "list"]).await;
    assert_eq!((&list[0]["name"], &list[0]["ttl"]), (&"tools".into(), &"20m0s".into()), "{list}");
    let id = fleet.ok(&["sandbox", "create", "--template", "tools", "--wait", "--quiet"]).await;
    let output = fleet.run(&["sandbox", "exec", id.trim(), "--", "sh", "-c", "cat setup; echo $A"]).await;
    assert_eq!(output.stdout, "ready\nb\n", "{output:?}");
    fleet.ok(&["template", "set", "tools", "--image", "host", "--ttl", "1h"]).await;
    assert!(fleet.ok(&["template", "show", "tools"]).await.contains("1h"));
    fleet.ok(&["template", "rm", "tools"]).await;
    assert_eq!(code(&fleet.run(&["template", "show", "tools"]).await), 3);
}

#[tokio::test]
async fn a_drained_worker_gets_no_sandboxes_until_it_is_undrained() {
    let fleet = Fleet::start().await;
    let id = fleet.create().await;
    let drained = fleet.json(&["worker", "drain", WORKER, "--reason", "upgrade"]).await;
    assert_eq!(drained["id"], WORKER, "{drained}");
    let refused = fleet.run(&["sandbox", "create", "host", "--wait"]).await;
    assert_eq!(code(&refused), 5, "{refused:?}");
    // It keeps what it has, so it is not empty in time.
    assert_eq!(code(&fleet.run(&["sandbox", "exec", &id, "--", "true"]).await), 0);
    let waited = fleet.run(&["worker", "drain", WORKER, "--wait", "100ms"]).await;
    assert!(code(&waited) == 1 && waited.stderr.contains("still has 0 tasks and 1 sandbox"), "{waited:?}");
    fleet.ok(&["sandbox", "rm", &id]).await;
    fleet.ok(&["worker", "drain", WORKER, "--wait", "20s"]).await;
    fleet.ok(&["worker", "undrain", WORKER, "--wait", "20s"]).await;
    fleet.create().await;
    assert_eq!(code(&fleet.run(&["worker", "drain", "nobody"]).await), 3);
}

/// A terminal with a command on it.
struct Terminal {
    child: std::process::Child,
    keys: File,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    fn open(mut command: Command, rows: u16, cols: u16) -> Self {
        let pty = openpty(None, None).unwrap();
        tcsetwinsize(&pty.master, size(rows, cols)).unwrap();
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        command.stdin(end(&pty.slave)).stdout(end(&pty.slave)).stderr(end(&pty.slave)).env("TERM", "dumb");
        let child = command.spawn().unwrap();
        drop((command, pty.slave));
        let keys = File::from(pty.master);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut reader, seen) = (keys.try_clone().unwrap(), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count) = reader.read(&mut buffer) {
                if count == 0 {
                    return;
                }
                seen.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { child, keys, screen }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    async fn shows(&self, text: &str) {
        let screen = Arc::clone(&self.screen);
        let what = format!("{text:?} on the screen");
        wait_until(&what, SOON, async || screen.lock().unwrap().contains(text)).await;
    }

    fn resize(&self, rows: u16, cols: u16) {
        tcsetwinsize(&self.keys, size(rows, cols)).unwrap();
        // The terminal is not that of a session, so nobody else tells.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, Signal::SIGWINCH).unwrap();
    }

    async fn code(&mut self) -> i32 {
        let child = &mut self.child;
        wait_until("the command ends", SOON, async || child.try_wait().unwrap()).await.code().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(rows: u16, cols: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }
}

#[tokio::test]
async fn a_shell_is_a_terminal_with_a_size_keys_and_an_exit_code() {
    let fleet = Fleet::start().await;
    let id = fleet.create().await;
    let mut terminal = Terminal::open(fleet.command(&["sandbox", "shell", &id]), 33, 99);
    terminal.press("stty size; tty -s && echo is-a-terminal\r");
    terminal.shows("33 99").await;
    terminal.shows("is-a-terminal\r\n").await;
    terminal.resize(40, 120);
    // The size arrives beside the keys.
    terminal.press("until stty size | grep -q '40 120'; do sleep 0.05; done; echo resized-$((1+1))\r");
    terminal.shows("resized-2").await;
    // Ctrl-C ends the command and not the shell.
    terminal.press("echo begun-$((2+2)); sleep 600\r");
    terminal.shows("begun-4").await;
    terminal.press("\x03");
    terminal.press("echo still-$((3+3))\r");
    terminal.shows("still-6").await;
    terminal.press("exit 9\r");
    assert_eq!(terminal.code().await, 9);
}

#[tokio::test]
async fn a_sandbox_with_a_shell_at_once_is_gone_after_it() {
    let fleet = Fleet::start().await;
    let args = ["sandbox", "create", "host", "--wait", "--shell", "--rm"];
    let mut terminal = Terminal::open(fleet.command(&args), 24, 80);
    terminal.shows("Created sandbox sb-").await;
    terminal.press("echo here-$((1+1)); exit 4\r");
    terminal.shows("here-2").await;
    assert_eq!(terminal.code().await, 4);
    assert_eq!(fleet.json(&["sandbox", "list"]).await, serde_json::json!([]));
}

/// What a sandbox has is not trusted: a name in it must not lead out of the target.
#[tokio::test]
async fn strange_names_in_a_sandbox_stay_in_the_target() {
    let fleet = Fleet::start().await;
    let id = fleet.create().await;
    let line = "mkdir -p 'd/..x' && echo 1 > 'd/a b' && echo 2 > 'd/..x/-r' && printf 3 > \"d/$(printf 'n\\tl')\"";
    assert_eq!(code(&fleet.run(&["sandbox", "exec", &id, "--", "sh", "-c", line]).await), 0);
    fleet.ok(&["sandbox", "cp", "-r", &format!("{id}:d"), "target"]).await;
    let target = fleet.path("target");
    let read = |name: &str| std::fs::read_to_string(Path::new(&target).join(name)).unwrap();
    assert_eq!([read("a b"), read("..x/-r"), read("n\tl")], ["1\n", "2\n", "3"]);
}

/// A server that lies about what a sandbox has.
#[tokio::test]
async fn a_folder_that_claims_to_contain_its_parent_is_not_copied() {
    use axum::extract::Query;
    use axum::routing::get;
    use axum::{Json, Router};
    let file = |path: &str, is_dir: bool| serde_json::json!({"path": path, "size": 4, "mode": "0644", "is_dir": is_dir, "mod_time": "2026-01-01T00:00:00Z"});
    let info = serde_json::json!({"id": "sb-00000001", "state": "running", "provider": "process", "image": "host", "memory_mb": 1,
        "vcpus": 1, "created_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-01T00:00:00Z"});
    let list = async move |Query(query): Query<std::collections::BTreeMap<String, String>>| {
        Json(match query["path"].as_str() {
            "/d" => serde_json::json!([file("/d/good", false), file("/d/..", true)]),
            _ => serde_json::json!([file("/evil", false)]),
        })
    };
    let app = Router::new()
        .route("/api/v1/sandboxes/{id}", get(async move || Json(info)))
        .route("/api/v1/sandboxes/{id}/files", get(async || "data"))
        .route("/api/v1/sandboxes/{id}/files/stat", get(async move || Json(file("/d", true))))
        .route("/api/v1/sandboxes/{id}/files/list", get(list));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let home = Home::new();
    std::fs::create_dir(home.path().join("inside")).unwrap();
    let output = home.run(&["sandbox", "cp", "-r", "sb-00000001:/d", "inside/target", "--server", &url]).await;
    assert_ne!(code(&output), 0, "{output:?}");
    assert!(output.stderr.contains("name is not usable"), "{output:?}");
    assert!(!home.path().join("inside/evil").exists() && !home.path().join("inside/target").exists());
}

#[tokio::test]
async fn the_example_of_the_rust_sdk_runs() {
    let fleet = Fleet::start().await;
    let client = tenure_client::Client::new(fleet.server.url()).unwrap();
    let printed = example::in_a_sandbox(&client, "host").await.unwrap();
    assert_eq!(printed, "1\n2\n3\nline 1\nline 2\nline 3\nexit code Some(0)\n");
    assert_eq!(fleet.json(&["sandbox", "list"]).await, serde_json::json!([]));
}
