//! Tenants: what they may have, and whose queues are whose.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_contract::admin::TenantLimits;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{Answer, SOON, Server, time};
use crate::identity::people::{
    ADMIN, Header, Key, column, delete, get, made, patch, post, put, said, set, submit, with_users,
};

cases!(
    Server,
    on_sqlite: [
        room_that_comes_free_can_be_used,
        limits_are_set_shown_and_taken_away,
        limits_of_the_configuration_hold_where_a_tenant_has_none_of_its_own,
        a_queue_belongs_to_the_tenant_that_made_it,
        a_shared_queue_is_for_all_and_set_by_admins,
    ],
    on_both_stores: [tenants_are_created_named_and_deleted, each_limit_refuses_with_a_clear_word_and_touches_nobody_else, a_limit_holds_on_every_replica],
);

const TASKS: &str = "/api/v1/tasks";

async fn limit(server: &Server, tenant: &str, limits: Value) {
    put(server, &[ADMIN], &format!("/api/v1/admin/tenants/{tenant}"), limits).await.ok();
}

/// Two tenants, each with a key.
async fn two(server: &Server) -> (Key, Key) {
    with_users(server);
    (made(server, json!({"tenant": "acme"})).await, made(server, json!({"tenant": "other"})).await)
}

async fn submitted(server: &Server, who: Header<'_>, queue: &str, payload: Value) -> Answer {
    post(server, &[who], TASKS, json!({"queue": queue, "operator": "op", "payload": payload})).await
}

#[track_caller]
fn assert_limited(answer: &Answer, limit: &str) {
    assert_eq!((said(answer), &answer.body["code"]), ((429, "tenant_limit"), &json!("RESOURCE_LIMIT")), "{limit}");
    let message = answer.body["message"].as_str().unwrap();
    assert!(message.contains(limit) && message.contains("tenant acme"), "{message}");
    assert!(answer.header("retry-after").parse::<u64>().unwrap() >= 1, "{limit}");
}

async fn each_limit_refuses_with_a_clear_word_and_touches_nobody_else(server: Server) {
    let (acme, other) = two(&server).await;
    let big = json!("x".repeat(600));
    // A limit, the payload of a task, and how many such tasks it has room for.
    for (name, value, payload, room) in [
        ("max_ready", json!(3), json!(1), 3),
        ("max_payload_bytes", json!(2000), big, 3),
        ("submits_per_second", json!(0.2), json!(1), 2),
    ] {
        let (queue, theirs) = (format!("a-{name}"), format!("b-{name}"));
        limit(&server, "acme", json!({name: value})).await;
        for n in 0..room {
            let answer = submitted(&server, acme.header(), &queue, payload.clone()).await;
            assert_eq!(answer.status.as_u16(), 201, "{name} {n} {}", answer.body);
        }
        assert_limited(&submitted(&server, acme.header(), &queue, payload.clone()).await, name);
        let task = json!({"queue": queue, "operator": "op", "payload": payload});
        let batch = post(&server, &[acme.header()], "/api/v1/tasks/batch", json!({"tasks": [task]})).await;
        assert_limited(&batch, name);
        let for_acme = json!({"queue": queue, "operator": "op", "payload": payload, "tenant": "acme"});
        assert_limited(&post(&server, &[ADMIN], TASKS, for_acme).await, name);
        for _ in 0..=room {
            assert_eq!(
                submitted(&server, other.header(), &theirs, payload.clone()).await.status.as_u16(),
                201,
                "{name}"
            );
        }
        limit(&server, "acme", json!({})).await;
        assert_eq!(submitted(&server, acme.header(), &queue, json!(1)).await.status.as_u16(), 201, "{name}");
        let open = get(&server, &[acme.header()], &format!("{TASKS}?limit=1000&state=Ready")).await.ok();
        for id in column(&open, "task_id") {
            post(&server, &[acme.header()], &format!("{TASKS}/{id}/cancel"), json!({})).await.ok();
        }
    }
    // A batch that does not fit as a whole is refused as a whole.
    limit(&server, "acme", json!({"max_ready": 3})).await;
    let task = json!({"queue": "a-batch", "operator": "op"});
    let batch = json!({"tasks": vec![task; 4]});
    assert_limited(&post(&server, &[acme.header()], "/api/v1/tasks/batch", batch).await, "max_ready");
    assert_eq!(
        said(&get(&server, &[acme.header()], &format!("{TASKS}?queue=a-batch")).await),
        (404, "queue_not_found")
    );
}

