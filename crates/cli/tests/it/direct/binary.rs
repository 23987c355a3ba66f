//! `tenure worker --transport …`.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tenure_testkit::{Child, Moto, Tenure};
use tenure_transport::sqs::{SqsConfig, SqsTransport};
use tenure_transport::{Transport, WakeUp};

use crate::direct::kit::{PATIENCE, Site};

fn worker(site: &Site, args: &[&str]) -> Command {
    let mut command = Tenure::command(&["worker", "--server", site.server.url(), "--queue", "q"]);
    command.arg("--token-file").arg(site.server.data().join("worker-token")).args(args);
    command
}

#[tokio::test]
async fn a_killed_worker_leaves_its_entry_pending() {
    let site = Site::start().await;
    let file = site.server.data().join("redis-url");
    std::fs::write(&file, format!("{}\n", site.redis.url())).unwrap();
    let args = ["--transport", "redis", "--redis-url-file", file.to_str().unwrap(), "--name", "w-1"];
    let mut child = Child::spawn(worker(&site, &args));
    let (done, held) = (site.submit("echo", 60).await, site.submit("sleep", 3600).await);
    site.publish(&[&done]).await;
    site.until(&done, "Succeeded").await;
    site.publish(&[&held]).await;
    site.until(&held, "Running").await;
    site.until_entries((1, 1)).await;
    child.kill();
    let pending: Vec<(String, String, u64, u64)> = site.run(&["XPENDING", "q", "tenure", "-", "+", "10"]);
    assert_eq!((pending.len(), pending[0].1.as_str()), (1, "w-1"));
    assert_eq!(site.entries(), (1, 1));
}

#[tokio::test]
async fn the_address_may_be_in_a_variable_and_is_never_printed() {
    let site = Site::start().await;
    let mut command = worker(&site, &["--transport", "redis", "--concurrency", "1"]);
    command.env("TENURE_REDIS_URL", site.redis.url().replace("redis://", "redis://:hunter2@"));
    let mut child = Child::spawn(command);
    // A Redis without a password refuses one: the worker says so, and asks the server for work.
    child.wait_for_stderr("cannot receive wake-ups", PATIENCE).await;
    let task = site.submit("echo", 60).await;
    site.until(&task, "Succeeded").await;
    let output = child.output();
    assert!(!output.stderr.contains("hunter2") && !output.stdout.contains("hunter2"), "{}", output.stderr);
}

#[tokio::test]
async fn wake_ups_come_by_sqs_as_well() {
    let (site, moto) = tokio::join!(Site::start(), Moto::start());
    let client = sqs_client(&moto);
    let config = SqsConfig { queue_prefix: "t-".to_owned(), create_queues: true, ..SqsConfig::default() };
    let queue: Arc<str> = "q".into();
    let transport = SqsTransport::from_client(&client, config).unwrap();
    let task = site.submit("echo", 60).await;
    let wake = WakeUp { queue: queue.clone(), task: task.as_str().into(), enqueue: 1 };
    for published in transport.publish(&[wake.clone(), wake]).await.unwrap() {
        published.unwrap();
    }
    let endpoint = moto.url();
    let args = ["--transport", "sqs", "--sqs-endpoint", &endpoint, "--sqs-region", "eu-central-1"];
    let mut command = worker(&site, &args);
    command.args(["--sqs-queue-prefix", "t-", "--concurrency", "1"]);
    command.env("AWS_ACCESS_KEY_ID", "access").env("AWS_SECRET_ACCESS_KEY", "hunter2");
    let mut child = Child::spawn(command);
    site.until(&task, "Succeeded").await;
    tenure_testkit::wait_until("both messages are gone", PATIENCE, async || {
        tenure_transport::Upkeep::depth(&transport, &queue).await.unwrap() == 0
    })
    .await;
    assert_eq!(site.client.get(&task).await.unwrap().attempt, 1);
    assert!(!child.output().stderr.contains("hunter2"));
}

fn sqs_client(moto: &Moto) -> aws_sdk_sqs::Client {
    use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider};
    let credentials = Credentials::new("access", "hunter2", None, None, "tests");
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(moto.url())
        .region(Region::new("eu-central-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .build();
    aws_sdk_sqs::Client::from_conf(config)
}

#[tokio::test]
async fn flags_that_make_no_sense_are_refused() {
    for (args, said) in [
        (&["--redis-group", "g"][..], "--redis-group is only for --transport redis"),
        (&["--transport", "redis", "--sqs-region", "r"], "--sqs-region is only for --transport sqs"),
        (&["--transport", "redis"], "no Redis address is set"),
        (&["--transport", "redis", "--redis-url-file", "/nowhere"], "--redis-url-file: /nowhere cannot be read"),
        (&["--transport", "kafka"], "kafka"),
    ] {
        let command = Tenure::command(&[&["worker", "--server", "http://127.0.0.1:9"], args].concat());
        let mut child = Child::spawn(command);
        assert_eq!(child.wait(Duration::from_secs(60)).await.code(), Some(2), "{args:?}");
        let stderr = child.output().stderr;
        assert!(stderr.contains(said), "{args:?}: {stderr}");
    }
}
