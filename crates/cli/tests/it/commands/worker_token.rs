//! `tenure worker token`: bytes, exit codes, every flag, and no secret where none belongs.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tenure_testkit::Output;

use crate::commands::kit::{Home, code, finish};

const KEY: &str = "worker-signing-key-with-at-least-32-bytes";
const OTHER_KEY: &str = "another-signing-key-of-at-least-32-bytes";
const PUBLIC: &str = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg";
const PRIVATE: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
const VECTOR: &str = "stacyvm-worker-v1.eyJ3b3JrZXJfaWQiOiJ3b3JrZXItYSIsImp0aSI6IjAwMTEyMjMzNDQ1NTY2Nzc4ODk5YWFiYmNjZGRlZWZmIiwiYXVkIjoid29ya2VyOnJwYyIsImV4cCI6MTc2NzIyNTkwMCwiaWF0IjoxNzY3MjI1NjAwfQ.6gr8kKCGY1f2AguSkKukUgEqg_LBPrOpxs9nVKRoRxY";
const VARIABLE: &str = "TENURE_AUTH__WORKER_SIGNING_KEY";

/// A home with files in it, and `tenure worker token` run there.
struct Desk(Home);

impl Desk {
    fn new() -> Self {
        Self(Home::new())
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        self.0.command(&[&["worker", "token"], args].concat())
    }

    async fn run(&self, args: &[&str]) -> Output {
        finish(self.command(args)).await
    }

    /// What a command prints that has to succeed.
    async fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(code(&output), 0, "{args:?}: {output:?}");
        assert_eq!(output.stderr, "", "{args:?}");
        output.stdout
    }

    async fn minted(&self, args: &[&str]) -> Value {
        let stdout = self.ok(&[args, &["--format", "json"]].concat()).await;
        serde_json::from_str(&stdout).unwrap()
    }

    /// What a command says that has to fail: all of it, and without a secret.
    async fn fails(&self, exit: i32, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(code(&output), exit, "{args:?}: {output:?}");
        assert_eq!(output.stdout, "", "{args:?}");
        for secret in [KEY, OTHER_KEY, PRIVATE, "6gr8kKCGY1f2"] {
            assert!(!output.stderr.contains(secret), "{args:?}: {}", output.stderr);
        }
        output.stderr
    }
}

#[tokio::test]
async fn inspect_prints_what_a_token_says_and_verifies_nothing() {
    let desk = Desk::new();
    let expected = r#"{
  "signature_verified": false,
  "worker_id": "worker-a",
  "token_id": "00112233445566778899aabbccddeeff",
  "audience": "worker:rpc",
  "issued_at": "2026-01-01T00:00:00Z",
  "expires_at": "2026-01-01T00:05:00Z"
}
"#;
    assert_eq!(desk.ok(&["inspect", VECTOR]).await, expected);
    let forged = VECTOR.replace("6gr8", "7gr8");
    assert_eq!(desk.ok(&["inspect", &forged]).await, expected);

    // {"scopes":["a","worker:exec"],"nbf":1767225601,"worker_id":"\u009b","aud":"","exp":1}
    let payload = "eyJzY29wZXMiOlsiYSIsIndvcmtlcjpleGVjIl0sIm5iZiI6MTc2NzIyNTYwMSwid29ya2VyX2lkIjoiXHUwMDliIiwiYXVkIjoiIiwiZXhwIjoxfQ";
    let odd = desk.ok(&["inspect", &format!("tenure-worker-v1.{payload}.")]).await;
    let expected = "{\n  \"signature_verified\": false,\n  \"worker_id\": \"\\u009b\",\n  \"scopes\": [\n    \"a\",\n    \
                    \"worker:exec\"\n  ],\n  \"not_before\": \"2026-01-01T00:00:01Z\",\n  \
                    \"expires_at\": \"1970-01-01T00:00:01Z\"\n}\n";
    assert_eq!(odd, expected);
    assert_eq!(desk.ok(&["inspect", "stacyvm-worker-v1.e30."]).await, "{\n  \"signature_verified\": false\n}\n");
}

