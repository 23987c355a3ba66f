//! How often somebody may call, and how often somebody may fail to say who it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use tenure_auth::worker::BootstrapKey;
use tenure_server::{KeyBy, RateLimit};
use tenure_testkit::wait_until;

use crate::cases;
use crate::harness::{SOON, Server, TOKEN};
use crate::identity::people::{ADMIN, Header, USER, delete, get, made, post, restarted, said, set, submit, with_users};

cases!(
    Server,
    on_sqlite: [
        who_calls_too_often_is_told_when_to_come_back,
        calls_are_counted_by_owner_by_key_or_by_address,
        refusals_count_and_workers_do_not,
        a_limit_changes_without_a_restart,
        callers_that_are_gone_are_forgotten,
        who_fails_too_often_is_held_off_and_good_keys_still_pass,
        one_bad_key_does_not_shut_out_the_others_of_its_address,
        every_kind_of_failure_counts_and_only_for_its_own_address,
    ],
);

fn limit(requests_per_minute: u32, burst: u32, key_by: KeyBy) -> RateLimit {
    let (bucket_ttl, cleanup_interval) = (Duration::from_secs(600), Duration::from_secs(60));
    RateLimit { requests_per_minute, burst, key_by, bucket_ttl, cleanup_interval }
}

/// How many calls in a row pass, of at most `tries`.
async fn passes(server: &Server, who: &[Header<'_>], tries: usize) -> usize {
    for n in 0..tries {
        if get(server, who, "/api/v1/whoami").await.status.as_u16() == 429 {
            return n;
        }
    }
    tries
}

async fn who_calls_too_often_is_told_when_to_come_back(server: Server) {
    with_users(&server);
    let plain = get(&server, &[USER], "/api/v1/tasks").await;
    assert_eq!((plain.header("x-ratelimit-limit"), plain.header("x-ratelimit-remaining")), ("", ""));
    set(&server, |access| access.rate_limit = Some(limit(6, 3, KeyBy::ApiKey)));
    for remaining in ["2", "1", "0"] {
        let answer = get(&server, &[USER], "/api/v1/tasks").await;
        let headers = (answer.header("x-ratelimit-limit"), answer.header("x-ratelimit-remaining"));
        assert_eq!((answer.status.as_u16(), headers), (200, ("6", remaining)));
        assert_eq!(answer.header("retry-after"), "");
    }
    let refused = get(&server, &[USER], "/api/v1/tasks").await;
    assert_eq!((said(&refused), &refused.body["code"]), ((429, "rate_limited"), &json!("RESOURCE_LIMIT")));
    let after: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=10).contains(&after), "{after}");
    assert_eq!((refused.header("x-ratelimit-limit"), refused.header("x-ratelimit-remaining")), ("6", "0"));
    assert!(refused.body["message"].as_str().unwrap().contains("6 requests per minute"), "{}", refused.body);
    // What needs no credential is not counted.
    for path in ["/api/v1/live", "/api/v1/health", "/api/v1/openapi.json", "/internal/jwks/task"] {
        let answer = get(&server, &[USER], path).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-ratelimit-limit")), (200, ""), "{path}");
    }
    // It fills again at its pace.
    set(&server, |access| access.rate_limit = Some(limit(600, 3, KeyBy::ApiKey)));
    let again = async || (get(&server, &[USER], "/api/v1/tasks").await.status.as_u16() == 200).then_some(());
    wait_until("a call passes again", SOON, again).await;
}

async fn calls_are_counted_by_owner_by_key_or_by_address(server: Server) {
    with_users(&server);
    let team = made(&server, json!({"tenant": "acme"})).await;
    let ann = made(&server, json!({"tenant": "acme", "owner": "ann"})).await;
    let elsewhere = made(&server, json!({"tenant": "other", "owner": "ann"})).await;
    let as_ann = vec![team.header(), ("X-User-ID", "ann")];
    let as_bob = vec![team.header(), ("X-User-ID", "bob")];
    let (team, ann, elsewhere) = (vec![team.header()], vec![ann.header()], vec![elsewhere.header()]);
    // How many of two calls each of these may make, one after the other, with two calls to a bucket.
    let mut server = server;
    for (key_by, expected) in [
        (KeyBy::Owner, [(&team, 2), (&as_ann, 2), (&ann, 0), (&as_bob, 2), (&elsewhere, 2)]),
        (KeyBy::ApiKey, [(&team, 2), (&as_ann, 0), (&ann, 2), (&as_bob, 0), (&elsewhere, 2)]),
        (KeyBy::Ip, [(&team, 2), (&as_ann, 0), (&ann, 0), (&as_bob, 0), (&elsewhere, 0)]),
    ] {
        // A new process has counted nothing.
        server = server.restart().await;
        set(&server, |access| access.rate_limit = Some(limit(1, 2, key_by)));
        for (who, calls) in expected {
            assert_eq!(passes(&server, who, 2).await, calls, "{key_by:?} {who:?}");
        }
    }
}

