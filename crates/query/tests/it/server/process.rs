//! The query process: killed, restarted, and gone with its server.

use std::time::Duration;

use serde_json::json;
use tenure_testkit::wait_until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::kit::{self, DAG, SOON};

const SLOW: &str = "SELECT count(*) FROM blocks a, blocks b, blocks c, blocks d, blocks e, blocks f
    WHERE a.n + b.n + c.n + d.n + e.n + f.n = -1";

fn kill(process: i32) {
    let pid = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_a_killed_process_fail_and_the_next_ones_are_answered() {
    let plane = kit::sqlite().await;
    plane.deploy("default", DAG).await;
    plane.import("default", 0, 99).await;
    assert_eq!(plane.rows("SELECT count(*) FROM blocks").await, json!([[100]]));
    for _ in 0..3 {
        let process = wait_until("a process runs", SOON, async || plane.process()).await;
        let (answers, ()) = tokio::join!(futures_util::future::join_all((0..3).map(|_| plane.query(SLOW))), async {
            // They run when they have made their folders for what does not fit into memory.
            let spill = plane.folder.path().join("run/query-0/spill");
            let running = || std::fs::read_dir(&spill).map_or(0, |entries| entries.count());
            wait_until("the queries run", SOON, async || running() == 3).await;
            kill(process);
        });
        for answer in answers {
            answer.refused(503, "query_unavailable");
        }
        assert_eq!(plane.rows("SELECT count(*) FROM blocks").await, json!([[100]]));
        assert_ne!(plane.process(), Some(process));
    }
    // What the killed ones left is gone.
    let spill = plane.folder.path().join("run/query-0/spill");
    wait_until("nothing is left", SOON, async || std::fs::read_dir(&spill).unwrap().count() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_ends_with_its_server_and_knows_nothing_of_its_environment() {
    let mut plane = kit::sqlite().await;
    plane.query("SELECT 1").await.ok();
    let process = plane.process().unwrap();
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap();
    assert!(environment.is_empty(), "{}", String::from_utf8_lossy(&environment));
    plane.stop().await;
    wait_until("the process has ended", SOON, async || plane.process().is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_goes_away_ends_its_query_and_one_that_does_not_read_harms_nobody() {
    let plane = kit::sqlite().await;
    plane.deploy("default", DAG).await;
    plane.import("default", 0, 99).await;
    let spill = plane.folder.path().join("run/query-0/spill");
    let running = || std::fs::read_dir(&spill).map_or(0, |entries| entries.count());
    let address = plane.url.strip_prefix("http://").unwrap().to_owned();
    let send = async |sql: &str| {
        let body = json!({"sql": sql, "limit": 10_000}).to_string();
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let head = format!(
            "POST /api/v1/query HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        stream
    };
    let gone = send(SLOW).await;
    wait_until("the query runs", SOON, async || running() == 1).await;
    drop(gone);
    wait_until("the query has ended", SOON, async || running() == 0).await;
    // Ten large answers that nobody reads, and still others are answered.
    let mut unread = Vec::new();
    for _ in 0..10 {
        let mut stream = send(&format!("SELECT '{}' FROM blocks a, blocks b", "x".repeat(900))).await;
        let mut first = [0; 15];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        unread.push(stream);
    }
    let answer = tokio::time::timeout(Duration::from_secs(60), plane.rows("SELECT count(*) FROM blocks")).await;
    assert_eq!(answer.unwrap(), json!([[100]]));
}