#[tokio::test]
async fn verify_prints_the_same_with_true() {
    let desk = Desk::new();
    let minted =
        desk.minted(&["worker-a", "--signing-key", KEY, "--audience", "worker:rpc", "--token-id", "t-1"]).await;
    let token = minted["token"].as_str().unwrap();
    let expected = format!(
        "{{\n  \"signature_verified\": true,\n  \"worker_id\": \"worker-a\",\n  \"token_id\": \"t-1\",\n  \
         \"audience\": \"worker:rpc\",\n  \"issued_at\": {},\n  \"expires_at\": {}\n}}\n",
        minted["issued_at"], minted["expires_at"]
    );
    assert_eq!(desk.ok(&["verify", token, "--signing-key", KEY]).await, expected);

    let stderr = desk.fails(1, &["verify", VECTOR, "--signing-key", KEY]).await;
    assert_eq!(stderr, "error: the token is expired\n");
}

#[tokio::test]
async fn minted_json_has_its_keys_in_order_and_leaves_out_what_is_empty() {
    let desk = Desk::new();
    let plain = desk.ok(&["w-1", "--signing-key", KEY, "--format", "json"]).await;
    let value: Value = serde_json::from_str(&plain).unwrap();
    let text = |key: &str| value[key].as_str().unwrap().to_owned();
    let expected = format!(
        "{{\n  \"token\": \"{}\",\n  \"token_id\": \"{}\",\n  \"worker_id\": \"w-1\",\n  \
         \"audience\": \"worker:control-plane\",\n  \"issued_at\": \"{}\",\n  \"expires_at\": \"{}\"\n}}\n",
        text("token"),
        text("token_id"),
        text("issued_at"),
        text("expires_at")
    );
    assert_eq!(plain, expected);
    assert_eq!(text("token_id").len(), 32);
    assert!(!plain.contains(KEY));

    let args = ["w-1", "--signing-key", KEY, "--ttl", "15m", "--not-before", "10s", "--token-id", "id"];
    let scopes = ["--scope", "worker:lease", "--scope", "worker:exec", "--audience", "worker:rpc", "--format=json"];
    let full = desk.ok(&[&args[..], &scopes].concat()).await;
    let keys: Vec<&str> = full.lines().filter_map(|line| line.strip_prefix("  \"")?.split('"').next()).collect();
    let order = ["token", "token_id", "worker_id", "audience", "scopes", "issued_at", "not_before", "expires_at"];
    assert_eq!(keys, order);
    let full: Value = serde_json::from_str(&full).unwrap();
    assert_eq!((&full["token_id"], &full["scopes"]), (&json!("id"), &json!(["worker:exec", "worker:lease"])));
    let seconds = |key: &str| full[key].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_second();
    assert_eq!(seconds("expires_at") - seconds("issued_at"), 900);
    assert_eq!(seconds("not_before") - seconds("issued_at"), 10);
}

#[tokio::test]
async fn without_a_format_the_token_stands_alone() {
    let desk = Desk::new();
    let line = desk.ok(&["w-1", "--signing-key", KEY]).await;
    assert!(line.starts_with("stacyvm-worker-v1.") && line.ends_with('\n') && line.lines().count() == 1, "{line}");
    // A worker may be named like a command.
    let minted = desk.ok(&["--signing-key", KEY, "--format=json", "--", "inspect"]).await;
    assert!(minted.contains("\"worker_id\": \"inspect\""), "{minted}");
}