async fn refusals_count_and_workers_do_not(server: Server) {
    with_users(&server);
    set(&server, |access| access.rate_limit = Some(limit(1, 4, KeyBy::ApiKey)));
    assert_eq!(said(&get(&server, &[USER], "/api/v1/admin/audit").await), (403, "forbidden"));
    let other = [USER, ("X-Tenant-ID", "acme")];
    assert_eq!(said(&get(&server, &other, "/api/v1/admin/audit").await), (403, "tenant_forbidden"));
    assert_eq!(get(&server, &[USER], "/api/v1/tasks/018c385a-9fb1-9509-0e89-33fe3b7b1aa9").await.status.as_u16(), 404);
    assert_eq!(get(&server, &[USER], "/api/v1/tasks").await.header("x-ratelimit-remaining"), "0");
    assert_eq!(said(&get(&server, &[USER], "/api/v1/admin/audit").await), (429, "rate_limited"));
    set(&server, |access| access.rate_limit = Some(limit(1, 1, KeyBy::Ip)));
    for _ in 0..10 {
        let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0});
        let answer = server.worker("claim", claim).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-ratelimit-limit")), (200, ""));
    }
}

async fn a_limit_changes_without_a_restart(server: Server) {
    with_users(&server);
    assert_eq!(passes(&server, &[USER], 20).await, 20);
    set(&server, |access| access.rate_limit = Some(limit(1, 2, KeyBy::Owner)));
    assert_eq!(passes(&server, &[USER], 20).await, 2);
    set(&server, |access| access.rate_limit = Some(limit(60_000, 50, KeyBy::Owner)));
    let again = async || (passes(&server, &[USER], 20).await == 20).then_some(());
    wait_until("the new limit holds", SOON, again).await;
    set(&server, |access| access.rate_limit = None);
    assert_eq!(passes(&server, &[USER], 60).await, 60);
}

async fn callers_that_are_gone_are_forgotten(server: Server) {
    with_users(&server);
    let short = Duration::from_millis(200);
    set(&server, |access| {
        access.rate_limit =
            Some(RateLimit { bucket_ttl: short, cleanup_interval: short, ..limit(60_000, 1000, KeyBy::Owner) });
    });
    let server = restarted(server, |_, _| ()).await;
    let buckets = async || {
        let text = get(&server, &[ADMIN], "/metrics").await.body.as_str().unwrap().to_owned();
        let line = text.lines().find(|line| line.starts_with("tenure_rate_limit_active_buckets ")).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()
    };
    for n in 0..50 {
        let owner = format!("owner-{n}");
        get(&server, &[USER, ("X-User-ID", &owner)], "/api/v1/whoami").await.ok();
    }
    wait_until("all but the one that asks are forgotten", SOON, async || (buckets().await <= 1).then_some(())).await;
}

/// Another wrong key every time, as of somebody who guesses.
async fn fail(server: &Server) -> u16 {
    static GUESSES: AtomicU32 = AtomicU32::new(0);
    let guess = format!("wrong-{}", GUESSES.fetch_add(1, Ordering::Relaxed));
    get(server, &[("X-API-Key", &guess)], "/api/v1/whoami").await.status.as_u16()
}

async fn one_bad_key_does_not_shut_out_the_others_of_its_address(server: Server) {
    with_users(&server);
    let fresh = made(&server, json!({"tenant": "acme"})).await;
    set(&server, |access| access.failed_auth_per_minute = 5);
    for n in 0..50 {
        let status = get(&server, &[("X-API-Key", "old")], "/api/v1/whoami").await.status.as_u16();
        assert_eq!(status, if n < 5 { 401 } else { 429 }, "{n}");
    }
    // A key that was not seen before is still looked up for this address.
    assert_eq!(get(&server, &[fresh.header()], "/api/v1/whoami").await.status.as_u16(), 200);
    assert_eq!(fail(&server).await, 401);
}

