//! Templates, quotas and policies.

use tenure_store::{PolicyRow, QuotaRow, StoreError};

use super::*;
use crate::common::after_start;

crate::on_both_stores!(templates_have_versions, quotas_are_those_of_an_owner, policies_have_an_order);

async fn templates_have_versions(t: &Fixture) {
    assert_eq!(t.store.update_template("acme", "py", "{}").await.unwrap(), None);
    let made = t.store.create_template("acme", "py", r#"{"image":"a"}"#).await.unwrap().unwrap();
    assert_eq!((made.version, &*made.body, made.created_at), (1, r#"{"image":"a"}"#, after_start(0)));
    assert_eq!(t.store.create_template("acme", "py", "{}").await.unwrap(), None, "there is one");
    t.store.create_template("other", "py", "{}").await.unwrap().unwrap();
    t.store.create_template("acme", "js", "{}").await.unwrap().unwrap();
    t.clock.advance(5);
    let next = t.store.update_template("acme", "py", r#"{"image":"b"}"#).await.unwrap().unwrap();
    assert_eq!((next.version, next.created_at, next.updated_at), (2, after_start(0), after_start(5)));
    assert_eq!(t.store.template("acme", "py").await.unwrap(), Some(next));
    assert_eq!(t.store.template("acme", "rs").await.unwrap(), None);
    let names = async |tenant| {
        let found = t.store.templates(tenant).await.unwrap();
        found.iter().map(|row| format!("{}/{}", row.tenant, row.name)).collect::<Vec<_>>()
    };
    assert_eq!(names(Some("acme")).await, ["acme/js", "acme/py"]);
    assert_eq!(names(None).await, ["acme/js", "acme/py", "other/py"]);
    assert!(t.store.delete_template("acme", "py").await.unwrap());
    assert!(!t.store.delete_template("acme", "py").await.unwrap());
    assert_eq!(names(None).await, ["acme/js", "other/py"]);
}

fn quota(tenant: &str, owner: &str, max_sandboxes: u64) -> QuotaRow {
    QuotaRow {
        tenant: tenant.into(),
        owner: owner.into(),
        max_sandboxes,
        max_ttl_ms: 60_000,
        max_exec_timeout_ms: 0,
        created_at: Timestamp::MIN,
        updated_at: Timestamp::MIN,
    }
}

async fn quotas_are_those_of_an_owner(t: &Fixture) {
    let put = t.store.put_quota(&quota("acme", "ann", 3)).await.unwrap();
    assert_eq!(put, QuotaRow { created_at: after_start(0), updated_at: after_start(0), ..quota("acme", "ann", 3) });
    t.clock.advance(5);
    let put = t.store.put_quota(&quota("acme", "ann", 4)).await.unwrap();
    assert_eq!((put.max_sandboxes, put.created_at, put.updated_at), (4, after_start(0), after_start(5)));
    t.store.put_quota(&quota("other", "ann", 1)).await.unwrap();
    assert_eq!(t.store.quota("acme", "ann").await.unwrap(), Some(put));
    assert_eq!(t.store.quota("acme", "bob").await.unwrap(), None);
    assert_eq!((t.store.quotas(Some("acme")).await.unwrap().len(), t.store.quotas(None).await.unwrap().len()), (1, 2));
    assert!(t.store.delete_quota("acme", "ann").await.unwrap());
    assert!(!t.store.delete_quota("acme", "ann").await.unwrap());
    assert_eq!(t.store.quotas(None).await.unwrap().len(), 1);
}

fn policy(id: &str, tenant: Option<&str>, priority: i64) -> PolicyRow {
    PolicyRow {
        id: id.into(),
        tenant: tenant.map(Into::into),
        resource_type: "image".into(),
        effect: "deny".into(),
        pattern: "*".into(),
        priority,
        created_at: Timestamp::MIN,
    }
}

async fn policies_have_an_order(t: &Fixture) {
    for (id, tenant, priority) in
        [("pol-3", Some("acme"), 5), ("pol-1", None, 5), ("pol-2", Some("acme"), -1), ("pol-4", Some("other"), 0)]
    {
        let made = t.store.create_policy(&policy(id, tenant, priority)).await.unwrap();
        assert_eq!(made.tenant.as_deref(), tenant);
        t.clock.advance(1);
    }
    let ids = async |tenant| {
        let found = t.store.policies(tenant).await.unwrap();
        found.iter().map(|row| row.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids("acme").await, ["pol-2", "pol-3", "pol-1"], "by priority, then by age");
    assert_eq!(ids("other").await, ["pol-4", "pol-1"]);
    let taken = t.store.create_policy(&policy("pol-1", None, 0)).await;
    assert!(matches!(taken, Err(StoreError::Failed { .. })), "{taken:?}");
    assert!(!t.store.delete_policy(Some("acme"), "pol-4").await.unwrap(), "of another tenant");
    assert!(!t.store.delete_policy(Some("acme"), "pol-1").await.unwrap(), "of all tenants");
    assert!(!t.store.delete_policy(None, "pol-4").await.unwrap());
    assert!(t.store.delete_policy(None, "pol-1").await.unwrap());
    assert!(t.store.delete_policy(Some("other"), "pol-4").await.unwrap());
    assert_eq!(ids("acme").await, ["pol-2", "pol-3"]);
}