#[tokio::test]
async fn keys_come_from_flags_files_and_the_environment() {
    let desk = Desk::new();
    let (key, other) = (desk.file("key", &format!("\n {KEY} \n")), desk.file("other", OTHER_KEY));
    let token = desk.ok(&["w-1", "--signing-key-file", &key]).await;
    let token = token.trim();
    for args in [
        vec!["--signing-key", KEY],
        vec!["--signing-key-file", &key],
        vec!["--signing-key", OTHER_KEY, "--verification-key", "third", "--verification-key", KEY],
        vec!["--signing-key-file", &other, "--verification-key-file", &other, "--verification-key-file", &key],
        vec!["--verification-key-file", &key],
    ] {
        desk.ok(&[&["verify", token], &args[..]].concat()).await;
    }
    let refused = desk.fails(1, &["verify", token, "--signing-key-file", &other]).await;
    assert_eq!(refused, "error: the signature of the token matches none of the keys\n");

    let with_variable = |args: &[&str], text: &str| {
        let mut command = desk.command(args);
        command.env(VARIABLE, text);
        command
    };
    let minted = finish(with_variable(&["w-1"], KEY)).await;
    assert_eq!(code(&minted), 0, "{minted:?}");
    desk.ok(&["verify", minted.stdout.trim(), "--signing-key", KEY]).await;
    assert_eq!(code(&finish(with_variable(&["verify", token], KEY)).await), 0);
    assert_eq!(code(&finish(with_variable(&["verify", token], OTHER_KEY)).await), 1);
    // A flag goes before the variable.
    assert_eq!(code(&finish(with_variable(&["verify", token, "--signing-key-file", &key], OTHER_KEY)).await), 0);
    // Variables of the worker itself are nobody's flags here.
    let mut command = desk.command(&["w-1", "--signing-key", KEY]);
    command.env("TENURE_SERVER", "http://127.0.0.1:1").env("TENURE_DATA", "/nowhere");
    assert_eq!(code(&finish(command).await), 0);
}

#[tokio::test]
async fn ed25519_keys_are_made_once_and_sign_and_verify() {
    let desk = Desk::new();
    let (private, public) = (desk.path("private.pem"), desk.path("public"));
    let (private, public) = (private.to_str().unwrap(), public.to_str().unwrap());
    let pair = ["keygen", "--private-key-file", private, "--public-key-file", public];
    let printed = desk.ok(&pair).await;
    assert_eq!(std::fs::read_to_string(public).unwrap(), printed);
    let pem = std::fs::read_to_string(private).unwrap();
    assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----\n") && pem.ends_with("-----END PRIVATE KEY-----\n"));
    let mode = |path: &str| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(private), mode(public)), (0o600, 0o644));

    let minted = desk.minted(&["w-1", "--private-key-file", private]).await;
    let token = minted["token"].as_str().unwrap();
    assert!(token.starts_with("tenure-worker-v1."));
    let vector = desk.file("vector", PUBLIC);
    desk.ok(&["verify", token, "--public-key-file", &vector, "--public-key-file", public]).await;
    desk.fails(1, &["verify", token, "--public-key-file", &vector]).await;
    let none = desk.fails(1, &["verify", token, "--signing-key", KEY]).await;
    assert_eq!(none, "error: there is no key for tokens of this kind\n");

    // Nothing is overwritten, and nothing is left behind.
    assert!(desk.fails(2, &pair).await.contains("never overwritten"));
    let new = desk.path("new");
    let new = new.to_str().unwrap();
    desk.fails(2, &["keygen", "--private-key-file", new, "--public-key-file", public]).await;
    desk.fails(2, &["keygen", "--private-key-file", new, "--public-key-file", new]).await;
    assert!(!desk.path("new").exists());
    desk.fails(2, &["keygen", "--private-key-file", "/nowhere/key"]).await;
    desk.fails(2, &["keygen"]).await;
    assert_eq!(std::fs::read_to_string(private).unwrap(), pem);
    let names: Vec<_> = std::fs::read_dir(desk.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let alone = desk.ok(&["keygen", "--private-key-file", new]).await;
    let public = desk.file("alone", &alone);
    let token = desk.ok(&["w-1", "--private-key-file", new]).await;
    desk.ok(&["verify", token.trim(), "--public-key-file", &public]).await;
}

#[tokio::test]
async fn verify_applies_each_expectation() {
    let desk = Desk::new();
    let token = desk.ok(&["w-1", "--signing-key", KEY, "--token-id", "t-1"]).await;
    let later = desk.ok(&["w-1", "--signing-key", KEY, "--not-before", "1m"]).await;
    let token = token.trim();
    for (args, said) in [
        (vec![], None),
        (vec!["--worker-id", "w-1", "--audience", "worker:control-plane", "--revoked-token-id", "t-2"], None),
        (vec!["--worker-id", "w-2"], Some("the token is for another worker")),
        (vec!["--audience", "worker:rpc"], Some("the token is for another audience")),
        (vec!["--revoked-token-id", "t-2", "--revoked-token-id", "t-1"], Some("the token is revoked")),
    ] {
        let args = [&["verify", token, "--signing-key", KEY], &args[..]].concat();
        match said {
            None => drop(desk.ok(&args).await),
            Some(said) => assert_eq!(desk.fails(1, &args).await, format!("error: {said}\n")),
        }
    }
    let early = desk.fails(1, &["verify", later.trim(), "--signing-key", KEY]).await;
    assert_eq!(early, "error: the token is not valid yet\n");
}

