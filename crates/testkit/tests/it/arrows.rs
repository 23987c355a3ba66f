//! Crates depend inward only.

use std::process::Command;

use serde_json::Value;

/// Each crate, and the crates of ours that it may use. Tests may use more.
const ALLOWED: [(&str, &[&str]); 25] = [
    ("core", &[]),
    ("contract", &[]),
    ("bundle", &[]),
    ("auth", &[]),
    ("dag", &["core", "contract"]),
    ("config", &["auth", "contract", "core", "tls"]),
    ("tls", &[]),
    ("objects", &["core"]),
    ("s3", &["core"]),
    ("outbound", &[]),
    ("transport", &[]),
    ("rpc", &["contract", "auth", "tls"]),
    ("store", &["core", "tls"]),
    ("data", &["core", "store"]),
    ("engine", &["bundle", "core", "dag", "data", "objects", "store", "transport"]),
    (
        "server",
        &["bundle", "core", "contract", "auth", "dag", "data", "engine", "objects", "outbound", "rpc", "s3", "tls"],
    ),
    ("client", &["contract", "transport"]),
    ("sandbox", &[]),
    ("worker", &["bundle", "contract", "auth", "tls", "client", "outbound", "transport", "sandbox"]),
    (
        "cli",
        &[
            "bundle",
            "core",
            "contract",
            "auth",
            "config",
            "dag",
            "data",
            "objects",
            "outbound",
            "rpc",
            "s3",
            "tls",
            "transport",
            "engine",
            "server",
            "client",
            "sandbox",
            "worker",
            "bench",
        ],
    ),
    ("query", &["contract", "core", "store"]),
    ("localpg", &[]),
    ("bench", &["contract", "localpg", "sandbox"]),
    ("testkit", &["localpg"]),
    ("chaos", &["testkit"]),
];

#[test]
fn crates_depend_inward_only() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        let name = short(&package["name"]).unwrap();
        let allowed = ALLOWED.iter().find(|(allowed, _)| *allowed == name);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("{name} is not listed here"));
        for dependency in package["dependencies"].as_array().unwrap() {
            if dependency["kind"].is_null()
                && let Some(used) = short(&dependency["name"])
            {
                assert!(allowed.contains(&used), "{name} must not depend on {used}");
            }
        }
    }
}

fn short(name: &Value) -> Option<&str> {
    name.as_str()?.strip_prefix("tenure-")
}
