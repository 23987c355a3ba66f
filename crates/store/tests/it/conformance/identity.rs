//! Keys, revocations, and the limits of tenants.

use tenure_core::command::submit::{NewTask, Start};
use tenure_core::tenant::TenantUsage;
use tenure_store::{ApiKey, AuditCut, MemberRow, NewApiKey, StoreError, TASK_KEY_KEPT, TenantRecord, TenantRow};

use crate::common::{Fixture, START, after_start, make};

crate::on_both_stores!(
    a_key_is_found_by_its_hash_and_by_nothing_else,
    a_key_stored_again_is_the_same_key,
    an_id_or_a_hash_belongs_to_one_key,
    keys_are_listed_by_tenant_in_pages,
    a_revoked_key_stays_revoked_since_the_first_time,
    a_key_that_has_expired_is_still_found,
    a_worker_is_proven_until_its_time_is_over,
    a_worker_token_is_revoked_until_it_would_have_expired,
    a_shared_secret_is_the_one_that_came_first,
    a_task_key_is_offered_while_its_owner_is_seen,
    what_was_offered_under_a_kid_stays,
    limits_of_tenants_are_set_and_removed,
    tenants_are_created_once_changed_and_deleted,
    members_are_listed_by_tenant_and_go_with_it,
    usage_counts_what_has_not_ended_of_one_tenant,
);

const KEPT_MS: i64 = TASK_KEY_KEPT.as_millis() as i64;

fn key(id: &str, tenant: &str) -> NewApiKey {
    let mut hash = [0; 32];
    hash[..id.len()].copy_from_slice(id.as_bytes());
    NewApiKey {
        key_id: id.to_owned(),
        hash,
        name: format!("the key {id}"),
        role: "operator".to_owned(),
        tenant: tenant.to_owned(),
        owner: None,
        created_by: "root".to_owned(),
        expires_at: None,
    }
}

async fn ids(t: &Fixture, tenant: Option<&str>) -> Vec<String> {
    let page = t.store.api_keys(tenant, None, 100).await.unwrap();
    assert_eq!(page.next, None);
    page.items.into_iter().map(|key| key.key_id).collect()
}

async fn a_key_is_found_by_its_hash_and_by_nothing_else(t: &Fixture) {
    let new = NewApiKey { owner: Some("ann".to_owned()), expires_at: Some(after_start(5)), ..key("k1", "acme") };
    let stored = t.store.create_api_key(&new).await.unwrap();
    let expected = ApiKey {
        key_id: "k1".to_owned(),
        name: "the key k1".to_owned(),
        role: "operator".to_owned(),
        tenant: "acme".to_owned(),
        owner: Some("ann".to_owned()),
        created_at: START,
        created_by: "root".to_owned(),
        expires_at: Some(after_start(5)),
        revoked_at: None,
    };
    assert_eq!(stored, expected);
    assert_eq!(t.store.api_key_by_hash(&new.hash).await.unwrap(), Some(expected));
    let mut other = new.hash;
    other[31] ^= 1;
    assert_eq!(t.store.api_key_by_hash(&other).await.unwrap(), None);
    // The key itself stands nowhere; its hash is 32 bytes whatever somebody wants to store.
    let short = match t.kind {
        crate::common::Kind::Sqlite => "UPDATE api_keys SET hash = X'00'",
        crate::common::Kind::Postgres => "UPDATE api_keys SET hash = '\\x00'",
    };
    assert!(t.raw.try_rows(short).await.is_err());
}

/// The first answer was lost.
async fn a_key_stored_again_is_the_same_key(t: &Fixture) {
    let first = t.store.create_api_key(&key("k1", "acme")).await.unwrap();
    t.clock.advance(7);
    assert_eq!(t.store.create_api_key(&key("k1", "acme")).await.unwrap(), first);
    assert_eq!(t.raw.number("SELECT count(*) FROM api_keys").await, 1);
}

async fn an_id_or_a_hash_belongs_to_one_key(t: &Fixture) {
    t.store.create_api_key(&key("k1", "acme")).await.unwrap();
    let same_id = NewApiKey { hash: [9; 32], ..key("k1", "other") };
    let same_hash = NewApiKey { key_id: "k2".to_owned(), ..key("k1", "other") };
    for taken in [same_id, same_hash] {
        let error = t.store.create_api_key(&taken).await.unwrap_err();
        assert!(matches!(error, StoreError::Failed { .. }), "{error:?}");
        assert!(!error.is_transient(), "trying again would not help");
    }
    assert_eq!(ids(t, None).await, ["k1"]);
    assert_eq!(t.store.api_key_by_hash(&key("k1", "").hash).await.unwrap().unwrap().tenant, "acme");
}

