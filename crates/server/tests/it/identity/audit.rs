//! Who did what: every request of admins, and what users change.

use serde_json::{Value, json};
use tenure_engine::store::AuditCut;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, fatal, retryable};
use crate::identity::people::{
    ADMIN, Header, USER, column, delete, get, made, post, put, said, set, submit, with_users,
};

cases!(
    Server,
    on_sqlite: [
        a_spreadsheet_gets_quoted_cells_and_no_formula,
        what_users_change_leaves_a_row,
        nobody_sees_the_rows_of_another_tenant,
        no_row_holds_a_secret,
        who_hangs_up_leaves_a_row_all_the_same,
    ],
    on_both_stores: [every_request_of_an_admin_leaves_a_row, rows_are_filtered_and_come_in_pages, old_rows_go],
);

const AUDIT: &str = "/api/v1/admin/audit";
const OPERATIONS: &str = "/api/v1/audit";
const COLUMNS: &str = "id,created_at,actor,action,sandbox_id,resource,provider,status,detail,tenant_id,request_id\r\n";

/// One field of all rows.
fn texts(rows: Value, field: &str) -> Vec<String> {
    rows.as_array().unwrap().iter().map(|row| row[field].as_str().unwrap().to_owned()).collect()
}

async fn rows(server: &Server, who: &[Header<'_>], path: &str) -> Vec<Value> {
    get(server, who, path).await.ok().as_array().unwrap().clone()
}

/// Method, path, who calls; then the status, the actor and the tenant of the row.
type Call<'a> = (&'a str, &'a str, Vec<Header<'a>>, u16, &'a str, &'a str);

async fn every_request_of_an_admin_leaves_a_row(server: Server) {
    with_users(&server);
    let chief = made(&server, json!({"role": "tenant_admin", "tenant": "acme"})).await;
    let actor = format!("key:{}", chief.id);
    let keys = "/api/v1/admin/api-keys";
    let calls: Vec<Call<'_>> = vec![
        ("GET", keys, vec![ADMIN], 200, "auth.admin_api_key", ""),
        ("GET", keys, vec![ADMIN, ("X-Tenant-ID", "acme")], 200, "auth.admin_api_key", "acme"),
        ("GET", keys, vec![chief.header()], 200, &actor, "acme"),
        ("GET", AUDIT, vec![chief.header()], 403, &actor, "acme"),
        ("GET", keys, vec![chief.header(), ("X-Tenant-ID", "other")], 403, &actor, "acme"),
        ("GET", keys, vec![chief.header(), ("X-User-ID", "a b")], 400, &actor, "acme"),
        ("GET", AUDIT, vec![USER], 403, "auth.api_key", "default"),
        ("GET", AUDIT, vec![], 401, "-", ""),
        ("GET", AUDIT, vec![("X-API-Key", "wrong")], 401, "-", ""),
        ("POST", keys, vec![ADMIN], 422, "auth.admin_api_key", ""),
        ("DELETE", "/api/v1/admin/api-keys/nothing", vec![ADMIN], 404, "auth.admin_api_key", ""),
        ("PUT", "/api/v1/admin/tenants/acme", vec![ADMIN], 200, "auth.admin_api_key", ""),
        ("DELETE", "/api/v1/admin/tenants/acme", vec![ADMIN], 204, "auth.admin_api_key", ""),
        ("POST", "/api/v1/admin/worker-tokens", vec![ADMIN], 400, "auth.admin_api_key", ""),
        ("POST", "/api/v1/admin/worker-tokens/revocations", vec![ADMIN], 400, "auth.admin_api_key", ""),
    ];
    for (n, (method, path, who, status, actor, tenant)) in calls.into_iter().enumerate() {
        let (id, method) = (format!("req-{n}"), reqwest::Method::from_bytes(method.as_bytes()).unwrap());
        let mut headers = who.clone();
        headers.extend([("X-Request-ID", id.as_str()), ("User-Agent", "tests/1")]);
        let query = format!("{path}?limit=5");
        let answer = server.call(method.clone(), &query, &headers, Some(&json!({}))).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path} {who:?} {}", answer.body);
        let row = rows(&server, &[ADMIN], &format!("{AUDIT}?limit=1")).await.remove(0);
        let found = ["actor", "method", "path", "request_id", "user_agent", "tenant_id"].map(|name| row[name].clone());
        assert_eq!(found, [actor, method.as_str(), path, &id, "tests/1", tenant].map(|text| json!(text)));
        assert_eq!((&row["status"], &row["remote_addr"]), (&json!(status), &json!("127.0.0.1")));
        assert!(row["duration_ms"].as_i64().unwrap() >= 0 && row["id"].is_i64());
        crate::harness::time(&row["created_at"]);
    }
    // What lies elsewhere is not one of these.
    let before = rows(&server, &[ADMIN], AUDIT).await.len();
    get(&server, &[ADMIN], "/api/v1/tasks").await.ok();
    get(&server, &[ADMIN], "/api/v1/admin/nothing").await.refused(404);
    assert_eq!(rows(&server, &[ADMIN], AUDIT).await.len(), before + 1, "the look at the audit itself");
    // A flood of failures is counted and not written down.
    set(&server, |access| access.failed_auth_per_minute = 1);
    for expected in [401, 429, 429] {
        assert_eq!(get(&server, &[], AUDIT).await.status.as_u16(), expected);
    }
    assert_eq!(rows(&server, &[ADMIN], &format!("{AUDIT}?status=429")).await.len(), 0);
}

