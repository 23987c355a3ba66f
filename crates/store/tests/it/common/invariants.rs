//! What holds whenever no batch is under way, read from the tables themselves.

use std::collections::HashMap;

use tenure_core::batch::Counts;
use tenure_store::Store;

use super::raw::Raw;

/// Each statement finds rows that must not be there.
const NEVER: [(&str, &str); 14] = [
    (
        "every task stands in exactly one place",
        "SELECT b.seq FROM bodies b
         WHERE (SELECT count(*) FROM scheduled s WHERE s.seq = b.seq) + (SELECT count(*) FROM ready r WHERE r.seq = b.seq)
             + (SELECT count(*) FROM running u WHERE u.seq = b.seq) + (SELECT count(*) FROM finished f WHERE f.seq = b.seq)
             + (SELECT count(*) FROM blocked k WHERE k.seq = b.seq) <> 1",
    ),
    (
        "nothing stands anywhere without a body",
        "SELECT p.seq FROM (SELECT seq FROM scheduled UNION ALL SELECT seq FROM ready UNION ALL SELECT seq FROM running
         UNION ALL SELECT seq FROM finished UNION ALL SELECT seq FROM attempts UNION ALL SELECT seq FROM blocked
         UNION ALL SELECT task FROM run_tasks) p
         WHERE NOT EXISTS (SELECT 1 FROM bodies b WHERE b.seq = p.seq)",
    ),
    (
        "a place has the id and the queue of its body",
        "SELECT p.seq FROM (SELECT seq, id, queue_id FROM scheduled UNION ALL SELECT seq, id, queue_id FROM ready
         UNION ALL SELECT seq, id, queue_id FROM running UNION ALL SELECT seq, id, queue_id FROM blocked) p JOIN bodies b ON b.seq = p.seq
         WHERE b.id <> p.id OR b.queue_id <> p.queue_id",
    ),
    (
        "attempts are numbered from 1 without gaps or repeats, up to the one the task counts",
        "SELECT t.seq FROM tasks t LEFT JOIN attempt_history h ON h.seq = t.seq
         GROUP BY t.seq, t.attempt
         HAVING count(h.attempt) <> t.attempt OR count(DISTINCT h.attempt) <> t.attempt
             OR coalesce(min(h.attempt), 1) <> 1 OR coalesce(max(h.attempt), 0) <> t.attempt",
    ),
    (
        "every attempt has a higher fence than the one before",
        "SELECT a.seq FROM attempt_history a JOIN attempt_history b ON b.seq = a.seq AND b.attempt > a.attempt
         WHERE b.fence <= a.fence",
    ),
    (
        "the task has the fence of its last attempt",
        "SELECT t.seq FROM tasks t WHERE t.fence <> coalesce((SELECT max(h.fence) FROM attempt_history h WHERE h.seq = t.seq), 0)",
    ),
    (
        "what waits or runs has a fairness value if and only if its queue has a fairness key",
        "SELECT p.seq FROM (SELECT seq, queue_id, fair FROM scheduled UNION ALL SELECT seq, queue_id, fair FROM ready
         UNION ALL SELECT seq, queue_id, fair FROM running UNION ALL SELECT seq, queue_id, fair FROM blocked) p JOIN queues q ON q.queue_id = p.queue_id
         WHERE (p.fair IS NULL) <> (q.fairness_key IS NULL)",
    ),
    (
        "a blocked task waits for as many as it has edges",
        "SELECT k.seq FROM blocked k WHERE k.waiting_on <> (SELECT count(*) FROM run_edges e WHERE e.downstream = k.seq)",
    ),
    (
        "an edge leads from a task that has not ended",
        "SELECT e.upstream FROM run_edges e WHERE EXISTS (SELECT 1 FROM finished f WHERE f.seq = e.upstream)
             OR NOT EXISTS (SELECT 1 FROM bodies b WHERE b.seq = e.upstream)",
    ),
    (
        "a run counts its tasks as they ended",
        "SELECT r.seq FROM runs r JOIN run_tasks t ON t.run = r.seq LEFT JOIN finished f ON f.seq = t.task
         GROUP BY r.seq, r.open, r.succeeded, r.failed, r.skipped, r.canceled
         HAVING r.open <> count(*) - count(f.seq) OR r.succeeded <> count(CASE WHEN f.ended = 1 THEN 1 END)
             OR r.failed <> count(CASE WHEN f.ended = 2 THEN 1 END) OR r.canceled <> count(CASE WHEN f.ended = 3 THEN 1 END)
             OR r.skipped <> count(CASE WHEN f.ended = 4 THEN 1 END)",
    ),
    (
        "a run has tasks",
        "SELECT r.seq FROM runs r WHERE NOT EXISTS (SELECT 1 FROM run_tasks t WHERE t.run = r.seq)",
    ),
    (
        "a task says that it is in a run if and only if the run has it",
        "SELECT b.seq FROM bodies b LEFT JOIN run_tasks t ON t.task = b.seq
         WHERE (b.run_id IS NULL) <> (t.task IS NULL) OR (b.run_id IS NULL) <> (b.task_key IS NULL)",
    ),
    (
        // What a queue left behind when it changed its transport, or began to push, is the sweep's.
        "a wake-up in the outbox is that of a task that waits or runs under it",
        "SELECT o.id FROM outbox o JOIN queues q ON q.queue_id = o.queue_id AND q.transport = o.key
         WHERE NOT EXISTS (SELECT 1 FROM ready r WHERE r.seq = o.seq AND r.message = o.id)
             AND NOT EXISTS (SELECT 1 FROM running u WHERE u.seq = o.seq AND u.message = o.id)",
    ),
    (
        "what is ready in a queue whose wake-ups leave the process has one in the outbox",
        "SELECT r.seq FROM ready r JOIN queues q ON q.queue_id = r.queue_id
         WHERE q.transport IS NOT NULL AND NOT EXISTS
             (SELECT 1 FROM outbox o WHERE o.id = r.message AND o.key = q.transport)",
    ),
];