async fn keys_are_listed_by_tenant_in_pages(t: &Fixture) {
    for (id, tenant) in [("b", "acme"), ("B", "other"), ("a", "acme"), ("c", "acme"), ("_", "acme")] {
        t.store.create_api_key(&key(id, tenant)).await.unwrap();
    }
    assert_eq!(ids(t, None).await, ["B", "_", "a", "b", "c"]);
    assert_eq!(ids(t, Some("acme")).await, ["_", "a", "b", "c"]);
    assert_eq!(ids(t, Some("other")).await, ["B"]);
    assert_eq!(ids(t, Some("nobody")).await, [""; 0]);
    let first = t.store.api_keys(Some("acme"), None, 3).await.unwrap();
    assert_eq!((first.items.len(), first.next.as_deref()), (3, Some("b")));
    let second = t.store.api_keys(Some("acme"), Some("b"), 3).await.unwrap();
    assert_eq!((second.items[0].key_id.as_str(), second.items.len(), second.next), ("c", 1, None));
}

async fn a_revoked_key_stays_revoked_since_the_first_time(t: &Fixture) {
    for id in ["k1", "k2"] {
        t.store.create_api_key(&key(id, "acme")).await.unwrap();
    }
    assert_eq!(t.store.revoke_api_key("k9", None).await.unwrap(), None);
    assert_eq!(t.store.api_key("k1", Some("acme")).await.unwrap().unwrap().key_id, "k1");
    assert_eq!(t.store.api_key("k1", None).await.unwrap().unwrap().revoked_at, None);
    for (id, tenant) in [("k1", Some("other")), ("k9", None)] {
        assert_eq!(t.store.api_key(id, tenant).await.unwrap(), None, "{id} {tenant:?}");
    }
    assert_eq!(t.store.revoke_api_key("k1", Some("other")).await.unwrap(), None);
    let hash = key("k1", "").hash;
    assert_eq!(t.store.api_key_by_hash(&hash).await.unwrap().unwrap().revoked_at, None, "not the other tenant's");
    t.clock.advance(10);
    let revoked = t.store.revoke_api_key("k1", Some("acme")).await.unwrap().unwrap();
    assert_eq!(revoked.revoked_at, Some(after_start(10)));
    t.clock.advance(10);
    assert_eq!(t.store.revoke_api_key("k1", None).await.unwrap(), Some(revoked.clone()));
    assert_eq!(t.store.api_key_by_hash(&hash).await.unwrap(), Some(revoked));
    assert_eq!(t.store.api_key_by_hash(&key("k2", "").hash).await.unwrap().unwrap().revoked_at, None);
}

async fn a_key_that_has_expired_is_still_found(t: &Fixture) {
    let new = NewApiKey { expires_at: Some(after_start(5)), ..key("k1", "acme") };
    t.store.create_api_key(&new).await.unwrap();
    t.clock.advance(1_000_000);
    assert_eq!(t.store.api_key_by_hash(&new.hash).await.unwrap().unwrap().expires_at, Some(after_start(5)));
}

async fn a_worker_token_is_revoked_until_it_would_have_expired(t: &Fixture) {
    t.store.revoke_worker_token("t2", after_start(20), "root").await.unwrap();
    t.store.revoke_worker_token("t1", after_start(10), "root").await.unwrap();
    assert_eq!(t.store.revoked_worker_tokens().await.unwrap(), ["t1", "t2"]);
    // Again, with a later and an earlier end: the later one counts, and who was first is remembered.
    t.clock.advance(1);
    t.store.revoke_worker_token("t1", after_start(15), "ann").await.unwrap();
    t.store.revoke_worker_token("t1", after_start(5), "ann").await.unwrap();
    let by = t.raw.rows("SELECT created_by FROM worker_revocations WHERE token_id = 't1'").await;
    assert_eq!(by, [[Some("root".to_owned())]]);
    t.clock.advance(13);
    assert_eq!(t.store.revoked_worker_tokens().await.unwrap(), ["t1", "t2"]);
    t.clock.advance(1);
    assert_eq!(t.store.revoked_worker_tokens().await.unwrap(), ["t2"]);
    assert_eq!(t.store.prune_identity(AuditCut::default(), 100).await.unwrap(), 1);
    assert_eq!(t.raw.number("SELECT count(*) FROM worker_revocations").await, 1);
    assert_eq!(t.store.revoked_worker_tokens().await.unwrap(), ["t2"]);
}

