//! A disk that is full.

use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tenure_testkit::{Child, Tenure, wait_until};

/// The data folder is a tmpfs of 4 MiB in a mount namespace of the server's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_said_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=4m tmpfs {data} && exec {tenure} serve --listen 127.0.0.1:0 --data {data}",
        data = data.display(),
        tenure = Tenure::binary().display(),
    );
    let mut unshare = Command::new("unshare");
    // Without root a user namespace gives the right to mount.
    let root = nix::unistd::Uid::effective().is_root();
    unshare.args(if root { &["--mount"][..] } else { &["--mount", "--map-root-user"][..] });
    unshare.args(["sh", "-c", &script]);
    let mut server = Child::spawn(unshare);
    let line = server.wait_for_stdout("tenure listening on ", Duration::from_secs(30)).await;
    let url = line.trim().rsplit(' ').next().unwrap().to_owned();
    let http = reqwest::Client::new();
    let submit = async || {
        let task = json!({"queue": "q", "operator": "op", "payload": "x".repeat(200_000)});
        http.post(format!("{url}/api/v1/tasks")).json(&task).send().await.unwrap()
    };

    // Fill it up until the server says so.
    let mut accepted = Vec::new();
    let refused = wait_until("the disk is full", Duration::from_secs(60), async || {
        let response = submit().await;
        if response.status() == 201 {
            let body: serde_json::Value = response.json().await.unwrap();
            accepted.push(body["task_id"].as_str().unwrap().to_owned());
            return None;
        }
        Some(response)
    })
    .await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let body: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(body["error"], "store_unavailable");
    assert!(body["message"].as_str().unwrap().contains("disk full"), "{body}");
    let ready = async || http.get(format!("{url}/api/v1/ready")).send().await.unwrap();
    let full = ready().await;
    assert_eq!(full.status(), 503);
    assert!(full.text().await.unwrap().contains("disk full"));
    assert!(!accepted.is_empty());

    // Give it room again, inside its own namespace.
    let grow = format!("mount -o remount,size=64m {}", data.display());
    let mut enter = Command::new("nsenter");
    enter.args(["--mount", "--target", &server.pid().to_string()]);
    if !root {
        enter.args(["--user", "--preserve-credentials"]);
    }
    let grown = enter.args(["sh", "-c", &grow]).status().unwrap();
    assert!(grown.success());
    wait_until("it accepts again", Duration::from_secs(60), async || submit().await.status() == 201).await;
    wait_until("it is ready again", Duration::from_secs(60), async || ready().await.status() == 200).await;
    for id in accepted {
        let found = http.get(format!("{url}/api/v1/tasks/{id}")).send().await.unwrap();
        assert_eq!(found.status(), 200, "an acknowledged task is there");
    }
}
