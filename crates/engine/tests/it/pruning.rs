//! What is kept about callers goes when it is old, by itself.

use std::sync::Arc;
use std::time::Duration;

use tenure_engine::store::{AdminAudit, AdminAuditFilter, Clock};
use tenure_engine::{Engine, EngineConfig};
use tenure_testkit::wait_until;

use crate::harness::{Home, SOON};
use crate::on_both_stores;

on_both_stores!(old_audit_rows_go_and_young_ones_stay, without_a_retention_nothing_of_the_audit_goes);

fn request(path: &str) -> AdminAudit {
    AdminAudit {
        actor: "ann".to_owned(),
        method: "GET".to_owned(),
        path: path.to_owned(),
        status: 200,
        duration_ms: 1,
        request_id: "r".to_owned(),
        remote_addr: "192.0.2.1".to_owned(),
        user_agent: None,
        tenant: None,
    }
}

async fn paths(engine: &Engine) -> Vec<String> {
    let filter = AdminAuditFilter { limit: 10_000, ..AdminAuditFilter::default() };
    let page = engine.store().admin_audit(&filter).await.unwrap();
    page.items.into_iter().map(|row| row.entry.path).collect()
}

async fn open(home: &Home, audit_retention: Option<Duration>) -> (Engine, Arc<Clock>) {
    let clock = Arc::new(Clock::default());
    let config = EngineConfig {
        admin_audit_retention: audit_retention,
        audit_retention,
        clock: Arc::clone(&clock),
        ..EngineConfig::default()
    };
    (Engine::open_with(&home.url(), config).await.unwrap(), clock)
}

/// More than one bite of them.
async fn old_audit_rows_go_and_young_ones_stay(home: Home) {
    let (engine, clock) = open(&home, Some(Duration::from_secs(3_600))).await;
    engine.store().audit_admin(&vec![request("/old"); 1_700]).await.unwrap();
    clock.advance(3_000_000);
    engine.store().audit_admin(&[request("/young")]).await.unwrap();
    assert_eq!(paths(&engine).await.len(), 1_701);
    clock.advance(700_000);
    wait_until("the old rows are gone", SOON, async || {
        // Moving the clock wakes the background work, unless it is busy.
        clock.advance(1);
        paths(&engine).await == ["/young"]
    })
    .await;
    engine.shutdown().await;
}

/// The key that went shows that somebody was there to remove the audit row too.
async fn without_a_retention_nothing_of_the_audit_goes(home: Home) {
    let (engine, clock) = open(&home, None).await;
    engine.store().audit_admin(&[request("/old")]).await.unwrap();
    engine.store().register_task_key("kid", "{}").await.unwrap();
    clock.advance(100 * 24 * 3_600_000);
    wait_until("the key is pruned", SOON, async || {
        // A key that is only hidden would come back with its first words when it is registered again.
        engine.store().register_task_key("kid", r#"{"new":1}"#).await.unwrap();
        let keys = engine.store().task_keys().await.unwrap();
        clock.advance(49 * 3_600_000);
        keys[0].1 == r#"{"new":1}"#
    })
    .await;
    assert_eq!(paths(&engine).await, ["/old"]);
    engine.shutdown().await;
}
