//! `tenure bench`: that every bench works and counts right. How fast it is, is for a person to look at.

use std::time::Duration;

use serde_json::Value;
use tenure_testkit::{Child, Output, Postgres};

use crate::commands::kit::{Home, Site, code, providers};

const LONG: Duration = Duration::from_secs(120);

async fn bench(home: &Home, args: &[&str]) -> Output {
    let mut command = home.command(&[&["bench"], args].concat());
    // Where it makes its folders.
    let folders = home.path().join("tmp");
    std::fs::create_dir_all(&folders).unwrap();
    command.env("TMPDIR", &folders);
    let mut child = Child::spawn(command);
    child.wait(LONG).await;
    // Whatever was started has ended and is gone.
    assert_eq!(std::fs::read_dir(&folders).unwrap().count(), 0, "{args:?} left something behind");
    child.output()
}

/// Runs a bench that has to succeed. Gives its figures, after a look at table and picture.
async fn figures(args: &[&str]) -> Value {
    let home = Home::new();
    let output = bench(&home, &[args, &["--json", "figures.json", "--svg", "picture.svg"]].concat()).await;
    assert_eq!(code(&output), 0, "{args:?}: {output:?}");
    assert!(output.stdout.lines().count() >= 3, "{args:?}: {output:?}");
    let picture = std::fs::read_to_string(home.path().join("picture.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"), "{args:?}: {picture}");
    let figures = std::fs::read_to_string(home.path().join("figures.json")).unwrap();
    let figures: Value = serde_json::from_str(&figures).unwrap();
    assert_eq!(figures["bench"], args[0]);
    assert!(figures["machine"]["cores"].as_u64().unwrap() > 0);
    figures
}

fn number(figures: &Value, path: &str) -> f64 {
    figures.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {figures}"))
}

/// Percentiles that can be: above nothing, and growing.
fn check_times(figures: &Value, path: &str, samples: f64) {
    let of = |name: &str| number(figures, &format!("{path}/{name}"));
    assert_eq!(of("samples"), samples, "{path}");
    assert!(of("p50") > 0.0 && of("p50") <= of("p90") && of("p90") <= of("p99") && of("p99") <= of("max"), "{path}");
}

async fn throughput(store: &str, mode: &str) {
    let args = ["throughput", "--store", store, "--mode", mode, "--tasks", "250", "--batch", "20", "--workers", "4"];
    let figures = figures(&[&args[..], &["--rounds", "2"]].concat()).await;
    assert_eq!(figures["settings"]["mode"], mode);
    assert_eq!(figures["rounds"].as_array().unwrap().len(), 2);
    for place in ["", "/rounds/0", "/rounds/1"] {
        for what in ["tasks", "completed", "distinct"] {
            assert_eq!(number(&figures, &format!("{place}/drain/{what}")), 250.0);
        }
        assert_eq!(number(&figures, &format!("{place}/submit/tasks")), 250.0);
        assert_eq!(number(&figures, &format!("{place}/raw/batch/tasks")), 250.0);
        let pace = number(&figures, &format!("{place}/drain/per_second"));
        for (ratio, raw) in [("to_raw_single", "single"), ("to_raw_batch", "batch")] {
            let raw = number(&figures, &format!("{place}/raw/{raw}/per_second"));
            let found = number(&figures, &format!("{place}/ratio/{ratio}"));
            assert!((found - pace / raw).abs() < 1e-9);
        }
    }
}

#[tokio::test]
async fn throughput_by_exchanges_on_sqlite() {
    throughput("sqlite", "exchange").await;
}

/// With a Postgres server that the bench finds and starts by itself.
#[tokio::test]
async fn throughput_by_exchanges_on_a_postgres_of_its_own() {
    throughput("postgres", "exchange").await;
}

#[tokio::test]
async fn throughput_by_single_calls() {
    throughput("sqlite", "single").await;
    let database = Postgres::shared().await.database().await;
    throughput(database.url(), "single").await;
}

#[tokio::test]
async fn latency() {
    let database = Postgres::shared().await.database().await;
    for store in ["sqlite", database.url()] {
        let figures = figures(&["latency", "--store", store, "--rate", "100", "--seconds", "1"]).await;
        // 50 of the tasks are for warming up.
        assert_eq!((number(&figures, "/tasks"), number(&figures, "/completed")), (150.0, 150.0));
        for what in ["/start_ms", "/submit_ms", "/complete_ms"] {
            check_times(&figures, what, 100.0);
        }
    }
}

