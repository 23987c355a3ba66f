//! Who calls: stored keys, flags and variables, and what goes to which server. The servers here only look at requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::commands::kit::{Home, code, finish};

/// A server that answers as told and keeps what came.
struct Fake {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

#[derive(Clone)]
struct Seen {
    /// Method and path.
    what: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    body: String,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl Fake {
    fn start(answer: impl Fn(&Seen) -> (u16, Value) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let keep = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = read(&stream);
                keep.lock().unwrap().push(request.clone());
                let (status, body) = answer(&request);
                let body = body.to_string();
                let head =
                    format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.write_all((head + &body).as_bytes()).unwrap();
            }
        });
        Self { url, seen }
    }

    /// Lets one key in, as an admin.
    fn of_key(key: &'static str) -> Self {
        Self::start(move |seen| match seen.header("x-api-key") == Some(key) {
            true => (200, json!({"actor": "key:1f", "role": "admin", "owner": "ann"})),
            false => (401, refusal("UNAUTHORIZED", "invalid_api_key")),
        })
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

fn refusal(class: &str, word: &str) -> Value {
    json!({"code": class, "error": word, "message": "as told", "request_id": "req_1"})
}

fn read(stream: &TcpStream) -> Seen {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let (first, rest) = lines.split_first().unwrap();
    let pairs = rest.iter().map(|line| line.split_once(": ").unwrap());
    let headers: Vec<_> = pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let mut seen = Seen { what: first.rsplit_once(' ').unwrap().0.to_owned(), headers, body: String::new() };
    let length = seen.header("content-length").map_or(0, |length| length.parse().unwrap());
    reader.take(length).read_to_string(&mut seen.body).unwrap();
    seen
}

fn with_input(mut command: Command, folder: &Path, input: &str) -> Command {
    let path = folder.join("input");
    std::fs::write(&path, input).unwrap();
    command.stdin(Stdio::from(std::fs::File::open(path).unwrap()));
    command
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_stored_key_goes_to_its_server_and_to_no_other() {
    let (own, other, home) = (Fake::of_key("s3cret"), Fake::of_key("s3cret"), Home::new());
    let login = home.command(&["login", "--server", &own.url]);
    let login = finish(with_input(login, home.path(), "s3cret\n")).await;
    assert_eq!(code(&login), 0, "{login:?}");
    for part in ["key:1f", "admin", "every", "ann"] {
        assert!(login.stdout.contains(part), "{}", login.stdout);
    }
    assert!(!login.stdout.contains("s3cret") && !login.stderr.contains("s3cret"), "{login:?}");
    let file = home.path().join(".tenure/credentials.json");
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));

    let again = home.run(&["whoami", "--server", &format!("{}/", own.url), "--json"]).await;
    assert_eq!(code(&again), 0, "{again:?}");
    assert_eq!(serde_json::from_str::<Value>(&again.stdout).unwrap()["actor"], "key:1f");
    let elsewhere = home.run(&["whoami", "--server", &other.url]).await;
    assert_eq!(code(&elsewhere), 4);
    assert!(elsewhere.stderr.contains("tenure login"), "{}", elsewhere.stderr);
    assert_eq!(other.seen()[0].header("x-api-key"), None);

    let logout = home.run(&["logout", "--server", &own.url]).await;
    assert!(logout.stdout.contains("Removed the stored key"), "{logout:?}");
    assert_eq!(code(&home.run(&["whoami", "--server", &own.url]).await), 4);
    assert!(home.run(&["logout", "--server", &own.url]).await.stdout.starts_with("No key is stored"));
}

#[tokio::test]
async fn a_key_that_is_refused_is_not_stored() {
    let (server, home) = (Fake::of_key("s3cret"), Home::new());
    let key = home.path().join("key");
    std::fs::write(&key, "wr0ng\n").unwrap();
    let refused = home.run(&["login", "--server", &server.url, "--key-file", "key"]).await;
    assert_eq!(code(&refused), 4);
    assert!(refused.stderr.contains("not stored") && !refused.stderr.contains("wr0ng"), "{}", refused.stderr);
    assert!(!home.path().join(".tenure/credentials.json").exists());
    for (input, said) in [("", "no key was given"), ("two words", "is not a key")] {
        let login = finish(with_input(home.command(&["login", "--server", &server.url]), home.path(), input)).await;
        assert_eq!(code(&login), 2);
        assert!(login.stderr.contains(said), "{}", login.stderr);
    }
    assert_eq!(server.seen().len(), 1, "what is no key is not sent");
}