async fn rows_are_filtered_and_come_in_pages(server: Server) {
    with_users(&server);
    for n in 0..6 {
        put(&server, &[ADMIN], &format!("/api/v1/admin/tenants/t-{n}"), json!({})).await.ok();
    }
    delete(&server, &[ADMIN], "/api/v1/admin/tenants/t-1").await.ok();
    get(&server, &[USER], "/api/v1/admin/tenants").await.refused(403);
    for (query, expected) in [
        ("method=PUT", 6),
        ("method=put", 6),
        ("method=DELETE", 1),
        ("status=403", 1),
        ("status=500", 0),
        ("actor=auth.api_key", 1),
        ("actor=auth.admin_api_key&method=PUT", 6),
        ("actor=auth.admin", 0),
        ("path=/api/v1/admin/tenants/t-1", 2),
        ("path=/api/v1/admin/tenants/", 7),
        ("path=/api/v1/admin/tenants/%25", 0),
        ("path=tenants", 0),
        ("method=PUT&limit=4", 4),
    ] {
        assert_eq!(rows(&server, &[ADMIN], &format!("{AUDIT}?{query}")).await.len(), expected, "{query}");
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(&server, &[ADMIN], &format!("{AUDIT}?method=PUT&limit=4{cursor}")).await;
        let next = page.header("x-next-cursor").to_owned();
        seen.extend(texts(page.ok(), "path"));
        match next.as_str() {
            "" => break,
            next => cursor = format!("&cursor={next}"),
        }
    }
    let newest_first: Vec<String> = (0..6).rev().map(|n| format!("/api/v1/admin/tenants/t-{n}")).collect();
    assert_eq!(seen, newest_first);
    for query in ["limit=0", "limit=501", "limit=x", "status=x", "format=xml", "cursor=x"] {
        for path in [AUDIT, OPERATIONS] {
            if path == OPERATIONS && query == "status=x" {
                continue;
            }
            let answer = get(&server, &[ADMIN], &format!("{path}?{query}")).await;
            assert_eq!(said(&answer), (422, "invalid_argument"), "{path} {query}");
        }
    }
}

