//! Templates, quotas and policies.

use tenure_store::{PolicyRow, QuotaRow, Quotas, StoreError};

use super::*;
use crate::common::after_start;

crate::on_both_stores!(
    templates_have_versions,
    quotas_are_those_of_an_owner,
    policies_have_an_order,
    what_a_request_is_judged_by_is_read_at_once,
    the_way_to_a_sandbox_is_read_at_once,
);

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

async fn set_quotas(t: &Fixture) {
    for (tenant, owner, max_sandboxes) in
        [("acme", "*", 9), ("acme", "ann", 3), ("acme", "bob", 4), ("other", "*", 5), ("other", "ann", 6)]
    {
        t.store.put_quota(&quota(tenant, owner, max_sandboxes)).await.unwrap();
    }
}

fn numbers(quotas: &Quotas) -> [Option<u64>; 2] {
    [&quotas.of_tenant, &quotas.of_owner].map(|quota| quota.as_ref().map(|quota| quota.max_sandboxes))
}

async fn what_a_request_is_judged_by_is_read_at_once(t: &Fixture) {
    let terms = t.store.spawn_terms("acme", Some("ann"), "*", Some("py")).await.unwrap();
    assert!(terms.template.is_none() && terms.policies.is_empty() && terms.workers.is_empty());
    assert_eq!(numbers(&terms.quotas), [None, None]);

    set_quotas(t).await;
    t.store.create_template("acme", "py", "{}").await.unwrap().unwrap();
    t.store.create_template("other", "py", "{\"other\":1}").await.unwrap().unwrap();
    for (id, tenant) in [("pol-1", Some("acme")), ("pol-2", None), ("pol-3", Some("other"))] {
        t.store.create_policy(&policy(id, tenant, 0)).await.unwrap();
        t.clock.advance(1);
    }
    let known = worker(t, Beat { inventory: Some(vec![held("sb-1", "rt-1")]), ..beat("worker-a") }).await;
    let terms = t.store.spawn_terms("acme", Some("ann"), "*", Some("py")).await.unwrap();
    assert_eq!(terms.template, t.store.template("acme", "py").await.unwrap());
    assert_eq!(terms.policies, t.store.policies("acme").await.unwrap());
    assert_eq!(terms.policies.len(), 2);
    assert_eq!(numbers(&terms.quotas), [Some(9), Some(3)]);
    assert_eq!(terms.workers, [Worker { inventory: Vec::new(), ..known }], "without its inventory");

    let terms = t.store.spawn_terms("acme", None, "*", None).await.unwrap();
    assert!(terms.template.is_none());
    assert_eq!(numbers(&terms.quotas), [Some(9), None]);
}

async fn the_way_to_a_sandbox_is_read_at_once(t: &Fixture) {
    assert!(t.store.sandbox_route(&id(1), "*").await.unwrap().is_none());
    set_quotas(t).await;
    let known = worker(t, Beat { inventory: Some(vec![held("sb-1", "rt-1")]), ..beat("worker-a") }).await;
    let row = running(t, 1).await;
    let route = t.store.sandbox_route(&id(1), "*").await.unwrap().unwrap();
    assert_eq!((&route.row, route.worker), (&row, Some(Worker { inventory: Vec::new(), ..known })));
    assert_eq!(route.lease, t.store.sandbox_lease(&id(1)).await.unwrap());
    assert!(route.lease.is_some());
    assert_eq!(numbers(&route.quotas), [Some(9), Some(3)]);

    placed(t, NewSandbox { tenant: "other".into(), owner: None, ..new(2) }).await;
    let route = t.store.sandbox_route(&id(2), "*").await.unwrap().unwrap();
    assert_eq!(numbers(&route.quotas), [Some(5), None], "of its own tenant");

    change(&*t.store, 1, destroy()).await.unwrap();
    let route = t.store.sandbox_route(&id(1), "*").await.unwrap().unwrap();
    assert_eq!((route.row.state, route.lease), (State::Destroyed, None), "a lease that was released is none");
    assert!(t.store.remove_worker("worker-a", false).await.unwrap());
    assert_eq!(t.store.sandbox_route(&id(2), "*").await.unwrap().unwrap().worker, None);
}