async fn room_that_comes_free_can_be_used(server: Server) {
    let (acme, _) = two(&server).await;
    limit(&server, "acme", json!({"max_running": 1})).await;
    let first = submitted(&server, acme.header(), "q", json!(1)).await.ok()["task_id"].clone();
    submitted(&server, acme.header(), "q", json!(1)).await.ok();
    let job = server.worker("claim", json!({"worker_id": "w-1", "job_id": first})).await.ok();
    let full = async || {
        let answer = submitted(&server, acme.header(), "q", json!(1)).await;
        (answer.status.as_u16() == 429).then_some(answer)
    };
    assert_limited(&wait_until("one runs", Duration::from_secs(60), full).await, "max_running");
    server.complete("w-1", &job, json!(1)).await.ok();
    let free = async || (submitted(&server, acme.header(), "q", json!(1)).await.status.as_u16() == 201).then_some(());
    wait_until("there is room again", Duration::from_secs(60), free).await;
}

async fn limits_are_set_shown_and_taken_away(server: Server) {
    let (acme, _) = two(&server).await;
    let chief = made(&server, json!({"role": "tenant_admin", "tenant": "acme"})).await;
    let path = "/api/v1/admin/tenants/acme";
    let limits = json!({"max_ready": 10, "max_running": 5, "submits_per_second": 2.5, "max_payload_bytes": 1000});
    let set = put(&server, &[ADMIN], path, limits.clone()).await.ok();
    assert_eq!((&set["tenant"]["name"], &set["tenant"]["limits"]), (&json!("acme"), &limits));
    submit(&server, &[acme.header()], json!({"payload": "12345678"})).await;
    for who in [ADMIN, chief.header()] {
        let shown = get(&server, &[who], path).await.ok();
        assert_eq!(shown["tenant"]["limits"], limits);
        let usage = json!({"ready": 1, "scheduled": 0, "running": 0, "payload_bytes": 10});
        assert_eq!(shown["tenant"]["usage"], usage);
    }
    put(&server, &[ADMIN], "/api/v1/admin/tenants/zoo", json!({"max_ready": 1})).await.ok();
    let listed = get(&server, &[ADMIN], "/api/v1/admin/tenants").await.ok();
    let zoo = json!({"id": "zoo", "name": "zoo", "limits": {"max_ready": 1}});
    assert_eq!(listed, json!({"tenants": [{"id": "acme", "name": "acme", "limits": limits}, zoo]}));
    // A tenant's own admin looks and does not set.
    assert_eq!(said(&put(&server, &[chief.header()], path, json!({})).await), (403, "forbidden"));
    assert_eq!(said(&delete(&server, &[chief.header()], path).await), (403, "forbidden"));
    assert_eq!(said(&get(&server, &[chief.header()], "/api/v1/admin/tenants/zoo").await), (404, "tenant_not_found"));
    // The whole setting is replaced, then taken away.
    let set = put(&server, &[ADMIN], path, json!({"max_ready": 7})).await.ok();
    assert_eq!(set["tenant"]["limits"], json!({"max_ready": 7}));
    assert_eq!(delete(&server, &[ADMIN], path).await.status, 204);
    assert_eq!(get(&server, &[ADMIN], path).await.ok()["tenant"]["limits"], json!({}));
    assert_eq!(get(&server, &[ADMIN], "/api/v1/admin/tenants").await.ok(), json!({"tenants": [zoo]}));
    for (bad, field) in [
        (json!({"max_ready": -1}), "max_ready"),
        (json!({"max_ready": "many"}), "max_ready"),
        (json!({"submits_per_second": -0.5}), "submits_per_second"),
        (json!({"submits_per_second": 1e300}), "submits_per_second"),
    ] {
        let answer = put(&server, &[ADMIN], path, bad.clone()).await;
        assert_eq!(said(&answer), (422, "invalid_argument"), "{bad}");
        assert_eq!(answer.body["field"], field);
    }
    assert_eq!(said(&put(&server, &[ADMIN], "/api/v1/admin/tenants/No", json!({})).await), (404, "tenant_not_found"));
    assert_eq!(get(&server, &[ADMIN], path).await.ok()["tenant"]["limits"], json!({}));
}