async fn who_fails_too_often_is_held_off_and_good_keys_still_pass(server: Server) {
    with_users(&server);
    let known = made(&server, json!({"tenant": "acme"})).await;
    let fresh = made(&server, json!({"tenant": "acme"})).await;
    let second = if server.home.is_sqlite() { None } else { Some(server.beside().await) };
    let tried = second.as_ref().unwrap_or(&server);
    assert_eq!(get(tried, &[known.header()], "/api/v1/whoami").await.status.as_u16(), 200);
    set(&server, |access| access.failed_auth_per_minute = 5);
    for _ in 0..5 {
        assert_eq!(fail(tried).await, 401);
    }
    let refused = get(tried, &[("X-API-Key", "wrong")], "/api/v1/whoami").await;
    assert_eq!((said(&refused), &refused.body["code"]), ((429, "rate_limited"), &json!("RESOURCE_LIMIT")));
    let after: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=12).contains(&after), "{after}");
    assert!(refused.body["message"].as_str().unwrap().contains("failed authentications"), "{}", refused.body);
    // Keys of the configuration, keys that were good a moment ago, and workers pass.
    for who in [USER, ADMIN, known.header()] {
        assert_eq!(get(tried, &[who], "/api/v1/whoami").await.status.as_u16(), 200, "{who:?}");
    }
    let claim = json!({"worker_id": "w-1", "streams": ["q"], "max_wait_ms": 0});
    assert_eq!(tried.worker("claim", claim).await.status.as_u16(), 200);
    // A key that nobody has seen is not looked up for this address now.
    assert_eq!(get(tried, &[fresh.header()], "/api/v1/whoami").await.status.as_u16(), 429);
    // A key that is revoked elsewhere does not live on by failing on purpose.
    delete(&server, &[ADMIN], &format!("/api/v1/admin/api-keys/{}", known.id)).await.ok();
    let ended = async || {
        fail(tried).await;
        (get(tried, &[known.header()], "/api/v1/whoami").await.status.as_u16() == 429).then_some(())
    };
    wait_until("the revoked key is refused", SOON, ended).await;
    assert_eq!(get(tried, &[USER], "/api/v1/whoami").await.status.as_u16(), 200);
    // Without a limit one may fail as one likes.
    set(&server, |access| access.failed_auth_per_minute = 0);
    assert_eq!(fail(tried).await, 401);
}

async fn every_kind_of_failure_counts_and_only_for_its_own_address(server: Server) {
    with_users(&server);
    set(&server, |access| {
        access.failed_auth_per_minute = 4;
        access.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
        access.workers.bootstrap = HashMap::from([("w-1".to_owned(), BootstrapKey::parse("boot").unwrap())]);
    });
    let ways: [(&str, &str, Header<'_>); 6] = [
        ("GET", "/api/v1/whoami", ("X-API-Key", "wrong")),
        ("GET", "/api/v1/whoami", ("X-Admin-API-Key", "wrong")),
        ("GET", "/api/v1/whoami", ("X-Nothing", "at all")),
        ("POST", "/internal/worker/claim", ("X-Worker-Token", "wrong")),
        ("POST", "/internal/worker/claim", ("X-Trace-Worker-Token", "wrong")),
        ("POST", "/api/v1/worker/w-1/token", ("X-Worker-Bootstrap-Key", "wrong")),
    ];
    for (n, (method, path, credential)) in ways.into_iter().enumerate() {
        let from = ("X-Forwarded-For", format!("203.0.113.{n}"));
        let headers = [credential, (from.0, from.1.as_str())];
        let call = async || {
            let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            server.call(method, path, &headers, Some(&json!({}))).await.status.as_u16()
        };
        for _ in 0..4 {
            assert_eq!(call().await, 401, "{path} {credential:?}");
        }
        assert_eq!(call().await, 429, "{path} {credential:?}");
        let (good, worker) = ([USER, headers[1]], [("X-Worker-Token", TOKEN), headers[1]]);
        assert_eq!(get(&server, &good, "/api/v1/whoami").await.status.as_u16(), 200);
        let claim = json!({"worker_id": "w-9", "streams": ["q"], "max_wait_ms": 0});
        assert_eq!(post(&server, &worker, "/internal/worker/claim", claim).await.status.as_u16(), 200);
    }
    // What is known and not allowed is no failure of this kind.
    for _ in 0..10 {
        let headers = [USER, ("X-Forwarded-For", "203.0.113.99")];
        assert_eq!(get(&server, &headers, "/api/v1/admin/audit").await.status.as_u16(), 403);
    }
    submit(&server, &[USER], json!({})).await;
}