async fn a_spreadsheet_gets_quoted_cells_and_no_formula(server: Server) {
    with_users(&server);
    for agent in ["=1+1,\"x\"", "@sum(a1)", "plain"] {
        get(&server, &[ADMIN, ("User-Agent", agent)], "/api/v1/admin/tenants").await.ok();
    }
    let answer = get(&server, &[ADMIN], &format!("{AUDIT}?format=csv&path=/api/v1/admin/tenants")).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "text/csv; charset=utf-8"));
    let text = answer.body.as_str().unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(
        lines[0],
        "id,created_at,actor,method,path,status,duration_ms,request_id,remote_addr,user_agent,tenant_id"
    );
    assert_eq!(lines.len(), 5, "three rows and an end: {text}");
    assert!(lines[1].contains(",plain,"), "{text}");
    assert!(lines[2].contains(",'@sum(a1),"), "{text}");
    assert!(lines[3].contains(",\"'=1+1,\"\"x\"\"\","), "{text}");
    submit(&server, &[USER], json!({})).await;
    post(&server, &[USER], "/api/v1/queues/q/pause", json!({})).await.ok();
    let answer = get(&server, &[USER], &format!("{OPERATIONS}?format=csv")).await;
    let text = answer.body.as_str().unwrap();
    assert!(text.starts_with(COLUMNS), "{text}");
    assert!(text.contains(",auth.api_key,queue.pause,,q,,ok,,default,req_"), "{text}");
}