async fn tenants_are_created_named_and_deleted(server: Server) {
    with_users(&server);
    let all = "/api/v1/admin/tenants";
    let body = json!({"id": "acme", "name": "Acme Inc", "owner_id": "ann", "settings": {"plan": [1, null]}});
    let first = post(&server, &[ADMIN], all, body.clone()).await;
    assert_eq!(first.status, 201, "{}", first.body);
    let tenant = &first.body["tenant"];
    for field in ["id", "name", "owner_id", "settings"] {
        assert_eq!(tenant[field], body[field], "{field}");
    }
    time(&tenant["created_at"]);
    assert_eq!(tenant["created_at"], tenant["updated_at"]);
    let again = post(&server, &[ADMIN], all, json!({"id": "acme"})).await.refused(409);
    assert!(again["message"].as_str().unwrap().contains("already exists"), "{again}");
    let drawn = post(&server, &[ADMIN], all, json!({})).await.ok()["tenant"]["id"].as_str().unwrap().to_owned();
    assert!(drawn.len() == 15 && drawn.starts_with("tenant-"), "{drawn}");
    // A new name leaves the limits alone, and new limits the name.
    let path = format!("{all}/acme");
    put(&server, &[ADMIN], &path, json!({"max_ready": 3})).await.ok();
    let named = put(&server, &[ADMIN], &path, json!({"name": "Acme"})).await.ok()["tenant"].clone();
    assert_eq!((&named["name"], &named["limits"]), (&json!("Acme"), &json!({"max_ready": 3})));
    let limited = put(&server, &[ADMIN], &path, json!({"max_ready": 4})).await.ok()["tenant"].clone();
    assert_eq!((&limited["name"], &limited["limits"]), (&json!("Acme"), &json!({"max_ready": 4})));
    let listed = get(&server, &[ADMIN], all).await.ok();
    let ids: Vec<_> = listed["tenants"].as_array().unwrap().iter().map(|tenant| tenant["id"].clone()).collect();
    assert_eq!(ids, [json!("acme"), json!(drawn)]);
    for (body, field) in [
        (json!({"id": "No"}), "id"),
        (json!({"name": "a\u{0}b"}), "name"),
        (json!({"owner_id": "a b"}), "owner_id"),
        (json!({"settings": "x".repeat(70_000)}), "settings"),
        (json!({"settings": "a\u{0}b"}), "settings"),
    ] {
        let refused = post(&server, &[ADMIN], all, body).await.refused(422);
        assert_eq!(refused["field"], field);
    }
    assert_eq!(post(&server, &[ADMIN], all, json!({"nmae": "x"})).await.refused(422)["error"], "unknown_field");
    let members = format!("{path}/members");
    assert_eq!(get(&server, &[ADMIN], &members).await.ok(), json!({"members": []}));
    let added = post(&server, &[ADMIN], &members, json!({"user_id": "zoe", "role": "viewer"})).await;
    assert_eq!(added.status, 201, "{}", added.body);
    let set = put(&server, &[ADMIN], &format!("{members}/ann"), json!({"role": "operator"})).await.ok();
    let (role, of) = (&set["member"]["role"], &set["member"]["tenant_id"]);
    assert_eq!((role, of), (&json!("operator"), &json!("acme")));
    let listed = get(&server, &[ADMIN], &members).await.ok();
    let users: Vec<_> = listed["members"].as_array().unwrap().iter().map(|member| member["user_id"].clone()).collect();
    assert_eq!(users, ["ann", "zoe"]);
    for (user, body) in [("ann", json!({})), ("ann", json!({"role": "king"})), ("a%20b", json!({"role": "viewer"}))] {
        let refused = put(&server, &[ADMIN], &format!("{members}/{user}"), body).await.refused(400);
        assert_eq!(refused["code"], "BAD_REQUEST");
    }
    assert_eq!(delete(&server, &[ADMIN], &format!("{members}/zoe")).await.status, 204);
    assert_eq!(delete(&server, &[ADMIN], &format!("{members}/zoe")).await.status, 404);
    // The list gives nobody a right, and nobody else sees it.
    let chief = made(&server, json!({"role": "tenant_admin", "tenant": "acme"})).await;
    let stranger = made(&server, json!({"role": "tenant_admin", "tenant": "other"})).await;
    assert_eq!(get(&server, &[chief.header()], &members).await.status, 200);
    assert_eq!(get(&server, &[stranger.header()], &members).await.status, 404);
    assert_eq!(
        put(&server, &[stranger.header()], &format!("{members}/eve"), json!({"role": "admin"})).await.status,
        404
    );
    assert_eq!(delete(&server, &[ADMIN], &path).await.status, 204);
    assert_eq!(get(&server, &[ADMIN], &members).await.ok(), json!({"members": []}));
    let bare = get(&server, &[ADMIN], &path).await.ok()["tenant"].clone();
    assert_eq!((&bare["name"], &bare["limits"], bare.get("created_at")), (&json!("acme"), &json!({}), None));
}

