//! A control plane that publishes, and workers that read what it published.

use tenure_testkit::{Child, Tenure};

use crate::direct::kit::{Site, spawn};

#[tokio::test]
async fn what_the_control_plane_publishes_runs_and_is_gone() {
    let site = Site::start_publishing(&[]).await;
    let (_stop, _run) = spawn(site.worker().concurrency(4));
    let mut tasks = Vec::new();
    for _ in 0..50 {
        tasks.push(site.submit("echo", 60).await);
    }
    for task in &tasks {
        site.until(task, "Succeeded").await;
        assert_eq!(site.client.get(task).await.unwrap().attempt, 1);
    }
    site.until_entries((0, 0)).await;
}

#[tokio::test]
async fn the_job_of_a_killed_worker_runs_again_and_its_entry_goes() {
    let site = Site::start_publishing(&[]).await;
    let mut command = Tenure::command(&["worker", "--server", site.server.url(), "--queue", "q"]);
    command.arg("--token-file").arg(site.server.data().join("worker-token"));
    command.args(["--transport", "redis", "--operator", "job=sleep 600"]);
    command.env("TENURE_REDIS_URL", site.redis.url());
    let mut dying = Child::spawn(command);
    let task = site.submit("job", 3).await;
    site.until(&task, "Running").await;
    dying.kill();
    let (_stop, _run) = spawn(site.worker().operator("job", crate::direct::kit::echo));
    site.until(&task, "Succeeded").await;
    assert!(site.client.get(&task).await.unwrap().attempt >= 2);
    site.until_entries((0, 0)).await;
}