#[tokio::test]
async fn a_token_can_come_from_standard_input() {
    let desk = Desk::new();
    let token = desk.ok(&["w-1", "--signing-key", KEY]).await;
    let from = |args: &[&str], text: &[u8]| {
        let path = desk.path("stdin");
        std::fs::write(&path, text).unwrap();
        let mut command = desk.command(args);
        command.stdin(File::open(path).unwrap());
        finish(command)
    };
    let verify = ["verify", "-", "--signing-key", KEY];
    let verified = from(&verify, token.as_bytes()).await;
    assert_eq!(code(&verified), 0, "{verified:?}");
    assert_eq!(code(&from(&["inspect", "-"], token.as_bytes()).await), 0);
    for text in [&b""[..], b" \n", b"\xff", &[b'x'; 100_000], b"stacyvm-worker-v1.a"] {
        let refused = from(&verify, text).await;
        assert_eq!((code(&refused), refused.stdout.as_str()), (1, ""), "{refused:?}");
    }
}

#[tokio::test]
async fn what_is_malformed_ends_with_1_and_what_is_misused_with_2() {
    let desk = Desk::new();
    let (key, empty) = (desk.file("key", KEY), desk.file("empty", " \n"));
    let private = desk.file("private", PRIVATE);
    for args in [
        vec!["inspect", "x"],
        vec!["inspect", "stacyvm-worker-v1.e30"],
        vec!["inspect", "stacyvm-worker-v1.W10.AA"],
        vec!["verify", "x", "--signing-key", KEY],
        // {"exp":9000000000000000}
        vec!["inspect", "stacyvm-worker-v1.eyJleHAiOjkwMDAwMDAwMDAwMDAwMDB9.AA"],
    ] {
        assert!(desk.fails(1, &args).await.starts_with("error: "), "{args:?}");
    }
    for args in [
        vec![],
        vec!["inspect"],
        vec!["verify"],
        vec!["w-1"],
        vec!["verify", "x"],
        vec![" ", "--signing-key", KEY],
        vec![VECTOR, "--signing-key", KEY],
        vec!["w-1", "--signing-key", " "],
        vec!["w-1", "--signing-key", KEY, "--signing-key-file", &key],
        vec!["w-1", "--signing-key", KEY, "--private-key-file", &private],
        vec!["w-1", "--signing-key-file", &key, "--private-key-file", &private],
        vec!["w-1", "--signing-key-file", &empty],
        vec!["w-1", "--signing-key-file", "/nowhere/key"],
        vec!["w-1", "--private-key-file", &key],
        vec!["w-1", "--private-key-file", &empty],
        vec!["verify", "x", "--public-key-file", &key],
        vec!["verify", "x", "--verification-key-file", &empty],
        vec!["verify", "x", "--signing-key", KEY, "--signing-key-file", &key],
        vec!["verify", "x", "--signing-key", KEY, "--audience", "users"],
        vec!["verify", "x", "--signing-key", KEY, "--worker-id", ""],
        vec!["verify", "x", "--signing-key", KEY, "--revoked-token-id", ""],
        vec!["w-1", "--signing-key", KEY, "--ttl", "0s"],
        vec!["w-1", "--signing-key", KEY, "--ttl", "15m1s"],
        vec!["w-1", "--signing-key", KEY, "--ttl", "5"],
        vec!["w-1", "--signing-key", KEY, "--ttl=-5s"],
        vec!["w-1", "--signing-key", KEY, "--not-before", "5m"],
        vec!["w-1", "--signing-key", KEY, "--token-id", " "],
        vec!["w-1", "--signing-key", KEY, "--audience", "users"],
        vec!["w-1", "--signing-key", KEY, "--scope", "worker:everything"],
        vec!["w-1", "--signing-key", KEY, "--format", "yaml"],
        vec!["w-1", "w-2", "--signing-key", KEY],
        vec!["rotation-plan", "--ttl", "16m"],
        vec!["rotation-plan", "--ttl", "0"],
        vec!["rotation-plan", "--new-key-ref", "a key\nwith a line"],
    ] {
        assert!(desk.fails(2, &args).await.starts_with("error: "), "{args:?}");
    }
}