async fn a_worker_is_proven_until_its_time_is_over(t: &Fixture) {
    let ids = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    t.store.prove_workers(&ids(&["w-1", "w-2"]), after_start(20)).await.unwrap();
    t.store.prove_workers(&ids(&["w-2"]), after_start(30)).await.unwrap();
    t.store.prove_workers(&ids(&["w-2", "w-3"]), after_start(10)).await.unwrap();
    let after = async |ms| t.store.proven_workers(after_start(ms)).await.unwrap();
    let row = |name: &str, ms| (name.to_owned(), after_start(ms));
    assert_eq!(after(0).await, [row("w-2", 30), row("w-1", 20), row("w-3", 10)]);
    assert_eq!(after(20).await, [row("w-2", 30)]);
    t.clock.advance(20);
    assert_eq!(t.store.prune_identity(AuditCut::default(), 1).await.unwrap(), 1);
    assert_eq!(t.store.prune_identity(AuditCut::default(), 100).await.unwrap(), 1);
    assert_eq!(after(0).await, [row("w-2", 30)]);
}

async fn a_shared_secret_is_the_one_that_came_first(t: &Fixture) {
    for candidate in ["first", "second", "first"] {
        assert_eq!(t.store.shared_secret("worker_token", candidate).await.unwrap(), "first");
    }
    assert_eq!(t.store.shared_secret("another", "second").await.unwrap(), "second");
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn a_task_key_is_offered_while_its_owner_is_seen(t: &Fixture) {
    t.store.register_task_key("b", r#"{"kty":"EC"}"#).await.unwrap();
    t.store.register_task_key("a", "{}").await.unwrap();
    assert_eq!(t.store.task_keys().await.unwrap(), pairs(&[("a", "{}"), ("b", r#"{"kty":"EC"}"#)]));
    t.clock.advance(KEPT_MS - 1);
    t.store.register_task_key("a", "{}").await.unwrap();
    assert_eq!(t.store.task_keys().await.unwrap().len(), 2);
    assert_eq!(t.store.prune_identity(AuditCut::default(), 100).await.unwrap(), 0);
    t.clock.advance(1);
    assert_eq!(t.store.task_keys().await.unwrap(), pairs(&[("a", "{}")]));
    assert_eq!(t.store.prune_identity(AuditCut::default(), 100).await.unwrap(), 1);
    assert_eq!(t.store.task_keys().await.unwrap(), pairs(&[("a", "{}")]));
    assert_eq!(t.raw.number("SELECT count(*) FROM task_keys").await, 1);
    // Taken back, it is offered to nobody.
    assert!(t.store.forget_task_key("a").await.unwrap());
    assert!(!t.store.forget_task_key("a").await.unwrap());
    assert_eq!(t.store.task_keys().await.unwrap(), pairs(&[]));
}

async fn what_was_offered_under_a_kid_stays(t: &Fixture) {
    t.store.register_task_key("a", "first").await.unwrap();
    t.store.register_task_key("a", "second").await.unwrap();
    assert_eq!(t.store.task_keys().await.unwrap(), pairs(&[("a", "first")]));
}

async fn limits_of_tenants_are_set_and_removed(t: &Fixture) {
    assert_eq!(t.store.tenant_limits().await.unwrap(), []);
    t.store.set_tenant_limits("b", Some(r#"{"ready":1}"#)).await.unwrap();
    t.store.set_tenant_limits("a", Some("{}")).await.unwrap();
    t.clock.advance(3);
    t.store.set_tenant_limits("b", Some(r#"{"ready":2}"#)).await.unwrap();
    assert_eq!(t.store.tenant_limits().await.unwrap(), pairs(&[("a", "{}"), ("b", r#"{"ready":2}"#)]));
    t.store.set_tenant_limits("a", None).await.unwrap();
    t.store.set_tenant_limits("nobody", None).await.unwrap();
    assert_eq!(t.store.tenant_limits().await.unwrap(), pairs(&[("b", r#"{"ready":2}"#)]));
}

fn tenant(id: &str, name: &str) -> TenantRecord {
    TenantRecord { id: id.to_owned(), name: name.to_owned(), owner: None, settings: None }
}

async fn tenants_are_created_once_changed_and_deleted(t: &Fixture) {
    assert_eq!((t.store.tenant("acme").await.unwrap(), t.store.tenants().await.unwrap()), (None, vec![]));
    assert!(t.store.create_tenant(&tenant("acme", "Acme")).await.unwrap());
    assert!(!t.store.create_tenant(&tenant("acme", "another")).await.unwrap());
    let first = TenantRow { record: tenant("acme", "Acme"), created_at: START, updated_at: START };
    assert_eq!(t.store.tenant("acme").await.unwrap(), Some(first.clone()));
    t.clock.advance(5);
    let full = TenantRecord {
        owner: Some("ann".to_owned()),
        settings: Some(r#"{"a":1}"#.to_owned()),
        ..tenant("acme", "Acme Inc")
    };
    assert!(t.store.put_tenant(&full).await.unwrap());
    assert!(t.store.put_tenant(&tenant("B", "by put")).await.unwrap());
    let (acme, other) = (TenantRow { record: full, updated_at: after_start(5), ..first }, tenant("B", "by put"));
    let other = TenantRow { record: other, created_at: after_start(5), updated_at: after_start(5) };
    assert_eq!(t.store.tenants().await.unwrap(), [other.clone(), acme], "by id, in the order of bytes");
    assert!(t.store.delete_tenant("acme").await.unwrap());
    assert!(!t.store.delete_tenant("acme").await.unwrap());
    assert_eq!(t.store.tenants().await.unwrap(), [other]);
}

async fn members_are_listed_by_tenant_and_go_with_it(t: &Fixture) {
    let member =
        |user: &str, role: &str| MemberRow { user_id: user.to_owned(), role: role.to_owned(), created_at: START };
    t.store.create_tenant(&tenant("acme", "Acme")).await.unwrap();
    for (tenant, user) in [("acme", "zoe"), ("acme", "Ann"), ("other", "ann")] {
        let put = t.store.put_member(tenant, user, "viewer").await.unwrap();
        assert_eq!(put, Some(member(user, "viewer")));
    }
    t.clock.advance(9);
    let changed = t.store.put_member("acme", "zoe", "admin").await.unwrap();
    assert_eq!(changed, Some(member("zoe", "admin")), "a member since the first time");
    assert_eq!(t.store.members("acme").await.unwrap(), [member("Ann", "viewer"), member("zoe", "admin")]);
    assert!(t.store.delete_member("acme", "Ann").await.unwrap());
    assert!(!t.store.delete_member("acme", "Ann").await.unwrap());
    assert!(!t.store.delete_member("acme", "ann").await.unwrap());
    t.store.delete_tenant("acme").await.unwrap();
    assert_eq!(t.store.members("acme").await.unwrap(), []);
    assert_eq!(t.store.members("other").await.unwrap(), [member("ann", "viewer")]);
}

async fn usage_counts_what_has_not_ended_of_one_tenant(t: &Fixture) {
    let usage = async |tenant: &str| t.store.tenant_usage(tenant).await.unwrap();
    assert_eq!(usage("acme").await, TenantUsage::default());
    let with = |payload: &str, task: NewTask| NewTask { payload: payload.into(), ..task };
    t.put(with("\"held\"", t.task("q").await)).await;
    let ended = t.claim_one("q").await;
    t.complete(&ended).await.unwrap();
    t.put(with("\"held\"", t.task("q").await)).await;
    t.claim_one("q").await;
    // Bytes, not characters.
    t.put(with("\"é\"", t.task("q").await)).await;
    t.put(with("1", t.task("p").await)).await;
    t.put(NewTask { start: Start::After(9), ..with("22", t.task("q").await) }).await;
    t.put(NewTask { tenant: "other".into(), ..with("333", t.task("q").await) }).await;
    let canceled = t.put_in("q").await;
    t.run(make::cancel(canceled, tenure_core::command::cancel::Mode::Immediate)).await.unwrap();
    assert_eq!(usage("acme").await, TenantUsage { ready: 2, scheduled: 1, running: 1, payload_bytes: 6 + 4 + 1 + 2 });
    assert_eq!(usage("other").await, TenantUsage { ready: 1, payload_bytes: 3, ..TenantUsage::default() });
    assert_eq!(usage("nobody").await, TenantUsage::default());
}