#[tokio::test]
async fn backlog() {
    let database = Postgres::shared().await.database().await;
    for store in ["sqlite", database.url()] {
        let args = ["backlog", "--store", store, "--levels", "60,300", "--claims", "20", "--no-settle"];
        let figures = figures(&args).await;
        // 60 and 20 to fill up what was claimed, up to 300; then 60 again.
        assert_eq!(number(&figures, "/completed"), 380.0);
        assert_eq!(number(&figures, "/after/finished"), 320.0);
        for place in ["/levels/0", "/levels/1", "/after"] {
            check_times(&figures, &format!("{place}/claim_ms"), 20.0);
        }
        assert_eq!(number(&figures, "/levels/1/ready"), 300.0);
        assert!(number(&figures, "/growth_with_backlog") > 0.0 && number(&figures, "/growth_with_finished") > 0.0);
        #[cfg(target_os = "linux")]
        assert!(number(&figures, "/levels/0/memory") > 1e6);
    }
}

#[tokio::test]
async fn heartbeat() {
    let database = Postgres::shared().await.database().await;
    for (store, batch, requests) in [("sqlite", "10", 20.0), (database.url(), "1", 200.0)] {
        let args = ["heartbeat", "--store", store, "--leases", "200", "--interval", "1", "--workers", "4"];
        let figures = figures(&[&args[..], &["--batch", batch]].concat()).await;
        for phase in ["/quiet", "/flooded"] {
            assert_eq!(number(&figures, &format!("{phase}/renewed")), 200.0);
            check_times(&figures, &format!("{phase}/answer_ms"), requests);
        }
        assert!(number(&figures, "/flood_completed") > 0.0);
        #[cfg(target_os = "linux")]
        assert!(number(&figures, "/flooded/processor") > 0.0);
    }
}

#[tokio::test]
async fn raw() {
    let database = Postgres::shared().await.database().await;
    for (store, name) in [("sqlite", "sqlite"), (database.url(), "postgres")] {
        let figures = figures(&["raw", "--store", store, "--tasks", "300"]).await;
        assert_eq!(figures["store"], name);
        assert_eq!(number(&figures, "/raw/batch/tasks"), 300.0);
        assert!(number(&figures, "/raw/single/tasks") > 0.0);
    }
}

#[tokio::test]
async fn soak() {
    let figures = figures(&["soak", "--minutes", "0.05", "--rate", "300", "--workers", "2"]).await;
    let (submitted, completed) = (number(&figures, "/submitted"), number(&figures, "/completed"));
    assert!(submitted > 300.0 && submitted == completed, "{submitted} {completed}");
    assert_eq!(figures["stretches"].as_array().unwrap().len(), 30);
    assert!(number(&figures, "/stretches/29/store") > 0.0 && figures["growth"]["grows"].is_array());
}

#[tokio::test]
async fn sandbox() {
    for provider in providers("bench sandbox").await {
        let mut args = vec!["sandbox", "--provider", provider, "--rounds", "3", "--clients", "1,2", "--file", "1"];
        args.push("--no-others");
        if provider == "process" {
            // It refuses the limits that every spawn over RPC has.
            args.push("--no-rpc");
        }
        let figures = figures(&args).await;
        assert_eq!(figures["provider"], provider);
        let ways: &[&str] = if provider == "process" { &["direct"] } else { &["direct", "rpc"] };
        for way in ways {
            for (level, clients) in [(0, 1.0), (1, 2.0)] {
                let place = format!("/{way}/levels/{level}");
                assert_eq!(number(&figures, &format!("{place}/clients")), clients);
                for what in ["fork_exec_ms", "spawn_ms", "first_exec_ms", "destroy_ms"] {
                    check_times(&figures, &format!("{place}/{what}"), 3.0 * clients);
                }
                check_times(&figures, &format!("{place}/warm_exec_ms"), 12.0 * clients);
            }
            assert!(number(&figures, &format!("/{way}/file_read_mb_per_second")) > 0.0);
        }
    }
}