async fn what_users_change_leaves_a_row(server: Server) {
    with_users(&server);
    let key = made(&server, json!({"role": "api", "tenant": "acme"})).await;
    let (who, actor) = ([key.header()], format!("key:{}", key.id));
    let task = submit(&server, &who, json!({})).await;
    let done = submit(&server, &who, json!({})).await;
    let (of_task, of_done) = (format!("/api/v1/tasks/{task}"), format!("/api/v1/tasks/{done}"));
    post(&server, &who, &format!("{of_task}/cancel"), json!({})).await.ok();
    post(&server, &who, &format!("{of_task}/cancel"), json!({"mode": "never"})).await.refused(422);
    post(&server, &who, &format!("{of_task}/retry"), json!({})).await.ok();
    post(&server, &who, &format!("{of_done}/retry"), json!({})).await.refused(409);
    put(&server, &who, "/api/v1/queues/q", json!({"max_running": 3})).await.ok();
    post(&server, &who, "/api/v1/queues/q/pause", json!({})).await.ok();
    post(&server, &who, "/api/v1/queues/q/resume", json!({})).await.ok();
    let filter = json!({"filter": {"queue": "q"}});
    let answer = post(&server, &who, "/api/v1/dead-letters/redrive", filter).await;
    assert_eq!(answer.status.as_u16(), 202);
    let redrive = answer.body["redrive_id"].as_str().unwrap();
    let redriven = format!(r#"{redrive}: 0 matched {{"queue":"q","tenant":"acme"}}"#);
    post(&server, &who, "/api/v1/dead-letters/redrive", json!({"filter": {}})).await.refused(422);
    let found: Vec<[String; 4]> = rows(&server, &who, OPERATIONS)
        .await
        .into_iter()
        .map(|row| {
            assert_eq!((&row["actor"], &row["tenant_id"]), (&json!(actor), &json!("acme")));
            assert!(row["request_id"].as_str().unwrap().starts_with("req_"));
            ["action", "resource", "status", "detail"].map(|name| row[name].as_str().unwrap().to_owned())
        })
        .collect();
    let expected = [
        ["dead_letters.redrive", "dead-letters", "refused", "invalid_argument"],
        ["dead_letters.redrive", "dead-letters", "ok", &redriven],
        ["queue.resume", "q", "ok", ""],
        ["queue.pause", "q", "ok", ""],
        ["queue.set", "q", "ok", ""],
        ["task.retry", &done, "refused", "task_not_retryable"],
        ["task.retry", &task, "ok", ""],
        ["task.cancel", &task, "refused", "invalid_argument"],
        ["task.cancel", &task, "ok", ""],
    ];
    assert_eq!(found, expected.map(|row| row.map(str::to_owned)));
    for (query, count) in [("action=task.cancel", 2), ("action=queue.set", 1), ("action=task", 0), ("limit=4", 4)] {
        assert_eq!(rows(&server, &who, &format!("{OPERATIONS}?{query}")).await.len(), count, "{query}");
    }
    let page = get(&server, &who, &format!("{OPERATIONS}?limit=4")).await;
    let cursor = page.header("x-next-cursor");
    assert_eq!(rows(&server, &who, &format!("{OPERATIONS}?limit=100&cursor={cursor}")).await.len(), 5);
    // Workers' calls are none of users.
    let job = server.worker("claim", json!({"worker_id": "w-1", "job_id": done})).await.ok();
    server.fail("w-1", &job, retryable()).await.ok();
    assert_eq!(rows(&server, &who, OPERATIONS).await.len(), 9);
}

async fn nobody_sees_the_rows_of_another_tenant(server: Server) {
    with_users(&server);
    let acme = made(&server, json!({"role": "tenant_admin", "tenant": "acme"})).await;
    let other = made(&server, json!({"role": "tenant_admin", "tenant": "other"})).await;
    let ann = made(&server, json!({"role": "api", "tenant": "acme", "owner": "ann"})).await;
    for (key, queue) in [(&acme, "q-acme"), (&other, "q-other"), (&ann, "q-ann")] {
        put(&server, &[key.header()], &format!("/api/v1/queues/{queue}"), json!({})).await.ok();
    }
    let seen = async |who: &[Header<'_>], query: &str| {
        texts(get(&server, who, &format!("{OPERATIONS}{query}")).await.ok(), "resource")
    };
    let chief = format!("?actor=key:{}", acme.id);
    for (who, query, expected) in [
        (vec![acme.header()], "", vec!["q-ann", "q-acme"]),
        (vec![other.header()], "", vec!["q-other"]),
        (vec![USER], "", vec![]),
        (vec![ADMIN], "", vec!["q-ann", "q-other", "q-acme"]),
        (vec![ADMIN, ("X-Tenant-ID", "other")], "", vec!["q-other"]),
        (vec![other.header()], &chief, vec![]),
        // An owner sees what it did itself.
        (vec![ann.header()], "", vec!["q-ann"]),
        (vec![ann.header()], &chief, vec![]),
    ] {
        assert_eq!(seen(&who, query).await, expected, "{who:?} {query}");
    }
    // What admins did is for admins; narrowed to a tenant, of that tenant.
    assert_eq!(said(&get(&server, &[acme.header()], AUDIT).await), (403, "forbidden"));
    get(&server, &[other.header()], "/api/v1/admin/api-keys").await.ok();
    let narrowed = rows(&server, &[ADMIN, ("X-Tenant-ID", "acme")], AUDIT).await;
    assert_eq!(narrowed.len(), 1, "{narrowed:?}");
    assert_eq!(narrowed[0]["status"], 403);
}

async fn no_row_holds_a_secret(server: Server) {
    with_users(&server);
    let chief = made(&server, json!({"role": "admin"})).await;
    let canary = "canary-4711";
    let secrets: Vec<Header<'_>> = vec![
        ("X-API-Key", canary),
        ("X-Admin-API-Key", canary),
        ("X-Worker-Token", canary),
        ("Authorization", "Bearer canary-4711"),
        ("Cookie", canary),
    ];
    for header in secrets {
        get(&server, &[header], &format!("{AUDIT}?token={canary}")).await;
        post(&server, &[header], "/api/v1/admin/api-keys", json!({"name": canary})).await;
    }
    let task = submit(&server, &[ADMIN], json!({"payload": {"password": canary}})).await;
    let reason = json!({"reason": canary});
    post(&server, &[chief.header()], &format!("/api/v1/tasks/{task}/cancel"), reason).await.ok();
    let issued = made(&server, json!({"role": "viewer"})).await;
    for path in [AUDIT, OPERATIONS] {
        let text = get(&server, &[ADMIN], &format!("{path}?limit=500")).await.ok().to_string();
        for secret in [canary, ADMIN.1, &chief.text, &issued.text, issued.text.splitn(3, '_').nth(2).unwrap()] {
            assert!(!text.contains(secret), "{path} {secret}");
        }
    }
}

