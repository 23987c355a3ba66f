//! After everything has healed: ends every sandbox, and waits until nothing is left of them.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::api::{Api, Wanted};
use super::checker::Ended;
use super::fleet::Disks;
use super::history::{Answer, Row};

/// How long after the last fault a sandbox must be created.
const LIVE: Duration = Duration::from_secs(120);

/// How long after the last fault everything must be gone. Orphans are left alone for a minute.
const GONE: Duration = Duration::from_secs(200);

pub async fn drain(api: &Api<'_>, disks: &Disks) -> Ended {
    let start = Instant::now();
    let mut ended = Ended::default();
    for turn in 0_usize.. {
        let server = turn % api.servers();
        if ended.created_after_ms.is_none() && start.elapsed() < LIVE {
            let probed = probe(api, server, &format!("probe-{turn}")).await;
            let took = start.elapsed().as_millis() as u64;
            ended.created_after_ms = matches!(probed, Answer::Ran { .. }).then_some(took);
        }
        if let Answer::Listed { rows } = api.list(server, None).await {
            for row in rows.iter().filter(|row| row.counts()) {
                api.destroy(server, &row.sandbox).await;
            }
            ended.rows = rows;
        }
        let left = disks.look();
        ended.processes = disks.processes();
        let is_clean = left == 0 && ended.processes.is_empty() && !ended.rows.iter().any(Row::counts);
        let has_tried = ended.created_after_ms.is_some() || start.elapsed() > LIVE;
        if is_clean && has_tried || start.elapsed() > GONE {
            break;
        }
        sleep(Duration::from_millis(300)).await;
    }
    ended
}

/// Creates a sandbox and runs a command in it. Gives the last answer.
pub async fn probe(api: &Api<'_>, server: usize, nonce: &str) -> Answer {
    let (nonce, key, owner) = (nonce.to_owned(), Some(format!("key-{nonce}")), "ann".to_owned());
    let wanted = Wanted { nonce, key, owner, ttl_ms: 20_000, memory_mb: 64, vcpus: 1 };
    match api.create(server, &wanted).await {
        Answer::Created { row } if row.state == "running" => api.exec(server, &row.sandbox, false).await,
        other => other,
    }
}
