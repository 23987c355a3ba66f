//! Who did what: recorded in order, found again, removed when it is old.

use tenure_core::TaskId;
use tenure_store::{
    AdminAudit, AdminAuditFilter, Asker, AuditCut, CredentialGrant, Fault, OperationAudit, OperationAuditFilter,
    QueryAudit,
};

use super::sandboxes::{beat, running, worker};
use crate::common::{Fixture, START, after_start};

crate::on_both_stores!(
    requests_of_admins_come_back_as_they_were,
    every_filter_of_requests_finds_its_rows,
    requests_are_listed_newest_first_in_pages,
    operations_come_back_as_they_were,
    the_provider_of_a_sandbox_is_kept_with_its_operations,
    every_filter_of_operations_finds_its_rows,
    a_text_with_a_nul_costs_nobody_a_row,
    audit_rows_that_are_old_go_bite_by_bite,
    without_a_retention_audit_rows_stay,
    entries_are_recorded_together_or_not_at_all,
    queries_come_back_as_they_were_and_go_when_they_are_old,
    temporary_keys_come_back_as_they_were_and_go_when_they_are_old,
);

fn request(actor: &str, path: &str) -> AdminAudit {
    AdminAudit {
        actor: actor.to_owned(),
        method: "POST".to_owned(),
        path: path.to_owned(),
        status: 200,
        duration_ms: 3,
        request_id: "r-1".to_owned(),
        remote_addr: "192.0.2.1:5000".to_owned(),
        user_agent: None,
        tenant: None,
    }
}

fn operation(actor: &str, action: &str) -> OperationAudit {
    OperationAudit {
        actor: actor.to_owned(),
        action: action.to_owned(),
        sandbox: None,
        resource: "queue/q".to_owned(),
        status: "ok".to_owned(),
        detail: None,
        tenant: None,
        request_id: None,
    }
}

async fn requests(t: &Fixture, filter: AdminAuditFilter) -> Vec<AdminAudit> {
    let page = t.store.admin_audit(&AdminAuditFilter { limit: 100, ..filter }).await.unwrap();
    assert_eq!(page.next, None);
    page.items.into_iter().map(|row| row.entry).collect()
}

async fn operations(t: &Fixture, filter: OperationAuditFilter) -> Vec<OperationAudit> {
    let page = t.store.operation_audit(&OperationAuditFilter { limit: 100, ..filter }).await.unwrap();
    assert_eq!(page.next, None);
    page.items.into_iter().map(|row| row.entry).collect()
}

async fn requests_of_admins_come_back_as_they_were(t: &Fixture) {
    let full = AdminAudit {
        status: 503,
        duration_ms: 5_000_000_000,
        user_agent: Some("curl/8".to_owned()),
        tenant: Some("acme".to_owned()),
        ..request("ann", "/api/v1/admin/api-keys")
    };
    let plain = request("root", "/api/v1/admin/tenants");
    t.store.audit_admin(&[]).await.unwrap();
    t.store.audit_admin(&[full.clone(), plain.clone()]).await.unwrap();
    let page = t.store.admin_audit(&AdminAuditFilter { limit: 9, ..AdminAuditFilter::default() }).await.unwrap();
    assert!(page.items.iter().all(|row| row.at == START), "the store's time: {:?}", page.items);
    assert!(page.items[0].id > page.items[1].id);
    let entries: Vec<_> = page.items.into_iter().map(|row| row.entry).collect();
    assert_eq!(entries, [plain, full], "newest first");
}