async fn fleet(store: &str) {
    for provider in providers("bench fleet").await {
        let args = ["fleet", "--store", store, "--provider", provider, "--rounds", "2", "--clients", "1,2"];
        let figures = figures(&[&args[..], &["--known", "6", "--workers", "2", "--seconds", "1"]].concat()).await;
        assert_eq!((&figures["settings"]["provider"], &figures["store"]), (&provider.into(), &store.into()));
        for (level, clients) in [(0, 1.0), (1, 2.0)] {
            let place = format!("/levels/{level}");
            assert_eq!(number(&figures, &format!("{place}/clients")), clients);
            for what in ["rpc_spawn_ms", "create_ms", "destroy_ms"] {
                check_times(&figures, &format!("{place}/{what}"), 2.0 * clients);
            }
            for what in ["rpc_exec_ms", "exec_ms"] {
                check_times(&figures, &format!("{place}/{what}"), 8.0 * clients);
            }
            let cold = number(&figures, &format!("{place}/not_warm"));
            check_times(&figures, &format!("{place}/warm_create_ms"), 2.0 * clients - cold);
        }
        // With one client the pool is never empty.
        assert_eq!(number(&figures, "/levels/0/not_warm"), 0.0);
        assert_eq!((number(&figures, "/idle/sandboxes"), number(&figures, "/idle/workers")), (6.0, 2.0));
        assert!(number(&figures, "/idle/processor") >= 0.0 && number(&figures, "/idle/memory_bytes") > 0.0);
    }
}

#[tokio::test]
async fn fleet_on_sqlite() {
    fleet("sqlite").await;
}

#[tokio::test]
async fn fleet_on_postgres() {
    fleet("postgres").await;
}

/// Nothing is known of its store, so there is no ratio.
#[tokio::test]
async fn a_server_that_is_given() {
    let site = Site::new().await;
    let token = site.server.data().join("worker-token");
    let args = ["throughput", "--server", site.server.url(), "--token-file", token.to_str().unwrap()];
    let figures = figures(&[&args[..], &["--tasks", "200", "--rounds", "1"]].concat()).await;
    assert_eq!((number(&figures, "/drain/completed"), &figures["ratio"]), (200.0, &Value::Null));
    assert_eq!(figures["store"], "given");
}

#[tokio::test]
async fn what_cannot_be_measured_is_explained() {
    let home = Home::new();
    for (args, exit, part) in [
        (&["throughput", "--store", "mysql"][..], 2, "use sqlite, postgres, or the address of an empty database"),
        (&["throughput", "--tasks", "0"], 2, "a number of at least 1"),
        (&["throughput", "--batch", "5000"], 2, "a number from 1 to 1000"),
        (&["latency", "--rate", "0"], 2, "a number above 0"),
        (&["backlog", "--levels", "10,5"], 2, "ascending order"),
        (&["backlog", "--levels", "10,20", "--claims", "11"], 2, "more than the 10 tasks of the first level"),
        (&["latency", "--server", "127.0.0.1:1"], 2, "not a server address such as http://127.0.0.1:7423"),
        (&["latency", "--server", "http://127.0.0.1:1"], 1, "no connection to 127.0.0.1:1"),
        (&["latency", "--store", "postgres://nobody:s3cret@127.0.0.1:1/x"], 1, "no connection to Postgres"),
        (&["draw", "nothing.json", "--svg", "x.svg"], 2, "nothing.json could not be read"),
    ] {
        let output = bench(&home, args).await;
        assert_eq!(code(&output), exit, "{args:?}: {output:?}");
        assert!(output.stderr.contains(part), "{args:?}: {}", output.stderr);
        assert!(!output.stderr.contains("s3cret"), "{args:?}: {}", output.stderr);
    }
}

#[tokio::test]
async fn a_picture_is_drawn_from_its_description() {
    let home = Home::new();
    let description = r#"{"title":"T","panels":[{"kind":"bars","title":"P","unit":"jobs/s",
        "bars":[{"label":"one","value":1.0,"kind":"ours"},{"label":"two","value":2.0}]}]}"#;
    std::fs::write(home.path().join("d.json"), description).unwrap();
    assert_eq!(code(&bench(&home, &["draw", "d.json", "--svg", "p.svg"]).await), 0);
    let picture = std::fs::read_to_string(home.path().join("p.svg")).unwrap();
    assert!(picture.contains("one") && picture.contains("two"));
    std::fs::write(home.path().join("d.json"), description.replace("value", "valeu")).unwrap();
    let output = bench(&home, &["draw", "d.json", "--svg", "p.svg"]).await;
    assert_eq!(code(&output), 2);
    assert!(
        output.stderr.contains("d.json is not a valid chart description") && output.stderr.contains("valeu"),
        "{output:?}"
    );
}
