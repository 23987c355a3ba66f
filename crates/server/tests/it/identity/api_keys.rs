//! API keys: made, shown once, used, expired, revoked.

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::Role;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server};
use crate::identity::people::{ADMIN, Header, USER, column, delete, get, key, made, post, said, set, with_users};

cases!(
    Server,
    on_sqlite: [
        a_key_does_what_its_role_may,
        who_makes_a_key_hands_out_no_more_than_it_has,
        bad_keys_are_not_made,
        a_key_ends_by_itself,
        either_header_carries_either_key_and_the_first_valid_one_counts,
        without_authentication_everybody_is_an_admin,
        tasks_record_the_key_that_submitted_them,
    ],
    on_both_stores: [
        a_key_is_shown_once_and_then_never,
        a_revoked_key_is_refused_at_once_and_soon_everywhere,
        a_key_revoked_under_load_is_refused_at_once,
    ],
);

const KEYS: &str = "/api/v1/admin/api-keys";

pub async fn whoami(server: &Server, who: &[Header<'_>]) -> Value {
    get(server, who, "/api/v1/whoami").await.ok()
}

async fn status(server: &Server, who: Header<'_>) -> u16 {
    get(server, &[who], "/api/v1/whoami").await.status.as_u16()
}

async fn a_key_is_shown_once_and_then_never(server: Server) {
    with_users(&server);
    let mut keys = Vec::new();
    for role in Role::ALL {
        let asked = json!({"name": format!("for {}", role.as_str()), "role": role.as_str(), "tenant": "acme",
            "owner": "ann", "expires_in": "720h"});
        let answer = post(&server, &[ADMIN], KEYS, asked).await;
        assert_eq!(answer.status.as_u16(), 201);
        let made = answer.body;
        let text = made["key"].as_str().unwrap();
        assert!(text.starts_with(&format!("tnr_{}_", made["id"].as_str().unwrap())) && text.len() > 60);
        assert_eq!((&made["role"], &made["tenant"]), (&json!(role.as_str()), &json!("acme")));
        assert_eq!((&made["owner"], &made["created_by"]), (&json!("ann"), &json!("auth.admin_api_key")));
        let lasts_ms = crate::harness::between(&made["created_at"], &made["expires_at"]);
        assert!((720 * 3_600_000 - 5_000..=720 * 3_600_000).contains(&lasts_ms), "{lasts_ms}");
        let shown = get(&server, &[ADMIN], &format!("{KEYS}/{}", made["id"].as_str().unwrap())).await.ok();
        let mut expected = made.clone();
        expected.as_object_mut().unwrap().remove("key");
        assert_eq!(shown, expected);
        keys.push((made["id"].as_str().unwrap().to_owned(), text.to_owned()));
    }
    // Behind the prefix and the id; the secret itself may have underscores.
    let secret = |text: &str| text.splitn(3, '_').nth(2).unwrap().to_owned();
    let secrets: Vec<String> = keys.iter().map(|(_, text)| secret(text)).collect();
    let listed = get(&server, &[ADMIN], KEYS).await.ok();
    let (mut found, mut expected) = (column(&listed, "id"), keys.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let page = get(&server, &[ADMIN], &format!("{KEYS}?limit=2")).await.ok();
    let rest = get(&server, &[ADMIN], &format!("{KEYS}?cursor={}", page["next_cursor"].as_str().unwrap())).await.ok();
    assert_eq!((page["items"].as_array().unwrap().len(), rest["items"].as_array().unwrap().len()), (2, 3));
    let revoked = delete(&server, &[ADMIN], &format!("{KEYS}/{}", keys[0].0)).await.ok();
    let audit = get(&server, &[ADMIN], "/api/v1/admin/audit").await.ok();
    let stored = dump(&server).await;
    assert!(stored.contains(&keys[0].0), "the dump is not one of the store");
    for secret in &secrets {
        for text in [&listed.to_string(), &revoked.to_string(), &audit.to_string(), &stored] {
            assert!(!text.contains(secret.as_str()));
        }
    }
}

/// Everything that the store has, as text.
async fn dump(server: &Server) -> String {
    match &*server.home {
        crate::harness::Home::Sqlite(folder) => {
            let files = std::fs::read_dir(folder.path()).unwrap();
            let bytes = files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect::<Vec<u8>>();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        crate::harness::Home::Postgres(database)
        | crate::harness::Home::Redis(database, _)
        | crate::harness::Home::Sqs(database, _) => {
            let (client, connection) = tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
            let connection = tokio::spawn(connection);
            let tables = client
                .query("select table_name::text from information_schema.tables where table_schema = 'public'", &[])
                .await
                .unwrap();
            let mut text = String::new();
            for table in tables {
                let table: String = table.get(0);
                let rows = client.query(&format!("select t::text from \"{table}\" t"), &[]).await.unwrap();
                rows.iter().for_each(|row| text.push_str(row.get(0)));
            }
            drop(client);
            connection.await.unwrap().unwrap();
            text
        }
    }
}

async fn a_key_does_what_its_role_may(server: Server) {
    with_users(&server);
    for role in Role::ALL {
        let made = made(&server, json!({"role": role.as_str(), "tenant": "acme"})).await;
        let who = [made.header()];
        let expected = match role {
            Role::Admin => json!({"actor": format!("key:{}", made.id), "role": "admin"}),
            role => json!({"actor": format!("key:{}", made.id), "role": role.as_str(), "tenant": "acme"}),
        };
        assert_eq!(whoami(&server, &who).await, expected);
        let least = [
            (Role::Viewer, get(&server, &who, "/api/v1/tasks").await),
            (Role::Api, post(&server, &who, "/api/v1/tasks", json!({"queue": role.as_str(), "operator": "op"})).await),
            (Role::Operator, get(&server, &who, "/metrics").await),
            (Role::TenantAdmin, get(&server, &who, KEYS).await),
            (Role::Admin, get(&server, &who, "/api/v1/admin/audit").await),
        ];
        for (needed, answer) in least {
            if role >= needed {
                assert!(answer.status.is_success(), "{role:?} {needed:?} {}", answer.body);
            } else {
                assert_eq!(said(&answer), (403, "forbidden"), "{role:?} {needed:?}");
                assert_eq!(answer.body["code"], "FORBIDDEN");
                let message = answer.body["message"].as_str().unwrap();
                assert!(message.contains(role.as_str()) && message.contains("required scope"), "{message}");
            }
        }
    }
}

async fn who_makes_a_key_hands_out_no_more_than_it_has(server: Server) {
    with_users(&server);
    let chief = made(&server, json!({"role": "tenant_admin", "tenant": "acme"})).await;
    let bound = made(&server, json!({"role": "tenant_admin", "tenant": "acme", "owner": "ann"})).await;
    let (own, bound, forbidden) = ([chief.header()], [bound.header()], 403);
    for (who, asked, expected) in [
        (&own, json!({"name": "n"}), (201, "")),
        (&own, json!({"name": "n", "role": "tenant_admin", "tenant": "acme", "owner": "bob"}), (201, "")),
        (&own, json!({"name": "n", "role": "admin"}), (forbidden, "forbidden")),
        (&own, json!({"name": "n", "role": "viewer", "tenant": "other"}), (forbidden, "tenant_forbidden")),
        (&own, json!({"name": "n", "role": "viewer", "tenant": "default"}), (forbidden, "tenant_forbidden")),
        (&bound, json!({"name": "n", "owner": "ann"}), (201, "")),
        (&bound, json!({"name": "n"}), (201, "")),
        (&bound, json!({"name": "n", "owner": "bob"}), (forbidden, "owner_forbidden")),
    ] {
        let answer = post(&server, who, KEYS, asked.clone()).await;
        assert_eq!(said(&answer), expected, "{asked}");
        if expected.0 == 201 {
            let key = key(answer.body["key"].as_str().unwrap());
            let is = whoami(&server, &[key]).await;
            assert_eq!(is["tenant"], "acme");
            let owner = if *who == bound { json!("ann") } else { asked["owner"].clone() };
            assert_eq!(is["owner"], owner, "{asked}");
            assert_eq!(answer.body["created_by"], whoami(&server, who).await["actor"]);
        }
    }
    // Keys of another tenant, of a higher role and of another owner are not there.
    let other = made(&server, json!({"role": "viewer", "tenant": "other"})).await;
    let admin = made(&server, json!({"role": "admin", "tenant": "acme"})).await;
    let bob = made(&server, json!({"role": "viewer", "tenant": "acme", "owner": "bob"})).await;
    for (who, hidden) in [(&own, &other), (&own, &admin), (&bound, &bob)] {
        let path = format!("{KEYS}/{}", hidden.id);
        assert_eq!(said(&get(&server, who, &path).await), (404, "api_key_not_found"));
        assert_eq!(said(&delete(&server, who, &path).await), (404, "api_key_not_found"));
        assert!(!column(&get(&server, who, KEYS).await.ok(), "id").contains(&hidden.id));
        assert_eq!(status(&server, hidden.header()).await, 200);
    }
    delete(&server, &own, &format!("{KEYS}/{}", bob.id)).await.ok();
}

async fn bad_keys_are_not_made(server: Server) {
    with_users(&server);
    for (asked, field) in [
        (json!({}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"name": "a\nb"}), "name"),
        (json!({"name": "n".repeat(129)}), "name"),
        (json!({"name": "n", "role": "root"}), "role"),
        (json!({"name": "n", "role": "Admin"}), "role"),
        (json!({"name": "n", "tenant": "No Tenant"}), "tenant"),
        (json!({"name": "n", "owner": "a/b"}), "owner"),
        (json!({"name": "n", "expires_in": "never"}), "expires_in"),
        (json!({"name": "n", "expires_in": "0s"}), "expires_in"),
        (json!({"name": 7}), "name"),
    ] {
        let answer = post(&server, &[ADMIN], KEYS, asked.clone()).await;
        assert_eq!((said(&answer), &answer.body["field"]), ((422, "invalid_argument"), &json!(field)), "{asked}");
    }
    assert_eq!(get(&server, &[ADMIN], KEYS).await.ok()["items"], json!([]));
    for id in ["nothing", "a%20b", "%00", "..", "0123456789abcdef"] {
        assert_eq!(said(&get(&server, &[ADMIN], &format!("{KEYS}/{id}")).await).0, 404, "{id}");
        assert_eq!(said(&delete(&server, &[ADMIN], &format!("{KEYS}/{id}")).await).0, 404, "{id}");
    }
}

async fn a_key_ends_by_itself(server: Server) {
    with_users(&server);
    let short = made(&server, json!({"expires_in": "1s"})).await;
    let long = made(&server, json!({"expires_in": "1h"})).await;
    let ended = async || (status(&server, short.header()).await == 401).then_some(());
    wait_until("the key ends", SOON, ended).await;
    assert_eq!(said(&get(&server, &[short.header()], "/api/v1/whoami").await), (401, "invalid_api_key"));
    assert_eq!(status(&server, long.header()).await, 200);
}

async fn a_revoked_key_is_refused_at_once_and_soon_everywhere(server: Server) {
    with_users(&server);
    let lost = made(&server, json!({"tenant": "acme"})).await;
    let kept = made(&server, json!({"tenant": "acme"})).await;
    let second = if server.home.is_sqlite() { None } else { Some(server.beside().await) };
    for server in std::iter::once(&server).chain(&second) {
        assert_eq!((status(server, lost.header()).await, status(server, kept.header()).await), (200, 200));
    }
    let path = format!("{KEYS}/{}", lost.id);
    let revoked = delete(&server, &[ADMIN], &path).await.ok();
    assert!(revoked["revoked_at"].is_string() && revoked["key"].is_null());
    assert_eq!(said(&get(&server, &[lost.header()], "/api/v1/whoami").await), (401, "invalid_api_key"));
    assert_eq!(get(&server, &[ADMIN], &path).await.ok(), revoked);
    assert_eq!(delete(&server, &[ADMIN], &path).await.ok(), revoked, "revoked again it keeps its time");
    if let Some(second) = &second {
        let refused = async || (status(second, lost.header()).await == 401).then_some(());
        wait_until("the other replica refuses it", SOON, refused).await;
    }
    let server = server.restart().await;
    assert_eq!((status(&server, lost.header()).await, status(&server, kept.header()).await), (401, 200));
}

/// A look-up that began before the revocation must not bring the key back.
async fn a_key_revoked_under_load_is_refused_at_once(server: Server) {
    with_users(&server);
    for _ in 0..40 {
        let key = made(&server, json!({"tenant": "acme"})).await;
        let load = futures_util::future::join_all((0..12).map(|_| status(&server, key.header())));
        let revoke = async {
            delete(&server, &[ADMIN], &format!("{KEYS}/{}", key.id)).await.ok();
            status(&server, key.header()).await
        };
        let (_, after) = tokio::join!(load, revoke);
        assert_eq!(after, 401);
        assert_eq!(status(&server, key.header()).await, 401);
    }
}

async fn either_header_carries_either_key_and_the_first_valid_one_counts(server: Server) {
    with_users(&server);
    for role in Role::ALL {
        let key = made(&server, json!({"role": role.as_str()})).await;
        let in_admin_header = ("X-Admin-API-Key", key.text.as_str());
        assert_eq!(whoami(&server, &[in_admin_header]).await["role"], role.as_str());
        // A valid key in the admin header takes precedence, whatever its role.
        assert_eq!(whoami(&server, &[in_admin_header, ADMIN_AS_KEY]).await["role"], role.as_str());
        // One that is wrong or empty does not stand in the way of the other.
        for useless in ["wrong", "", "tnr_0000000000000000000000000000000000000000000"] {
            let both = [("X-Admin-API-Key", useless), key.header()];
            assert_eq!(whoami(&server, &both).await["role"], role.as_str(), "{useless}");
        }
        // The header gives no rights: they belong to the key.
        let admin_route = get(&server, &[in_admin_header], "/api/v1/admin/audit").await.status.as_u16();
        assert_eq!(admin_route, if role == Role::Admin { 200 } else { 403 }, "{role:?}");
    }
    assert_eq!(whoami(&server, &[("X-Admin-API-Key", USER.1)]).await["role"], "api");
    set(&server, |access| access.users.api_key_role = Role::Operator);
    assert_eq!(whoami(&server, &[USER]).await["role"], "operator");
    assert_eq!(get(&server, &[USER], "/metrics").await.status.as_u16(), 200);
    set(&server, |access| {
        access.users.admin_api_key = None;
        access.users.admin_fallback = true;
    });
    assert_eq!(whoami(&server, &[("X-Admin-API-Key", USER.1)]).await["role"], "admin");
    set(&server, |access| {
        access.users.admin_fallback = false;
        access.users.api_key_role = Role::Api;
    });
    assert_eq!(whoami(&server, &[USER]).await["role"], "api");
    assert_eq!(get(&server, &[USER], "/api/v1/admin/audit").await.status.as_u16(), 403);
}

const ADMIN_AS_KEY: Header<'_> = ("X-API-Key", ADMIN.1);

async fn without_authentication_everybody_is_an_admin(server: Server) {
    assert_eq!(whoami(&server, &[]).await, json!({"actor": "anonymous", "role": "admin"}));
    assert_eq!(whoami(&server, &[key("wrong")]).await["role"], "admin");
    let narrowed = whoami(&server, &[("X-Tenant-ID", "acme"), ("X-User-ID", "ann")]).await;
    assert_eq!((&narrowed["tenant"], &narrowed["owner"]), (&json!("acme"), &json!("ann")));
    // Switched on, it holds from the next request on.
    with_users(&server);
    assert_eq!(server.call(Method::GET, "/api/v1/whoami", &[], None).await.status.as_u16(), 401);
}

async fn tasks_record_the_key_that_submitted_them(server: Server) {
    let open = server.post("/api/v1/tasks", json!({"queue": "q", "operator": "op"})).await.ok();
    with_users(&server);
    let acme = json!({"role": "api", "tenant": "acme"});
    let (ann, bob) = (made(&server, acme.clone()).await, made(&server, acme).await);
    let shown = async |who: &[Header<'_>], id: &Value| {
        get(&server, who, &format!("/api/v1/tasks/{}", id.as_str().unwrap())).await.ok()["submitted_by"].clone()
    };
    assert_eq!(shown(&[ADMIN], &open["task_id"]).await, Value::Null, "nobody had to show a key");

    let asked = json!({"queue": "q", "operator": "op", "idempotency_key": "once"});
    let first = post(&server, &[ann.header()], "/api/v1/tasks", asked.clone()).await.ok();
    let again = post(&server, &[bob.header()], "/api/v1/tasks", asked).await.ok();
    assert_eq!(first["task_id"], again["task_id"], "another key of the tenant, the same task");
    let (by_ann, by_bob) = (format!("key:{}", ann.id), format!("key:{}", bob.id));
    assert_eq!(shown(&[bob.header()], &first["task_id"]).await, json!(by_ann));
    let batch = json!({"tasks": [{"queue": "q", "operator": "op"}]});
    let batch = post(&server, &[bob.header()], "/api/v1/tasks/batch", batch).await.ok();
    assert_eq!(shown(&[ann.header()], &batch["tasks"][0]["task_id"]).await, json!(by_bob));

    let list = async |by: &str| {
        column(&get(&server, &[ADMIN], &format!("/api/v1/tasks?submitted_by={by}")).await.ok(), "task_id")
    };
    assert_eq!(list(&by_ann).await, [first["task_id"].as_str().unwrap()]);
    assert_eq!(list(&by_bob).await, [batch["tasks"][0]["task_id"].as_str().unwrap()]);
    assert!(list("key:nobody").await.is_empty());

    // A run that is repeated belongs to whoever repeated it.
    let run = json!({"tasks": [{"key": "a", "queue": "q", "operator": "op"}]});
    let run = post(&server, &[ann.header()], "/api/v1/runs", run).await.ok();
    let run = run["run_id"].as_str().unwrap();
    post(&server, &[ann.header()], &format!("/api/v1/runs/{run}/cancel"), json!({})).await.ok();
    let rerun = post(&server, &[bob.header()], &format!("/api/v1/runs/{run}/rerun"), json!({"mode": "from_failure"}))
        .await
        .ok();
    let tasks = async |run: &str, by: &str| {
        column(&get(&server, &[ADMIN], &format!("/api/v1/tasks?run={run}&submitted_by={by}")).await.ok(), "task_id")
            .len()
    };
    assert_eq!((tasks(run, &by_ann).await, tasks(run, &by_bob).await), (1, 0));
    let rerun = rerun["run_id"].as_str().unwrap();
    assert_eq!((tasks(rerun, &by_ann).await, tasks(rerun, &by_bob).await), (0, 1));
}