#[tokio::test]
async fn the_rotation_plan_has_five_steps_three_checks_and_no_key() {
    let desk = Desk::new();
    let (new, old) = (desk.file("new", KEY), desk.file("old", OTHER_KEY));
    let refs = ["rotation-plan", "--new-key-ref", &new, "--previous-key-ref", &old, "--ttl", "90s"];
    let json = desk.ok(&[&refs[..], &["--format", "json"]].concat()).await;
    let keys: Vec<&str> = json.lines().filter_map(|line| line.strip_prefix("  \"")?.split('"').next()).collect();
    let order = ["new_key_ref", "previous_key_ref", "max_token_ttl", "steps", "config_snippet", "validation", "text"];
    assert_eq!(keys, order);
    let plan: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&plan["new_key_ref"], &plan["previous_key_ref"]), (&json!(new), &json!(old)));
    assert_eq!(plan["max_token_ttl"], "1m30s");
    assert_eq!(plan["steps"].as_array().unwrap().len(), 5);
    assert!(plan["steps"][3].as_str().unwrap().contains("2m0s"), "{json}");
    let checks: Vec<&str> = plan["validation"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(checks[0], "tenure config lint --production");
    assert_eq!(checks[1], format!("tenure worker token WORKER_ID --signing-key-file {new} --ttl 1m30s --format json"));
    assert!(checks[2].starts_with("tenure worker token verify - ") && checks.len() == 3, "{checks:?}");
    assert_eq!(desk.ok(&refs).await, plan["text"].as_str().unwrap());

    // The commands of the plan are commands of this program.
    let words = |text: &str| text.replace("WORKER_ID", "w-1").split(' ').skip(3).map(str::to_owned).collect::<Vec<_>>();
    let mint = words(checks[1]);
    let minted = desk.ok(&mint.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let token: Value = serde_json::from_str(&minted).unwrap();
    let verify =
        words(checks[2]).join(" ").replace("verify -", &format!("verify {}", token["token"].as_str().unwrap()));
    desk.ok(&verify.split(' ').collect::<Vec<_>>()).await;

    let plain = desk.ok(&["rotation-plan"]).await;
    for part in ["auth.worker_signing_key ", "auth.worker_signing_keys[0]", "5m30s", "  5. Drop the old key"] {
        assert!(plain.contains(part), "{part}: {plain}");
    }
    let mut command = desk.command(&["rotation-plan", "--format", "json"]);
    command.env(VARIABLE, KEY);
    for text in [json, finish(command).await.stdout] {
        assert!(!text.contains(KEY) && !text.contains(OTHER_KEY), "{text}");
    }
}

#[tokio::test]
async fn help_shows_every_flag_of_the_contract_and_no_value_of_the_environment() {
    let desk = Desk::new();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    for (args, flags) in [
        (
            &["--help"][..],
            &["--signing-key", "--signing-key-file", "--private-key-file", "--ttl", "--audience", "--token-id"][..],
        ),
        (&["--help"], &["--not-before", "--format", "--scope", "inspect", "verify", "rotation-plan", "keygen"]),
        (&["inspect", "--help"], &["standard input"]),
        (
            &["verify", "--help"],
            &[
                "--verification-key",
                "--verification-key-file",
                "--public-key-file",
                "--revoked-token-id",
                "--worker-id",
            ],
        ),
        (&["rotation-plan", "--help"], &["--new-key-ref", "--previous-key-ref", "--ttl", "--format"]),
        (&["keygen", "--help"], &["--private-key-file", "--public-key-file"]),
    ] {
        let mut command = desk.command(args);
        command.env(VARIABLE, KEY);
        let output = finish(command).await;
        let help = words(&output.stdout);
        for flag in flags {
            assert!(help.contains(flag), "{flag}: {help}");
        }
        assert!(!help.contains(KEY));
    }
}
