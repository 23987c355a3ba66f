//! Users of an identity provider: real tokens under keys that are fetched from where the provider publishes them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_auth::StaticKey;
use tenure_server::KeySource;
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, TOKEN, merge};
use crate::identity::people::{ADMIN, Header, USER, column, get, post, restarted, said, set, submit, with_users};
use crate::identity::provider::{Published, Serves, Signer, b64, claims, now, oidc, outbound};

cases!(
    Server,
    on_sqlite: [
        each_algorithm_lets_a_user_in,
        tokens_that_are_refused,
        groups_lead_to_roles,
        a_user_owns_what_it_makes_within_its_tenant,
        keys_and_tokens_beside_each_other,
    ],
);

const TASKS: &str = "/api/v1/tasks";

/// A server that takes tokens of this provider.
async fn trusting(server: Server, url: &str) -> Server {
    let server = restarted(server, |_, config| config.outbound = Some(outbound())).await;
    with_users(&server);
    set(&server, |access| access.oidc = Some(oidc(KeySource::Url(url.to_owned()))));
    server
}

fn changed(change: Value) -> Value {
    let mut claims = claims();
    merge(&mut claims, change);
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

async fn by_bearer(server: &Server, bearer: &str) -> (u16, String) {
    let answer = get(server, &[("Authorization", bearer)], TASKS).await;
    let (status, word) = said(&answer);
    (status, word.to_owned())
}

async fn whoami(server: &Server, who: &[Header<'_>]) -> Value {
    get(server, who, "/api/v1/whoami").await.ok()
}

async fn each_algorithm_lets_a_user_in(server: Server) {
    let signers = ["RS256", "ES256", "ES384", "ES512"].map(|name| Signer::new(name, name));
    let published = Published::start(signers.iter().map(Signer::jwk).collect()).await;
    let server = trusting(server, &published.url).await;
    for signer in &signers {
        let bearer = signer.bearer(&claims());
        assert_eq!(by_bearer(&server, &bearer).await, (200, String::new()));
        assert_eq!(by_bearer(&server, &bearer.replace("Bearer", "bearer")).await.0, 200);
    }
    assert_eq!(published.fetched(), 1, "keys are kept");
    // One key from the configuration, whatever the token calls it.
    for signer in &signers {
        let key = StaticKey::from_pem(&signer.pem()).unwrap();
        set(&server, |access| access.oidc = Some(oidc(KeySource::Static(key))));
        for other in &signers {
            let expected = if std::ptr::eq(signer, other) { 200 } else { 401 };
            assert_eq!(by_bearer(&server, &other.bearer(&claims())).await.0, expected);
        }
    }
    assert_eq!(published.fetched(), 1);
}

async fn tokens_that_are_refused(server: Server) {
    let (signer, stranger) = (Signer::new("ES256", "k1"), Signer::new("ES256", "k1"));
    let published = Published::start(vec![signer.jwk()]).await;
    let server = trusting(server, &published.url).await;
    let good = signer.token(&claims());
    let (head, rest) = good.split_once('.').unwrap();
    let none = b64(json!({"alg": "none", "kid": "k1"}).to_string());
    let by_secret = b64(json!({"alg": "HS256", "kid": "k1"}).to_string());
    for (what, token) in [
        ("another's key of the same name", stranger.token(&claims())),
        ("expired", signer.token(&changed(json!({"exp": now() - 31})))),
        ("not yet valid", signer.token(&changed(json!({"nbf": now() + 60})))),
        ("no expiry", signer.token(&changed(json!({"exp": null})))),
        ("another issuer", signer.token(&changed(json!({"iss": "https://id.example.com/"})))),
        ("no issuer", signer.token(&changed(json!({"iss": null})))),
        ("another audience", signer.token(&changed(json!({"aud": ["other"]})))),
        ("no audience", signer.token(&changed(json!({"aud": null})))),
        ("no subject", signer.token(&changed(json!({"sub": null})))),
        ("a tenant that cannot be one", signer.token(&changed(json!({"tenant_id": "No Tenant"})))),
        ("made in the future", signer.token(&changed(json!({"iat": now() + 120})))),
        ("a tenant that is no text", signer.token(&changed(json!({"tenant_id": ["acme"]})))),
        ("no algorithm", format!("{none}.{}.", rest.split_once('.').unwrap().0)),
        ("an algorithm of secrets", format!("{by_secret}.{rest}")),
        ("no signature", good.rsplit_once('.').unwrap().0.to_owned()),
        ("a changed head", format!("{head}A.{rest}")),
        ("malformed", "hello".to_owned()),
        ("three dots", "a.b.c".to_owned()),
        ("the shared worker token", TOKEN.to_owned()),
        ("a signed worker token", format!("stacyvm-worker-v1.{rest}")),
        ("a signed worker token of the other format", format!("tenure-worker-v1.{rest}")),
        ("an API key", USER.1.to_owned()),
        ("an admin key", ADMIN.1.to_owned()),
        ("very long", "x".repeat(20_000)),
    ] {
        let expected = (401, "invalid_bearer_token".to_owned());
        assert_eq!(by_bearer(&server, &format!("Bearer {token}")).await, expected, "{what}");
    }
    let none = get(&server, &[], TASKS).await;
    assert_eq!((said(&none), &none.body["code"]), ((401, "missing_api_key"), &json!("UNAUTHORIZED")));
    assert_eq!(by_bearer(&server, &format!("Basic {good}")).await, (401, "missing_api_key".to_owned()));
    assert_eq!(by_bearer(&server, &format!("Bearer {good}")).await.0, 200);
    // Without a provider in the configuration nobody has a token.
    set(&server, |access| access.oidc = None);
    assert_eq!(by_bearer(&server, &format!("Bearer {good}")).await, (401, "missing_api_key".to_owned()));
}

async fn groups_lead_to_roles(server: Server) {
    let signer = Signer::new("ES256", "k1");
    let published = Published::start(vec![signer.jwk()]).await;
    let server = trusting(server, &published.url).await;
    let task = json!({"queue": "of-acme", "operator": "op"});
    for (groups, role, [reads, submits, operates, governs]) in [
        (json!(["staff"]), Some("viewer"), [200, 403, 403, 403]),
        (json!(["staff", "ops"]), Some("operator"), [200, 201, 200, 403]),
        (json!("admins,staff"), Some("admin"), [200, 404, 200, 200]),
        (json!(["guests"]), None, [403, 403, 403, 403]),
        (json!([]), None, [403, 403, 403, 403]),
        (json!(null), None, [403, 403, 403, 403]),
    ] {
        let bearer = signer.bearer(&changed(json!({"groups": groups})));
        let who = [("Authorization", bearer.as_str())];
        let answers = [
            (get(&server, &who, TASKS).await, reads),
            (post(&server, &who, TASKS, task.clone()).await, submits),
            (get(&server, &who, "/metrics").await, operates),
            (get(&server, &who, "/api/v1/admin/tenants").await, governs),
        ];
        for (answer, status) in answers {
            let word = match (status, role) {
                (403, None) => "no_role",
                (403, Some(_)) => "forbidden",
                // It is of no tenant, and the queue is that of one.
                (404, _) => "queue_not_found",
                _ => "",
            };
            assert_eq!(said(&answer), (status, word), "{groups}");
        }
        // This server offers no sandboxes, which only those learn who may use them.
        for (method, path, allowed, status) in [
            ("GET", "/api/v1/sandboxes", reads, 503),
            ("POST", "/api/v1/sandboxes", submits, 503),
            ("POST", "/api/v1/sandboxes/sb-00000000/exec", submits, 503),
            ("GET", "/api/v1/workers", operates, 200),
            ("POST", "/api/v1/admin/workers/w-1/drain", governs, 404),
        ] {
            let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            let answer = server.call(method.clone(), path, &who, Some(&json!({}))).await;
            let code = match status {
                503 => "UNAVAILABLE",
                404 => "NOT_FOUND",
                _ => "",
            };
            let expected = if allowed == 403 { (403, "FORBIDDEN") } else { (status, code) };
            let found = (answer.status.as_u16(), answer.body["code"].as_str().unwrap_or_default());
            assert_eq!(found, expected, "{method} {path} {groups}");
            let nobody = server.call(method, path, &[("Authorization", "Bearer a.b.c")], Some(&json!({}))).await;
            assert_eq!((nobody.status.as_u16(), &nobody.body["code"]), (401, &json!("UNAUTHORIZED")));
        }
        if let Some(role) = role {
            let is = whoami(&server, &who).await;
            assert_eq!((&is["actor"], &is["role"]), (&json!("oidc:ann"), &json!(role)));
        }
    }
}

async fn a_user_owns_what_it_makes_within_its_tenant(server: Server) {
    let signer = Signer::new("ES256", "k1");
    let published = Published::start(vec![signer.jwk()]).await;
    let server = trusting(server, &published.url).await;
    let user =
        |sub: &str, tenant: Value| signer.bearer(&changed(json!({"sub": sub, "groups": ["ops"], "tenant_id": tenant})));
    let (ann, bob) = (user("ann", json!("acme")), user("bob", json!("acme")));
    let (eve, nobody) = (user("eve", json!("other")), user("joe", json!(null)));
    let who = |bearer| [("Authorization", bearer)];
    let (ann, bob, eve, nobody) = (who(ann.as_str()), who(bob.as_str()), who(eve.as_str()), who(nobody.as_str()));
    for (who, tenant) in [(&ann, "acme"), (&eve, "other")] {
        assert_eq!(whoami(&server, who).await["tenant"], tenant);
    }
    // Without a tenant nobody is let in, unless there is one for such users.
    assert_eq!(said(&get(&server, &nobody, "/api/v1/whoami").await), (403, "tenant_forbidden"));
    set(&server, |access| access.oidc.as_mut().unwrap().default_tenant = Some("default".to_owned()));
    assert_eq!(whoami(&server, &nobody).await["tenant"], "default");
    let task = submit(&server, &ann, json!({})).await;
    let path = format!("{TASKS}/{task}");
    let shown = get(&server, &ann, &path).await.ok();
    assert_eq!((&shown["owner"], &shown["tenant"]), (&json!("ann"), &json!("acme")));
    for subject in ["a/b c", "auth0|0123", "ü".repeat(127).as_str()] {
        let bearer = user(subject, json!("acme"));
        let task = submit(&server, &[("Authorization", bearer.as_str())], json!({})).await;
        assert_eq!(get(&server, &ann, &format!("{TASKS}/{task}")).await.ok()["owner"], subject);
    }
    // Its tenant sees it, another does not.
    assert_eq!(get(&server, &bob, &path).await.status.as_u16(), 200);
    assert_eq!(said(&get(&server, &eve, &path).await), (404, "task_not_found"));
    assert_eq!(column(&get(&server, &eve, TASKS).await.ok(), "task_id"), Vec::<String>::new());
    let foreign = json!({"queue": "q2", "operator": "op", "tenant": "acme"});
    assert_eq!(said(&post(&server, &eve, TASKS, foreign).await), (403, "tenant_forbidden"));
    // It can name itself, and then sees its own only; it can name no other.
    for (who, user, expected) in [
        (ann, "ann", (200, "")),
        (bob, "bob", (404, "task_not_found")),
        (ann, "bob", (403, "owner_forbidden")),
        (bob, "ann", (403, "owner_forbidden")),
    ] {
        let headers = [who[0], ("X-User-ID", user)];
        assert_eq!(said(&get(&server, &headers, &path).await), expected, "{user}");
    }
    let headers = [ann[0], ("X-Tenant-ID", "other")];
    assert_eq!(said(&get(&server, &headers, &path).await), (403, "tenant_forbidden"));
}

async fn keys_and_tokens_beside_each_other(server: Server) {
    let signer = Signer::new("ES256", "k1");
    let published = Published::start(vec![signer.jwk()]).await;
    let server = trusting(server, &published.url).await;
    let (good, bad) = (signer.bearer(&claims()), "Bearer wrong".to_owned());
    let (good, bad) = (("Authorization", good.as_str()), ("Authorization", bad.as_str()));
    let wrong = ("X-API-Key", "wrong");
    for (who, expected) in [
        (vec![USER], (200, "auth.api_key")),
        (vec![good], (200, "oidc:ann")),
        // The first one that is valid counts.
        (vec![USER, bad], (200, "auth.api_key")),
        (vec![USER, good], (200, "auth.api_key")),
        (vec![ADMIN, good], (200, "auth.admin_api_key")),
        (vec![wrong, good], (200, "oidc:ann")),
        (vec![("X-Admin-API-Key", ""), ("X-API-Key", ""), good], (200, "oidc:ann")),
        (vec![wrong, bad], (401, "")),
        (vec![bad], (401, "")),
        (vec![], (401, "")),
    ] {
        let answer = get(&server, &who, "/api/v1/whoami").await;
        let actor = answer.body["actor"].as_str().unwrap_or_default();
        assert_eq!((answer.status.as_u16(), actor), expected, "{who:?}");
    }
}

async fn sqlite_trusting(url: &str) -> Server {
    trusting(Server::sqlite().await, url).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_key_of_the_provider_is_looked_for_once() {
    let (old, new, unknown) = (Signer::new("ES256", "old"), Signer::new("ES256", "new"), Signer::new("ES256", "x"));
    let published = Published::start(vec![old.jwk()]).await;
    let server = sqlite_trusting(&published.url).await;
    assert_eq!(by_bearer(&server, &old.bearer(&claims())).await.0, 200);
    // The provider rotates: the first token of the new key makes the server look.
    published.serves(Serves::Keys(vec![old.jwk(), new.jwk()]));
    assert_eq!(by_bearer(&server, &new.bearer(&claims())).await.0, 200);
    assert_eq!(by_bearer(&server, &old.bearer(&claims())).await.0, 200);
    assert_eq!(published.fetched(), 2);
    // Whoever makes up key names does not make the server ask again and again.
    for n in 0..20 {
        let made_up = Signer::new("ES256", &format!("made-up-{n}"));
        assert_eq!(by_bearer(&server, &made_up.bearer(&claims())).await, (401, "invalid_bearer_token".to_owned()));
    }
    let together = (0..20).map(|_| async { by_bearer(&server, &unknown.bearer(&claims())).await.0 });
    assert_eq!(futures_util::future::join_all(together).await, [401; 20]);
    assert_eq!(published.fetched(), 2);
    assert_eq!(by_bearer(&server, &new.bearer(&claims())).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_were_fetched_go_on_while_the_provider_is_down() {
    let (signer, unknown) = (Signer::new("ES256", "k1"), Signer::new("ES256", "k2"));
    let published = Published::start(vec![signer.jwk()]).await;
    let server = sqlite_trusting(&published.url).await;
    let bearer = signer.bearer(&claims());
    assert_eq!(by_bearer(&server, &bearer).await.0, 200);
    published.serves(Serves::Status(500));
    assert_eq!(by_bearer(&server, &bearer).await.0, 200);
    assert_eq!(by_bearer(&server, &unknown.bearer(&claims())).await, (401, "invalid_bearer_token".to_owned()));
    assert_eq!(by_bearer(&server, &bearer).await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_the_provider_is_unavailable_and_soon_asked_again() {
    let signer = Signer::new("RS256", "k1");
    let published = Published::start(vec![]).await;
    let server = sqlite_trusting(&published.url).await;
    let bearer = signer.bearer(&claims());
    for (before, answer) in [
        Serves::Status(500),
        Serves::Status(302),
        Serves::Keys(vec![]),
        Serves::Keys(vec![json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"})]),
        Serves::Keys(vec![json!({"kty": "oct", "k": "x".repeat(300_000)})]),
    ]
    .into_iter()
    .enumerate()
    {
        published.serves(answer);
        // A provider that failed is left alone for a moment, whoever calls meanwhile.
        let refused = wait_until("the provider is asked again", SOON, async || {
            let refused = get(&server, &[("Authorization", bearer.as_str())], TASKS).await;
            assert_eq!(said(&refused), (503, "identity_provider_unavailable"));
            (published.fetched() > before).then_some(refused)
        })
        .await;
        assert_eq!((refused.header("retry-after"), &refused.body["code"]), ("5", &json!("UNAVAILABLE")));
        // Others are let in as ever.
        assert_eq!(get(&server, &[USER], TASKS).await.status.as_u16(), 200);
    }
    assert_eq!(published.fetched(), 5);
    published.serves(Serves::Keys(vec![signer.jwk()]));
    wait_until("the keys are there", SOON, async || by_bearer(&server, &bearer).await.0 == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_does_not_answer_holds_nobody_up_for_long() {
    let signer = Signer::new("ES256", "k1");
    let published = Published::start(vec![]).await;
    published.serves(Serves::Silence);
    let server = sqlite_trusting(&published.url).await;
    let (bearer, started) = (signer.bearer(&claims()), Instant::now());
    let together = (0..10).map(|_| async { by_bearer(&server, &bearer).await.0 });
    assert_eq!(futures_util::future::join_all(together).await, [503; 10]);
    assert!(started.elapsed() < Duration::from_secs(9), "{:?}", started.elapsed());
    assert_eq!(published.fetched(), 1, "they wait for one answer and not each for one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_fetched_only_from_where_the_server_may_call() {
    let signer = Signer::new("ES256", "k1");
    let published = Published::start(vec![signer.jwk()]).await;
    let server = sqlite_trusting(&published.url).await;
    let strict = tenure_outbound::Outbound::new(Default::default(), &Default::default()).unwrap();
    let server = restarted(server, |_, config| config.outbound = Some(strict)).await;
    assert_eq!(by_bearer(&server, &signer.bearer(&claims())).await.0, 503);
    let server = restarted(server, |_, config| config.outbound = None).await;
    assert_eq!(by_bearer(&server, &signer.bearer(&claims())).await.0, 503);
    assert_eq!(published.fetched(), 0);
}