async fn every_filter_of_requests_finds_its_rows(t: &Fixture) {
    let get = AdminAudit { method: "GET".to_owned(), ..request("ann", "/admin/keys") };
    let post = AdminAudit { status: 409, ..request("bob", "/admin/keys/k1") };
    let own = AdminAudit { tenant: Some("acme".to_owned()), ..request("ann", "/admin_%") };
    t.store.audit_admin(&[get.clone(), post.clone(), own.clone()]).await.unwrap();
    let all = vec![own.clone(), post.clone(), get.clone()];
    let text = |text: &str| Some(text.to_owned());
    let filter = AdminAuditFilter::default;
    let cases = [
        (filter(), all),
        (AdminAuditFilter { actor: text("ann"), ..filter() }, vec![own.clone(), get.clone()]),
        (AdminAuditFilter { actor: text("an"), ..filter() }, vec![]),
        (AdminAuditFilter { method: text("GET"), ..filter() }, vec![get.clone()]),
        (AdminAuditFilter { status: Some(409), ..filter() }, vec![post.clone()]),
        (AdminAuditFilter { path: text("/admin/keys"), ..filter() }, vec![post.clone(), get.clone()]),
        (AdminAuditFilter { path: text("/ADMIN"), ..filter() }, vec![]),
        (AdminAuditFilter { path: text("keys"), ..filter() }, vec![]),
        // No pattern, whatever it looks like.
        (AdminAuditFilter { path: text("/admin_%"), ..filter() }, vec![own.clone()]),
        (AdminAuditFilter { path: text("/admin_k"), ..filter() }, vec![]),
        (AdminAuditFilter { tenant: text("acme"), ..filter() }, vec![own.clone()]),
        (AdminAuditFilter { actor: text("ann"), status: Some(409), ..filter() }, vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(requests(t, filter.clone()).await, expected, "{filter:?}");
    }
}

async fn requests_are_listed_newest_first_in_pages(t: &Fixture) {
    let paths = ["/1", "/2", "/3", "/4", "/5"];
    t.store.audit_admin(&paths.map(|path| request("ann", path))).await.unwrap();
    let (mut before, mut seen) = (None, Vec::new());
    loop {
        let page =
            t.store.admin_audit(&AdminAuditFilter { before, limit: 2, ..AdminAuditFilter::default() }).await.unwrap();
        seen.extend(page.items.into_iter().map(|row| row.entry.path));
        // What comes meanwhile is newer than all pages.
        t.store.audit_admin(&[request("bob", "/later")]).await.unwrap();
        let Some(next) = page.next else { break };
        before = Some(next.parse().unwrap());
    }
    assert_eq!(seen, ["/5", "/4", "/3", "/2", "/1"]);
}

async fn operations_come_back_as_they_were(t: &Fixture) {
    let full = OperationAudit {
        status: "failed".to_owned(),
        detail: Some("no such key".to_owned()),
        tenant: Some("acme".to_owned()),
        request_id: Some("r-7".to_owned()),
        ..operation("ann", "queue.pause")
    };
    let plain = operation("root", "task.cancel");
    t.store.audit_operations(&[full.clone(), plain.clone()]).await.unwrap();
    let filter = OperationAuditFilter { limit: 1, ..OperationAuditFilter::default() };
    let first = t.store.operation_audit(&filter).await.unwrap();
    assert_eq!((&first.items[0].entry, first.items[0].at), (&plain, START));
    let before = first.next.map(|next| next.parse().unwrap());
    let second = t.store.operation_audit(&OperationAuditFilter { before, ..filter }).await.unwrap();
    assert_eq!((&second.items[0].entry, second.next), (&full, None));
}

async fn the_provider_of_a_sandbox_is_kept_with_its_operations(t: &Fixture) {
    worker(t, beat("a")).await;
    let row = running(t, 1).await;
    let of = |sandbox: &str| OperationAudit { sandbox: Some(sandbox.to_owned()), ..operation("ann", "exec") };
    t.store.audit_operations(&[of(&row.id), of("sb-unknown"), operation("ann", "queue.pause")]).await.unwrap();
    let page = t.store.operation_audit(&OperationAuditFilter { limit: 9, ..OperationAuditFilter::default() }).await;
    let found: Vec<_> = page.unwrap().items.into_iter().map(|row| (row.entry.sandbox, row.provider)).collect();
    let provider = Some(row.spec.provider.clone());
    let expected = [(None, None), (Some("sb-unknown".to_owned()), None), (Some(row.id.to_string()), provider)];
    assert_eq!(found, expected);
}

async fn every_filter_of_operations_finds_its_rows(t: &Fixture) {
    let pause = operation("ann", "queue.pause");
    let cancel = operation("bob", "task.cancel");
    let own = OperationAudit { tenant: Some("acme".to_owned()), ..operation("ann", "task.cancel") };
    t.store.audit_operations(&[pause.clone(), cancel.clone(), own.clone()]).await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    let filter = OperationAuditFilter::default;
    let cases = [
        (OperationAuditFilter { action: text("task.cancel"), ..filter() }, vec![own.clone(), cancel.clone()]),
        (OperationAuditFilter { action: text("task"), ..filter() }, vec![]),
        (OperationAuditFilter { actor: text("ann"), ..filter() }, vec![own.clone(), pause.clone()]),
        (OperationAuditFilter { tenant: text("acme"), ..filter() }, vec![own.clone()]),
        (OperationAuditFilter { tenant: text("other"), ..filter() }, vec![]),
        (OperationAuditFilter { action: text("queue.pause"), actor: text("bob"), ..filter() }, vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(operations(t, filter.clone()).await, expected, "{filter:?}");
    }
}

/// Whoever puts a NUL into a path must not make the requests disappear that are recorded with it.
async fn a_text_with_a_nul_costs_nobody_a_row(t: &Fixture) {
    let agent = AdminAudit { user_agent: Some("a\0b".to_owned()), ..request("ann", "/x\0y") };
    t.store.audit_admin(&[agent, request("bob", "/z")]).await.unwrap();
    let found = requests(t, AdminAuditFilter::default()).await;
    assert_eq!((found[0].path.as_str(), found[1].path.as_str()), ("/z", "/x\u{fffd}y"));
    assert_eq!(found[1].user_agent.as_deref(), Some("a\u{fffd}b"));
    let detail = OperationAudit { detail: Some("\0".to_owned()), ..operation("ann\0", "x") };
    t.store.audit_operations(&[detail]).await.unwrap();
    assert_eq!(operations(t, OperationAuditFilter::default()).await[0].actor, "ann\u{fffd}");
}

async fn audit_rows_that_are_old_go_bite_by_bite(t: &Fixture) {
    for n in 0..5 {
        t.store.audit_admin(&[request("ann", &format!("/{n}"))]).await.unwrap();
        t.store.audit_operations(&[operation("ann", &format!("{n}"))]).await.unwrap();
        t.clock.advance(10);
    }
    // Those of 0, 10 and 20 are older than 30; one of each goes at a time.
    let before = Some(after_start(30));
    let mut removed = Vec::new();
    loop {
        let bite =
            t.store.prune_identity(AuditCut { admin_before: before, operations_before: before }, 2).await.unwrap();
        removed.push(bite);
        if bite < 2 {
            break;
        }
    }
    assert_eq!(removed, [4, 2, 0]);
    let paths: Vec<_> = requests(t, AdminAuditFilter::default()).await.into_iter().map(|row| row.path).collect();
    assert_eq!(paths, ["/4", "/3"]);
    let actions: Vec<_> =
        operations(t, OperationAuditFilter::default()).await.into_iter().map(|row| row.action).collect();
    assert_eq!(actions, ["4", "3"]);
}

async fn without_a_retention_audit_rows_stay(t: &Fixture) {
    t.store.audit_admin(&[request("ann", "/x")]).await.unwrap();
    t.store.audit_operations(&[operation("ann", "x")]).await.unwrap();
    t.clock.advance(400 * 24 * 3_600_000);
    assert_eq!(t.store.prune_identity(AuditCut::default(), 10).await.unwrap(), 0);
    assert_eq!(requests(t, AdminAuditFilter::default()).await.len(), 1);
    assert_eq!(operations(t, OperationAuditFilter::default()).await.len(), 1);
}

async fn entries_are_recorded_together_or_not_at_all(t: &Fixture) {
    t.store.faults().fail_at(1, Fault::Error);
    let two = [request("ann", "/1"), request("ann", "/2")];
    let error = t.store.audit_admin(&two).await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(!t.store.faults().clear(), "the fault was met");
    assert_eq!(requests(t, AdminAuditFilter::default()).await, []);
    t.store.audit_admin(&two).await.unwrap();
    assert_eq!(requests(t, AdminAuditFilter::default()).await.len(), 2);
}

async fn queries_come_back_as_they_were_and_go_when_they_are_old(t: &Fixture) {
    let of_user = QueryAudit {
        query_id: "q-1".to_owned(),
        org: "acme".to_owned(),
        asker: Asker::User("key:1".to_owned()),
        datasets: vec!["d".to_owned()],
        columns: vec!["n".to_owned(), "a \"b\"".to_owned()],
        row_count: 7,
        sql_hash: "sha256:00".to_owned(),
        export: Some("result.csv".to_owned()),
    };
    let asker = Asker::Task("t".to_owned(), 3);
    let of_task = QueryAudit { query_id: "q-2".to_owned(), asker, export: None, ..of_user.clone() };
    for entry in [&of_user, &of_task] {
        t.store.audit_query(entry).await.unwrap();
        let row = t.store.query_audit(&entry.query_id).await.unwrap().unwrap();
        assert_eq!((row.at, &row.entry), (START, entry));
    }
    assert_eq!(t.store.query_audit("q-3").await.unwrap(), None);
    let cut = AuditCut { admin_before: None, operations_before: Some(after_start(1)) };
    assert_eq!(t.store.prune_identity(cut, 10).await.unwrap(), 2);
    assert_eq!(t.store.query_audit("q-1").await.unwrap(), None);
}

async fn temporary_keys_come_back_as_they_were_and_go_when_they_are_old(t: &Fixture) {
    let grant = |task: u128, id: &str| CredentialGrant {
        org: "o".to_owned(),
        task: TaskId::from_u128(task),
        attempt: 2,
        backend: "embedded".to_owned(),
        access_key_id: id.to_owned(),
        purpose: "s3_data".to_owned(),
        scope: r#"{"read":["s3://tenure/r/"]}"#.to_owned(),
        expires_at: after_start(900_000),
        request_id: "r-1".to_owned(),
    };
    let (one, two, other) = (grant(7, "ASIA1"), grant(7, "ASIA2"), grant(8, "ASIA3"));
    for grant in [&one, &other, &two] {
        t.store.audit_credentials(grant).await.unwrap();
        t.clock.advance(10);
    }
    let rows = t.store.credential_grants(one.task, 10).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.at).collect::<Vec<_>>(), [after_start(20), after_start(0)]);
    assert_eq!(rows.into_iter().map(|row| row.grant).collect::<Vec<_>>(), [two.clone(), one.clone()]);
    assert_eq!(t.store.credential_grants(one.task, 1).await.unwrap().len(), 1);
    let cut = AuditCut { admin_before: None, operations_before: Some(after_start(20)) };
    assert_eq!(t.store.prune_identity(cut, 10).await.unwrap(), 2);
    let rows = t.store.credential_grants(one.task, 10).await.unwrap();
    assert_eq!(rows.into_iter().map(|row| row.grant).collect::<Vec<_>>(), [two]);
}
