//! `tenure init`

use std::os::unix::fs::PermissionsExt;

use tenure_testkit::{Child, Tenure};

use crate::commands::kit::{Home, code, finish};

#[tokio::test]
async fn a_production_setup_passes_lint_and_runs_a_task() {
    let home = Home::new();
    let made = home.run(&["init", "site", "--production", "--worker", "w-1"]).await;
    assert_eq!(code(&made), 0, "{made:?}");
    let site = home.path().join("site");
    let mode = |name: &str| std::fs::metadata(site.join(name)).unwrap().permissions().mode() & 0o777;
    for name in ["tenure.yaml", "keys/admin-key", "keys/api-key", "keys/worker.pem", "keys/w-1.key"] {
        assert_eq!(mode(name), 0o600, "{name}");
        assert!(made.stdout.contains(&format!("\n  {name} ")), "{name} is missing in {}", made.stdout);
    }
    assert_eq!((mode("keys"), mode("data")), (0o700, 0o700));
    let key = std::fs::read_to_string(site.join("keys/w-1.key")).unwrap();
    let config = std::fs::read_to_string(site.join("tenure.yaml")).unwrap();
    assert!(!config.contains(key.trim()) && !made.stdout.contains(key.trim()), "a key is in the open");

    let linted = home.run(&["config", "lint", "--production", "--config", "site/tenure.yaml"]).await;
    assert_eq!((code(&linted), linted.stderr.as_str()), (0, ""), "{}", linted.stdout);

    let yaml = site.join("tenure.yaml");
    let server = Tenure::serve_with(&["--config", yaml.to_str().unwrap()], |command| {
        command.current_dir(home.path()).env("HOME", home.path()).env_remove("RUST_LOG");
    })
    .await;
    let worker = ["worker", "--server", server.url(), "--name", "w-1", "--bootstrap-key-file", "site/keys/w-1.key"];
    let _worker = Child::spawn(home.command(&worker));
    let submit = ["task", "submit", "default", "echo", "--payload", "7", "--wait", "--server", server.url()];
    let mut submit = home.command(&submit);
    submit.env("TENURE_API_KEY_FILE", site.join("keys/api-key"));
    let done = finish(submit).await;
    assert_eq!(code(&done), 0, "{done:?}");
    assert!(done.stdout.ends_with("7\n"), "{}", done.stdout);
}

#[tokio::test]
async fn nothing_is_overwritten_or_left_half_made() {
    let home = Home::new();
    let plain = home.run(&["init"]).await;
    assert_eq!(code(&plain), 0, "{plain:?}");
    let written = std::fs::read_to_string(home.path().join("tenure.yaml")).unwrap();
    assert_eq!(code(&home.run(&["config", "lint"]).await), 0);
    let told = home.run(&["config", "init", "other.yaml"]).await;
    assert_eq!(code(&told), 0, "{told:?}");
    assert_eq!(std::fs::read_to_string(home.path().join("other.yaml")).unwrap(), written);

    for args in [&["init"][..], &["init", "--production"], &["config", "init"], &["config", "init", "other.yaml"]] {
        let refused = home.run(args).await;
        assert_eq!(code(&refused), 2, "{refused:?}");
        assert!(refused.stderr.contains("never overwritten"), "{}", refused.stderr);
    }
    assert_eq!(std::fs::read_to_string(home.path().join("tenure.yaml")).unwrap(), written);
    assert_eq!(std::fs::read_dir(home.path().join("keys")).unwrap().count(), 0, "keys without a configuration");

    for id in ["../x", "", ".x", "a/b"] {
        let odd = home.run(&["init", "new", "--production", "--worker", id]).await;
        assert_eq!(code(&odd), 2, "{id}: {odd:?}");
        assert!(!home.path().join("new").exists(), "{id}");
    }
    let alone = home.run(&["init", "new", "--worker", "w-1"]).await;
    assert_eq!(code(&alone), 2, "{alone:?}");
    assert!(alone.stderr.contains("--production"), "{}", alone.stderr);
}
