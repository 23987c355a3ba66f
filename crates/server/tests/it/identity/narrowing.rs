//! `X-User-ID` and `X-Tenant-ID` take away and never add; what an owner makes stays its own.

use serde_json::{Value, json};

use crate::cases;
use crate::harness::Server;
use crate::identity::api_keys::whoami;
use crate::identity::people::{ADMIN, USER, column, get, made, post, said, submit, with_users};

cases!(
    Server,
    on_sqlite: [
        the_user_header_narrows_and_never_widens,
        the_tenant_header_narrows_and_never_widens,
        an_owner_stays_with_what_it_made,
    ],
);

async fn the_user_header_narrows_and_never_widens(server: Server) {
    with_users(&server);
    let team = made(&server, json!({"role": "api", "tenant": "acme"})).await;
    let ann = made(&server, json!({"role": "api", "tenant": "acme", "owner": "ann"})).await;
    let (team, ann) = (team.header(), ann.header());
    let (as_ann, as_bob) = (("X-User-ID", "ann"), ("X-User-ID", "bob"));
    let nobodys = submit(&server, &[team], json!({})).await;
    let anns = submit(&server, &[ann], json!({})).await;
    let anns_too = submit(&server, &[team, as_ann], json!({})).await;
    let bobs = submit(&server, &[team, as_bob], json!({})).await;
    let all = [&nobodys, &anns, &anns_too, &bobs];
    for (who, expected) in [
        (vec![team], vec![&nobodys, &anns, &anns_too, &bobs]),
        (vec![ann], vec![&anns, &anns_too]),
        (vec![ann, as_ann], vec![&anns, &anns_too]),
        (vec![team, as_ann], vec![&anns, &anns_too]),
        (vec![team, as_bob], vec![&bobs]),
        (vec![team, ("X-User-ID", "cat")], vec![]),
    ] {
        let mut found = column(&get(&server, &who, "/api/v1/tasks").await.ok(), "task_id");
        found.sort();
        let mut wanted: Vec<String> = expected.iter().map(|id| id.to_string()).collect();
        wanted.sort();
        assert_eq!(found, wanted, "{who:?}");
        for id in all {
            let seen = if expected.contains(&id) { 200 } else { 404 };
            for call in ["", "/attempts", "/why"] {
                let answer = get(&server, &who, &format!("/api/v1/tasks/{id}{call}")).await;
                assert_eq!(answer.status.as_u16(), seen, "{who:?} {call}");
            }
            if seen == 404 {
                for call in ["cancel", "retry"] {
                    let answer = post(&server, &who, &format!("/api/v1/tasks/{id}/{call}"), json!({})).await;
                    assert_eq!(said(&answer), (404, "task_not_found"), "{who:?} {call}");
                }
            }
        }
    }
    for (who, expected) in [
        (vec![ann, as_bob], (403, "owner_forbidden")),
        (vec![team, ("X-User-ID", "a b")], (400, "malformed_request")),
        (vec![team, ("X-User-ID", "a/b")], (400, "malformed_request")),
        (vec![team, ("X-User-ID", "a\\b")], (400, "malformed_request")),
        (vec![team, ("X-User-ID", "a\tb")], (400, "malformed_request")),
        (vec![team, ("X-User-ID", "")], (400, "malformed_request")),
        (vec![team, ("X-User-ID", &"x".repeat(129))], (400, "malformed_request")),
        (vec![team, as_ann, as_bob], (400, "malformed_request")),
        (vec![team, ("X-User-ID", &"x".repeat(128))], (200, "")),
        (vec![team, ("X-User-ID", "auth0|12:x@y")], (200, "")),
    ] {
        assert_eq!(said(&get(&server, &who, "/api/v1/tasks").await), expected, "{who:?}");
    }
}

async fn the_tenant_header_narrows_and_never_widens(server: Server) {
    with_users(&server);
    let team = made(&server, json!({"role": "api", "tenant": "acme"})).await;
    let chief = made(&server, json!({"role": "admin", "tenant": "acme"})).await;
    let tenant = |name| ("X-Tenant-ID", name);
    for (who, expected) in [
        (vec![team.header()], json!("acme")),
        (vec![team.header(), tenant("acme")], json!("acme")),
        (vec![USER], json!("default")),
        (vec![ADMIN], Value::Null),
        (vec![ADMIN, tenant("other")], json!("other")),
        (vec![chief.header()], Value::Null),
        (vec![chief.header(), tenant("other")], json!("other")),
    ] {
        assert_eq!(whoami(&server, &who).await["tenant"], expected, "{who:?}");
    }
    for (who, expected) in [
        (vec![team.header(), tenant("other")], (403, "tenant_forbidden")),
        (vec![USER, tenant("acme")], (403, "tenant_forbidden")),
        (vec![ADMIN, tenant("")], (400, "malformed_request")),
        (vec![ADMIN, tenant("A")], (400, "malformed_request")),
        (vec![ADMIN, tenant("a"), tenant("b")], (400, "malformed_request")),
    ] {
        assert_eq!(said(&get(&server, &who, "/api/v1/whoami").await), expected, "{who:?}");
    }
    // An admin that chose a tenant is one of that tenant.
    let theirs = submit(&server, &[team.header()], json!({})).await;
    let path = format!("/api/v1/tasks/{theirs}");
    assert_eq!(get(&server, &[ADMIN], &path).await.status.as_u16(), 200);
    assert_eq!(get(&server, &[ADMIN, tenant("acme")], &path).await.status.as_u16(), 200);
    assert_eq!(get(&server, &[ADMIN, tenant("other")], &path).await.status.as_u16(), 404);
    let made = submit(&server, &[ADMIN, tenant("other")], json!({"queue": "q2"})).await;
    assert_eq!(get(&server, &[ADMIN], &format!("/api/v1/tasks/{made}")).await.ok()["tenant"], "other");
    let foreign = json!({"queue": "q2", "operator": "op", "tenant": "acme"});
    let answer = post(&server, &[ADMIN, tenant("other")], "/api/v1/tasks", foreign).await;
    assert_eq!(said(&answer), (403, "tenant_forbidden"));
}

async fn an_owner_stays_with_what_it_made(server: Server) {
    with_users(&server);
    let ann = made(&server, json!({"role": "api", "tenant": "acme", "owner": "ann"})).await;
    let task = submit(&server, &[ann.header()], json!({})).await;
    let shown = get(&server, &[ADMIN], &format!("/api/v1/tasks/{task}")).await.ok();
    assert_eq!((&shown["tenant"], &shown["owner"]), (&json!("acme"), &json!("ann")));
    let batch = json!({"tasks": [{"queue": "q", "operator": "op"}, {"queue": "q", "operator": "op"}]});
    for task in post(&server, &[ann.header()], "/api/v1/tasks/batch", batch).await.ok()["tasks"].as_array().unwrap() {
        let shown = get(&server, &[ADMIN], &format!("/api/v1/tasks/{}", task["task_id"].as_str().unwrap())).await.ok();
        assert_eq!(shown["owner"], "ann");
    }
    let plain = submit(&server, &[USER], json!({"queue": "q3"})).await;
    assert_eq!(get(&server, &[ADMIN], &format!("/api/v1/tasks/{plain}")).await.ok()["owner"], Value::Null);
}