#[tokio::test]
async fn a_file_that_others_can_read_is_refused_unless_a_key_is_given_otherwise() {
    let (server, home) = (Fake::of_key("s3cret"), Home::new());
    std::fs::write(home.path().join("key"), "s3cret").unwrap();
    let data = home.path().join("data");
    let run = async |args: &[&str], key: Option<&str>| {
        let mut command = home.command(args);
        command.env("TENURE_SERVER", &server.url).env("TENURE_DATA", &data);
        if let Some(key) = key {
            command.env("TENURE_API_KEY", key);
        }
        finish(command).await
    };
    assert_eq!(code(&run(&["login", "--key-file", "key"], None).await), 0);
    let file = data.join("credentials.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let before = server.seen().len();
    let refused = run(&["whoami"], None).await;
    assert_eq!(code(&refused), 2);
    assert!(refused.stderr.contains(&format!("chmod 600 {}", file.display())), "{}", refused.stderr);
    assert_eq!(server.seen().len(), before, "nothing was sent");
    assert_eq!(code(&run(&["whoami"], Some("s3cret")).await), 0);
    assert_eq!(code(&run(&["whoami", "--api-key-file", "key"], None).await), 0);
}

#[tokio::test]
async fn flags_go_before_variables_and_those_before_what_is_stored() {
    let (server, home) = (Fake::start(|_| (200, json!({"actor": "a", "role": "r"}))), Home::new());
    std::fs::write(home.path().join("stored"), "stored").unwrap();
    std::fs::write(home.path().join("file"), "file").unwrap();
    let login = home.run(&["login", "--server", &server.url, "--key-file", "stored"]).await;
    assert_eq!(code(&login), 0, "{login:?}");
    for (flags, variable, sent) in [
        (&[][..], None, "stored"),
        (&[][..], Some("variable"), "variable"),
        (&["--api-key-file", "file"][..], Some("variable"), "file"),
    ] {
        let mut command = home.command(&[&["whoami", "--server", &server.url], flags].concat());
        command.envs(variable.map(|key| ("TENURE_API_KEY", key)));
        assert_eq!(code(&finish(command).await), 0);
        assert_eq!(server.seen().last().unwrap().header("x-api-key"), Some(sent));
    }
    let narrowed =
        ["task", "list", "--server", &server.url, "--user-id", "ann", "--tenant-id", "acme", "--tenant", "t"];
    home.run(&narrowed).await;
    let seen = server.seen().last().unwrap().clone();
    assert_eq!((seen.header("x-user-id"), seen.header("x-tenant-id")), (Some("ann"), Some("acme")));
    assert!(seen.what.contains("tenant=t"), "the filter is another thing: {}", seen.what);
}

fn created() -> Value {
    json!({"key": "tnr_1f_s3cret", "id": "1f", "name": "ci", "role": "api", "tenant": "acme",
        "created_at": "2026-01-01T00:00:00Z", "created_by": "config:admin"})
}

#[tokio::test]
async fn a_new_key_is_on_standard_output_alone_or_in_a_file_alone() {
    let (server, home) = (Fake::start(|_| (201, created())), Home::new());
    let create = ["api-key", "create", "--server", &server.url, "--name", "ci", "--expires-in", "30d"];
    let shown = home.run(&create).await;
    assert_eq!((code(&shown), shown.stdout.as_str()), (0, "tnr_1f_s3cret\n"), "{shown:?}");
    assert!(!shown.stderr.contains("s3cret") && shown.stderr.contains("role api"), "{}", shown.stderr);
    let body: Value = serde_json::from_str(&server.seen()[0].body).unwrap();
    assert_eq!(body, json!({"name": "ci", "expires_in": "720h0m0s"}));

    let written = home.run(&[&create[..], &["--out", "ci.key"]].concat()).await;
    assert_eq!((code(&written), written.stdout.as_str()), (0, "1f\n"), "{written:?}");
    assert!(!written.stderr.contains("s3cret"), "{}", written.stderr);
    let file = home.path().join("ci.key");
    assert_eq!((std::fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("tnr_1f_s3cret\n", 0o600));

    let before = server.seen().len();
    let taken = home.run(&[&create[..], &["--out", "ci.key"]].concat()).await;
    assert_eq!(code(&taken), 2, "{taken:?}");
    assert_eq!(server.seen().len(), before, "the key was not created that could not be written");
    let json = home.run(&[&create[..], &["--out", "other.key", "--json"]].concat()).await;
    assert!(json.stdout.contains("\"id\":\"1f\"") && !json.stdout.contains("s3cret"), "{}", json.stdout);
}

#[tokio::test]
async fn a_key_that_was_not_made_leaves_no_file() {
    let (server, home) = (Fake::start(|_| (403, refusal("FORBIDDEN", "role_forbidden"))), Home::new());
    let create = ["api-key", "create", "--server", &server.url, "--name", "ci", "--out", "ci.key"];
    let refused = home.run(&create).await;
    assert_eq!(code(&refused), 4);
    assert!(
        refused.stderr.contains("the key was not created") && refused.stderr.contains("whoami"),
        "{}",
        refused.stderr
    );
    assert!(!home.path().join("ci.key").exists());
}

#[tokio::test]
async fn a_worker_with_a_bootstrap_key_asks_for_its_token() {
    let (server, home) = (Fake::start(|_| (401, refusal("UNAUTHORIZED", "invalid_bootstrap_key"))), Home::new());
    std::fs::write(home.path().join("boot"), "b00t").unwrap();
    let flags = ["worker", "--control-plane", &server.url, "--bootstrap-key-file", "boot"];
    let nameless = home.run(&flags).await;
    assert_eq!(code(&nameless), 2);
    assert!(nameless.stderr.contains("--name"), "{}", nameless.stderr);

    let refused = home.run(&[&flags[..], &["--id", "w1", "--bootstrap-token-ttl", "90s"]].concat()).await;
    assert_eq!(code(&refused), 4, "{refused:?}");
    assert!(refused.stderr.contains("bootstrap key") && !refused.stderr.contains("b00t"), "{}", refused.stderr);
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].what, "POST /api/v1/worker/w1/token");
    assert_eq!((seen[0].header("x-worker-bootstrap-key"), &*seen[0].body), (Some("b00t"), r#"{"ttl":"1m30s"}"#));

    // A token file goes before it.
    std::fs::write(home.path().join("token"), "t0ken").unwrap();
    let both = [&flags[..], &["--id", "w1", "--worker-token-file", "token"]].concat();
    assert_eq!(code(&home.run(&both).await), 4);
    let seen = server.seen();
    assert_eq!((seen[1].header("x-worker-token"), seen[1].header("x-worker-id")), (Some("t0ken"), Some("w1")));
    assert_eq!(seen[1].what, "POST /internal/worker/exchange");
}

#[tokio::test]
async fn a_bootstrap_key_goes_before_a_token_in_the_environment() {
    let (server, home) = (Fake::start(|_| (401, refusal("UNAUTHORIZED", "invalid_bootstrap_key"))), Home::new());
    std::fs::write(home.path().join("boot"), "b00t").unwrap();
    let mut command = home.command(&["worker", "--server", &server.url, "--id", "w1"]);
    command.env("TENURE_BOOTSTRAP_KEY_FILE", "boot").env("TENURE_WORKER_TOKEN", "t0ken");
    assert_eq!(code(&finish(command).await), 4);
    assert_eq!(server.seen()[0].header("x-worker-bootstrap-key"), Some("b00t"));
}

#[tokio::test]
async fn a_ca_file_that_is_none_is_named() {
    let home = Home::new();
    std::fs::write(home.path().join("ca.pem"), "nothing").unwrap();
    for args in [
        &["task", "list", "--ca-file", "ca.pem"][..],
        &["login", "--key-file", "ca.pem", "--ca-file", "ca.pem"],
        &["worker", "--ca-file", "ca.pem"],
    ] {
        let refused = home.run(args).await;
        assert_eq!(code(&refused), 2, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("ca.pem") && refused.stderr.contains("PEM"), "{}", refused.stderr);
    }
}

#[tokio::test]
async fn flags_of_the_audit_keep_to_their_list() {
    let (server, home) = (Fake::start(|_| (200, json!([]))), Home::new());
    let run = async |args: &[&str]| home.run(&[&["audit", "--server", &server.url], args].concat()).await;
    assert_eq!(
        run(&["--status", "403", "--path", "/api/v1/admin", "--method", "DELETE"]).await.stdout,
        "No entries.\n"
    );
    assert_eq!(run(&["--operations", "--action", "task.submit"]).await.stdout, "No entries.\n");
    let asked: Vec<_> = server.seen().into_iter().map(|seen| seen.what).collect();
    assert_eq!(
        asked,
        [
            "GET /api/v1/admin/audit?method=DELETE&status=403&path=%2Fapi%2Fv1%2Fadmin&limit=100",
            "GET /api/v1/audit?action=task.submit&limit=100"
        ]
    );
    for wrong in [&["--operations", "--status", "403"][..], &["--action", "x"], &["--csv", "--json"]] {
        assert_eq!(code(&run(wrong).await), 2, "{wrong:?}");
    }
}