async fn old_rows_go(server: Server) {
    with_users(&server);
    get(&server, &[ADMIN], "/api/v1/admin/tenants").await.ok();
    let task = submit(&server, &[ADMIN], json!({"max_attempts": 1})).await;
    let job = server.worker("claim", json!({"worker_id": "w-1", "job_id": task})).await.ok();
    server.fail("w-1", &job, fatal()).await.ok();
    post(&server, &[ADMIN], &format!("/api/v1/tasks/{task}/retry"), json!({})).await.ok();
    let last = rows(&server, &[ADMIN], OPERATIONS).await[0]["created_at"].clone();
    let later = crate::harness::time(&last).plus(1);
    let prune = async |cut: AuditCut| server.engine.store().prune_identity(cut, 100).await.unwrap();
    prune(AuditCut { admin_before: None, operations_before: None }).await;
    assert_eq!(rows(&server, &[ADMIN], OPERATIONS).await.len(), 1);
    prune(AuditCut { admin_before: None, operations_before: Some(later) }).await;
    assert_eq!(rows(&server, &[ADMIN], OPERATIONS).await.len(), 0);
    let admins = rows(&server, &[ADMIN], &format!("{AUDIT}?path=/api/v1/admin/tenants")).await;
    assert_eq!(admins.len(), 1);
    let later = crate::harness::time(&admins[0]["created_at"]).plus(1);
    prune(AuditCut { admin_before: Some(later), operations_before: None }).await;
    let gone =
        async || rows(&server, &[ADMIN], &format!("{AUDIT}?path=/api/v1/admin/tenants")).await.is_empty().then_some(());
    wait_until("the row is gone", SOON, gone).await;
    assert!(!rows(&server, &[ADMIN], AUDIT).await.is_empty(), "newer rows stay");
}

/// Sends a request and goes away without waiting for the answer.
async fn hang_up(server: &Server, method: &str, path: &str) {
    use tokio::io::AsyncWriteExt;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (header, key) = ADMIN;
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{header}: {key}\r\nContent-Length: 0\r\n\r\n");
    // The server has begun when it sees the end, or it has not: either way nothing is done without a row.
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn who_hangs_up_leaves_a_row_all_the_same(server: Server) {
    with_users(&server);
    let (mut keys, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        keys.push(made(&server, json!({"role": "viewer"})).await.id);
        tasks.push(submit(&server, &[ADMIN], json!({})).await);
        hang_up(&server, "DELETE", &format!("/api/v1/admin/api-keys/{}", keys.last().unwrap())).await;
        hang_up(&server, "POST", &format!("/api/v1/tasks/{}/cancel", tasks.last().unwrap())).await;
    }
    let revoked = async || {
        let listed = get(&server, &[ADMIN], "/api/v1/admin/api-keys?limit=1000").await.ok();
        let gone = listed["items"].as_array().unwrap().iter().filter(|key| key["revoked_at"].is_string());
        gone.map(|key| format!("/api/v1/admin/api-keys/{}", key["id"].as_str().unwrap())).collect::<Vec<_>>()
    };
    let canceled = async || {
        let listed = get(&server, &[ADMIN], "/api/v1/tasks?state=Canceled&limit=1000").await.ok();
        column(&listed, "task_id")
    };
    wait_until("what was begun has left its rows", SOON, async || {
        let paths = rows(&server, &[ADMIN], &format!("{AUDIT}?method=DELETE&limit=500")).await;
        let resources = rows(&server, &[ADMIN], &format!("{OPERATIONS}?action=task.cancel&limit=500")).await;
        let has = |rows: &[Value], name: &str, text: &str| rows.iter().any(|row| row[name] == text);
        revoked().await.iter().all(|path| has(&paths, "path", path))
            && canceled().await.iter().all(|task| has(&resources, "resource", task))
    })
    .await;
}
