//! `tenure backup`, `tenure restore`, `tenure store copy`

use tenure_testkit::{Postgres, Tenure};

use crate::commands::kit::{Home, Site, code};

/// A backup is made while the server works; a store is made from it, and work goes on there.
#[tokio::test]
async fn a_backup_of_a_running_server_is_restored() {
    let site = Site::new().await;
    for number in 0..20 {
        site.submit(&["later", "echo", "--payload", &number.to_string()]).await;
    }
    let home = Home::new();
    let file = home.path().join("backup.db");
    let file = file.to_str().unwrap();
    let data = site.server.data().display().to_string();
    let backup = home.run(&["backup", file, "--data", &data]).await;
    assert_eq!(code(&backup), 0, "{backup:?}");
    assert!(backup.stdout.contains("compared"), "{}", backup.stdout);
    // Never over another file.
    let again = home.run(&["backup", file, "--data", &data]).await;
    assert_eq!(code(&again), 2, "{again:?}");
    assert!(again.stderr.contains("already exists"), "{}", again.stderr);
    // A store that a server has open is not replaced.
    let refused = home.run(&["restore", file, "--replace", "--data", &data]).await;
    assert_eq!(code(&refused), 4, "{refused:?}");
    assert!(refused.stderr.contains("is open in a server"), "{}", refused.stderr);

    // A folder that is not there yet is created.
    let fresh = home.path().join("deep/fresh");
    let missing = home.run(&["restore", "missing.db", "--data", fresh.to_str().unwrap()]).await;
    assert_eq!(code(&missing), 3, "{missing:?}");
    assert!(missing.stderr.contains("missing.db: there is no such backup"), "{}", missing.stderr);
    assert!(!fresh.exists());
    let restored = home.run(&["restore", file, "--data", fresh.to_str().unwrap()]).await;
    assert_eq!(code(&restored), 0, "{restored:?}");
    let twice = home.run(&["restore", file, "--data", fresh.to_str().unwrap()]).await;
    assert_eq!(code(&twice), 2, "{twice:?}");
    assert!(
        twice.stderr.contains("this store already exists") && twice.stderr.contains("--replace"),
        "{}",
        twice.stderr
    );
    let replaced = home.run(&["restore", file, "--replace", "--data", fresh.to_str().unwrap()]).await;
    assert_eq!(code(&replaced), 0, "{replaced:?}");
    let kept = std::fs::read_dir(&fresh).unwrap().filter_map(Result::ok);
    assert_eq!(kept.filter(|file| file.file_name().to_string_lossy().contains(".before-")).count(), 1);

    let second = Site { server: Tenure::serve_in(&fresh, &[]).await, home: Home::new() };
    let listed = second.json(&["task", "list", "--queue", "later"]).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 20);
    assert!(listed["items"].as_array().unwrap().iter().all(|task| task["fence"].as_i64() >= Some(1_000_000)));
}

#[tokio::test]
async fn a_store_moves_to_postgres_and_back() {
    let site = Site::new().await;
    site.submit(&["default", "echo", "--key", "once"]).await;
    let home = Home::new();
    let database = Postgres::shared().await.database().await;
    std::fs::write(home.path().join("address"), format!("{}\n", database.url())).unwrap();
    let from = format!("sqlite:{}", site.server.data().join("tenure.db").display());
    let copied = home.run(&["store", "copy", &from, "@address"]).await;
    assert_eq!(code(&copied), 0, "{copied:?}");
    assert!(copied.stdout.starts_with("Copied sqlite:"), "{}", copied.stdout);
    let back = home.run(&["store", "copy", "@address", "sqlite:back.db"]).await;
    assert_eq!(code(&back), 0, "{back:?}");
    assert!(home.path().join("back.db").exists());
    let again = home.run(&["store", "copy", &from, "@address"]).await;
    assert_eq!(code(&again), 2, "{again:?}");
    assert!(again.stderr.contains("already has rows") && again.stderr.contains("createdb"), "{}", again.stderr);

    for (args, wrong) in [
        (["store", "copy", "mysql://x", "sqlite:y"], "a store is `sqlite:PATH`"),
        (["store", "copy", "@missing", "sqlite:y"], "missing cannot be read"),
        (["store", "copy", "sqlite:none.db", "sqlite:y"], "there is no such store"),
        (["store", "copy", "sqlite:back.db", "sqlite:back.db"], "are the same store"),
    ] {
        let refused = home.run(&args).await;
        assert!(code(&refused) == 2 || code(&refused) == 3, "{refused:?}");
        assert!(refused.stderr.contains(wrong), "{}", refused.stderr);
    }
}