const TOKENS_GIVEN_TWICE: &str = "SELECT token FROM (SELECT token FROM attempts UNION ALL SELECT token FROM running
     UNION ALL SELECT token FROM finished WHERE token IS NOT NULL) t GROUP BY token HAVING count(*) > 1";

pub async fn check(store: &dyn Store, raw: &Raw) {
    check_rows(store, raw).await;
    assert_eq!(raw.rows(TOKENS_GIVEN_TWICE).await, Vec::<Vec<_>>::new(), "a token is given out once");
}

/// All but the tokens: a claim that is sent again after its leases have ended draws the same ones again.
pub async fn check_rows(store: &dyn Store, raw: &Raw) {
    for (rule, sql) in NEVER {
        let found = raw.rows(sql).await;
        assert!(found.is_empty(), "broken: {rule}: {:?}", &found[..found.len().min(5)]);
    }
    counts(store, raw).await;
}

/// The counters that are kept with the rows say how many rows there are.
async fn counts(store: &dyn Store, raw: &Raw) {
    let mut counted: HashMap<i64, Counts> = HashMap::new();
    let rows = raw
        .rows(
            "SELECT queue_id, 0, count(*) FROM scheduled GROUP BY queue_id
             UNION ALL SELECT queue_id, 1, count(*) FROM ready GROUP BY queue_id
             UNION ALL SELECT queue_id, 2, count(*) FROM running GROUP BY queue_id
             UNION ALL SELECT queue_id, 3, count(*) FROM finished GROUP BY queue_id
             UNION ALL SELECT queue_id, 4, count(*) FROM finished WHERE dead_lettered_at IS NOT NULL GROUP BY queue_id
             UNION ALL SELECT queue_id, 5, count(*) FROM blocked GROUP BY queue_id",
        )
        .await;
    for row in rows {
        let numbers: Vec<i64> = row.iter().map(|value| value.as_ref().unwrap().parse().unwrap()).collect();
        let counts = counted.entry(numbers[0]).or_default();
        let column = match numbers[1] {
            0 => &mut counts.scheduled,
            1 => &mut counts.ready,
            2 => &mut counts.running,
            3 => &mut counts.finished,
            4 => &mut counts.dead_lettered,
            _ => &mut counts.blocked,
        };
        *column = numbers[2];
    }
    let page = store.queues(None, None, 10_000).await.unwrap();
    assert_eq!(page.next, None);
    for stats in page.items {
        let expected = counted.remove(&i64::from(stats.queue.id.0)).unwrap_or_default();
        assert_eq!(stats.counts, expected, "the counters of {} and its rows", stats.queue.name);
    }
    for row in raw.rows("SELECT queue_id, finished FROM deleted_queues").await {
        let numbers: Vec<i64> = row.iter().map(|value| value.as_ref().unwrap().parse().unwrap()).collect();
        let counts = counted.remove(&numbers[0]).unwrap_or_default();
        assert_eq!((counts.open(), counts.finished), (0, numbers[1]), "a deleted queue has ended tasks only");
    }
    assert_eq!(counted, HashMap::new(), "rows of queues that are not known");
}
