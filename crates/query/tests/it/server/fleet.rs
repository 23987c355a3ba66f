//! Query processes that others run, named by `query.endpoint`.

use std::process::Command;

use serde_json::json;
use tenure_auth::Secret;
use tenure_contract::query::process::PATH;
use tenure_server::{QueryEndpoint, QueryPlace};
use tenure_testkit::{Child, Port, wait_until};

use super::kit::{self, DAG, SOON};

const TOKEN: &str = "the-token-of-the-fleet";

struct Member {
    process: Child,
    port: Port,
    folder: tempfile::TempDir,
}

impl Member {
    async fn start() -> Self {
        let (port, folder) = (Port::reserve(), tempfile::tempdir().unwrap());
        let token = folder.path().join("token");
        std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
        let mut member = Self { process: Self::spawn(&port, &folder), port, folder };
        member.listens().await;
        member
    }

    fn spawn(port: &Port, folder: &tempfile::TempDir) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-query"));
        command.arg("--listen").arg(format!("127.0.0.1:{}", port.number()));
        command.arg("--token-file").arg(folder.path().join("token"));
        command.arg("--spill").arg(folder.path().join("spill"));
        Child::spawn(command)
    }

    async fn listens(&mut self) {
        let address = format!("127.0.0.1:{}", self.port.number());
        wait_until("it listens", SOON, async || tokio::net::TcpStream::connect(&address).await.is_ok()).await;
    }

    fn endpoint(&self) -> QueryEndpoint {
        format!("http://127.0.0.1:{}", self.port.number()).parse().unwrap()
    }

    /// Queries that it has answered.
    fn answered(&mut self) -> usize {
        self.process.output().stderr.matches("query done").count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_go_round_a_fleet_and_past_those_that_are_gone() {
    let (mut one, mut two) = (Member::start().await, Member::start().await);
    let fleet = |token: &str| QueryPlace::Fleet(vec![one.endpoint(), two.endpoint()], Secret::new(token));
    let plane = kit::plane(None, |config| config.query.place = fleet(TOKEN)).await;
    let stranger = kit::plane(None, |config| config.query.place = fleet("another-token-of-a-fleet")).await;
    plane.deploy("default", DAG).await;
    plane.import("default", 0, 9).await;
    for _ in 0..4 {
        assert_eq!(plane.rows("SELECT count(*) FROM blocks").await, json!([[10]]));
    }
    wait_until("each has answered some", SOON, async || one.answered() == 2 && two.answered() == 2).await;
    // A server with another token is served by none, and does not tell its caller why.
    stranger.query("SELECT 1").await.refused(503, "query_unavailable");
    let http = reqwest::Client::new();
    for token in ["", "Bearer ", "Bearer another-token-of-a-fleet", TOKEN] {
        let address = format!("http://127.0.0.1:{}{PATH}", one.port.number());
        let answer = http.post(address).header("authorization", token).body("{}").send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 401, "{token}");
    }
    one.process.kill();
    for _ in 0..4 {
        assert_eq!(plane.rows("SELECT count(*) FROM blocks").await, json!([[10]]));
    }
    wait_until("the other one has answered all", SOON, async || two.answered() == 6).await;
    two.process.kill();
    let body = json!({"sql": "SELECT 1", "timeout_seconds": 1});
    plane.query_of("default", body).await.refused(503, "query_unavailable");
    one.process = Member::spawn(&one.port, &one.folder);
    one.listens().await;
    assert_eq!(plane.rows("SELECT count(*) FROM blocks").await, json!([[10]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_on_the_network_does_not_start_with_a_weak_token_or_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "short").unwrap();
    let spill = folder.path().join("spill");
    for with_token in [false, true] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-query"));
        command.args(["--listen", "127.0.0.1:0"]).arg("--spill").arg(&spill);
        if with_token {
            command.arg("--token-file").arg(&token);
        }
        let mut child = Child::spawn(command);
        assert!(!child.wait(SOON).await.success());
        let output = child.output();
        let says = if with_token { "at least 16 characters" } else { "--token-file" };
        assert!(output.stderr.contains(says), "{output:?}");
    }
}