async fn limits_of_the_configuration_hold_where_a_tenant_has_none_of_its_own(server: Server) {
    let (acme, other) = two(&server).await;
    set(&server, |access| {
        access.tenant_limits = TenantLimits { max_ready: Some(2), ..TenantLimits::default() };
    });
    // One of its own goes before it; zero is none at all.
    limit(&server, "other", json!({"max_ready": 0})).await;
    for _ in 0..2 {
        submit(&server, &[acme.header()], json!({"queue": "qa"})).await;
    }
    assert_limited(&submitted(&server, acme.header(), "qa", json!(1)).await, "max_ready");
    for _ in 0..5 {
        submit(&server, &[other.header()], json!({"queue": "qb"})).await;
    }
    limit(&server, "acme", json!({"max_ready": 3})).await;
    submit(&server, &[acme.header()], json!({"queue": "qa"})).await;
    assert_limited(&submitted(&server, acme.header(), "qa", json!(1)).await, "max_ready");
    // A limit of another kind leaves the one of the configuration.
    limit(&server, "acme", json!({"max_running": 100})).await;
    assert_limited(&submitted(&server, acme.header(), "qa", json!(1)).await, "max_ready");
    // Changed while the server runs.
    set(&server, |access| access.tenant_limits = TenantLimits::default());
    submit(&server, &[acme.header()], json!({"queue": "qa"})).await;
}

async fn a_limit_holds_on_every_replica(server: Server) {
    let (acme, _) = two(&server).await;
    let second = if server.home.is_sqlite() { None } else { Some(server.beside().await) };
    let other = second.as_ref().unwrap_or(&server);
    submit(other, &[acme.header()], json!({})).await;
    limit(&server, "acme", json!({"max_ready": 1})).await;
    let holds = async || {
        let answer = submitted(other, acme.header(), "q", json!(1)).await;
        (answer.status.as_u16() == 429).then_some(answer)
    };
    assert_limited(&wait_until("the other replica knows it", SOON, holds).await, "max_ready");
}

