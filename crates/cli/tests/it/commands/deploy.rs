//! The files in `deploy/`: what they say must be true of the binary.

use std::path::{Path, PathBuf};

use crate::commands::kit::{Home, code};

fn deploy(file: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The configuration in the manifest: the lines below `tenure.yaml: |`, without their indentation.
fn configuration(manifest: &str) -> String {
    let lines = manifest.lines().skip_while(|line| line.trim() != "tenure.yaml: |").skip(1);
    let lines = lines.map_while(|line| line.strip_prefix("    "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[tokio::test]
async fn the_configuration_for_kubernetes_passes_every_check_for_production() {
    let home = Home::new();
    let manifest = deploy("kubernetes/tenure.yaml");
    let secrets = home.path().display().to_string();
    let text = configuration(&manifest).replace("/run/secrets/tenure", &secrets);
    assert!(text.contains("auth:"), "no configuration was found in the manifest");
    std::fs::write(home.path().join("tenure.yaml"), text).unwrap();
    for name in ["api-key", "admin-key"] {
        std::fs::write(home.path().join(name), format!("{name}-0123456789abcdef0123456789abcdef\n")).unwrap();
    }
    let made = home.run(&["worker", "token", "keygen", "--private-key-file", "worker.pem"]).await;
    assert_eq!(code(&made), 0, "{made:?}");
    std::fs::write(home.path().join("task-key.pem"), "").unwrap();

    let mut lint = home.command(&["config", "lint", "--production"]);
    lint.env("TENURE_STORE", "postgres://tenure:secret@db.example.com/tenure?sslmode=verify-full");
    let lint = crate::commands::kit::finish(lint).await;
    assert_eq!(code(&lint), 0, "{lint:?}");
    // Every secret that the manifest mounts is used, and every one that is used is mounted.
    for name in ["api-key", "admin-key", "worker.pem", "task-key.pem"] {
        assert!(manifest.contains(&format!("{{key: {name}, path: {name}}}")), "{name} is not mounted");
        assert!(manifest.contains(&format!("/run/secrets/tenure/{name}")), "{name} is not used");
    }
}

#[tokio::test]
async fn the_units_use_flags_that_exist() {
    let home = Home::new();
    for (unit, command) in [("systemd/tenure.service", "serve"), ("systemd/tenure-worker@.service", "worker")] {
        let help = home.run(&[command, "--help"]).await.stdout;
        let unit = deploy(unit);
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/tenure ")).unwrap();
        assert!(start.starts_with(command), "{start}");
        let flags: Vec<&str> = start.split(' ').filter(|word| word.starts_with("--")).collect();
        assert!(flags.len() >= 2, "{start}");
        for flag in flags {
            assert!(help.contains(flag), "{command} has no {flag}");
        }
    }
}