async fn a_queue_belongs_to_the_tenant_that_made_it(server: Server) {
    let (acme, other) = two(&server).await;
    let (acme, other) = ([acme.header()], [other.header()]);
    // Made by a submission, or by a setting.
    submit(&server, &acme, json!({"queue": "by-submit"})).await;
    put(&server, &acme, "/api/v1/queues/by-set", json!({"max_running": 2})).await.ok();
    let theirs = ["by-set", "by-submit"];
    assert_eq!(column(&get(&server, &acme, "/api/v1/queues").await.ok(), "name"), theirs);
    assert_eq!(get(&server, &other, "/api/v1/queues").await.ok()["items"], json!([]));
    assert_eq!(column(&get(&server, &[ADMIN], "/api/v1/queues").await.ok(), "tenant"), ["acme"; 2]);
    for queue in theirs {
        let path = format!("/api/v1/queues/{queue}");
        get(&server, &acme, &path).await.ok();
        let before = get(&server, &[ADMIN], &path).await.ok();
        for answer in [
            get(&server, &other, &path).await,
            put(&server, &other, &path, json!({"max_running": 1})).await,
            patch(&server, &other, &path, json!({"max_running": 1})).await,
            delete(&server, &other, &format!("{path}?force=true")).await,
            post(&server, &other, &format!("{path}/pause"), json!({})).await,
            post(&server, &other, &format!("{path}/resume"), json!({})).await,
            post(&server, &other, TASKS, json!({"queue": queue, "operator": "op"})).await,
            post(&server, &other, "/api/v1/tasks/batch", json!({"tasks": [{"queue": queue, "operator": "op"}]})).await,
            get(&server, &[ADMIN, ("X-Tenant-ID", "other")], &path).await,
        ] {
            assert_eq!(said(&answer), (404, "queue_not_found"), "{queue}");
        }
        assert_eq!(get(&server, &[ADMIN], &path).await.ok(), before, "nothing happened to it");
    }
    // Also a batch for a queue of one's own and one of another's is refused whole.
    let batch = json!({"tasks": [{"queue": "mine", "operator": "op"}, {"queue": "by-set", "operator": "op"}]});
    assert_eq!(said(&post(&server, &other, "/api/v1/tasks/batch", batch).await), (404, "queue_not_found"));
    assert_eq!(get(&server, &other, TASKS).await.ok()["items"], json!([]));
    // An admin sets what it likes.
    put(&server, &[ADMIN], "/api/v1/queues/by-set", json!({"max_running": 9})).await.ok();
    let shown = get(&server, &acme, "/api/v1/queues/by-set").await.ok();
    assert_eq!((&shown["limits"]["max_running"], &shown["tenant"]), (&json!(9), &json!("acme")));
}

async fn a_shared_queue_is_for_all_and_set_by_admins(server: Server) {
    let (acme, other) = two(&server).await;
    put(&server, &[ADMIN], "/api/v1/queues/shared", json!({"max_running": 2})).await.ok();
    submit(&server, &[ADMIN], json!({"queue": "shared-too"})).await;
    for key in [&acme, &other] {
        let who = [key.header()];
        for queue in ["shared", "shared-too"] {
            submit(&server, &who, json!({"queue": queue})).await;
            let path = format!("/api/v1/queues/{queue}");
            assert!(get(&server, &who, &path).await.ok()["tenant"].is_null());
            for answer in [
                put(&server, &who, &path, json!({"max_running": 1})).await,
                post(&server, &who, &format!("{path}/pause"), json!({})).await,
                post(&server, &who, &format!("{path}/resume"), json!({})).await,
            ] {
                assert_eq!((said(&answer), &answer.body["code"]), ((403, "queue_shared"), &json!("FORBIDDEN")));
            }
        }
        assert_eq!(column(&get(&server, &who, "/api/v1/queues").await.ok(), "name"), ["shared", "shared-too"]);
    }
    let shown = get(&server, &[acme.header()], "/api/v1/queues/shared").await.ok();
    assert_eq!((&shown["limits"]["max_running"], &shown["paused"]), (&json!(2), &json!(false)));
    post(&server, &[ADMIN], "/api/v1/queues/shared/pause", json!({})).await.ok();
    assert_eq!(get(&server, &[acme.header()], "/api/v1/queues/shared").await.ok()["paused"], true);
}
