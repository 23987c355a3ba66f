//! What must not work: other tenants, small roles, texts that cost too much, names that are code.

use tenure_testkit::RawClient;

use super::*;
use crate::cases;
use crate::identity::people::{ADMIN, get, made, post, said, with_users};

cases!(
    Server,
    on_sqlite: [
        a_viewer_looks_and_changes_nothing,
        texts_that_would_cost_too_much_are_refused,
        a_body_of_one_byte_too_many_is_refused,
        names_that_are_code_are_only_names,
        unknown_parameters_are_refused,
    ],
    on_both_stores: [other_tenants_see_nothing],
);

async fn other_tenants_see_nothing(server: Server) {
    with_users(&server);
    let ann = made(&server, json!({"tenant": "acme", "role": "api"})).await;
    let bob = made(&server, json!({"tenant": "other", "role": "tenant_admin"})).await;
    let (ann, bob) = ([ann.header()], [bob.header()]);
    let deployed = post_yaml(&server, "", &ann, &chain(0)).await;
    assert_eq!(deployed.status.as_u16(), 201, "{}", deployed.body);
    let dag = get(&server, &ann, &format!("{DAGS}/chain")).await.ok();
    let uuid = dag["jobs"][1]["outputs"][0]["dataset_uuid"].as_str().unwrap().to_owned();
    assert_eq!(get(&server, &bob, DAGS).await.ok()["items"], json!([]));
    assert_eq!(get(&server, &bob, DATASETS).await.ok()["items"], json!([]));
    let invalidation = json!({"scope": "partition", "partition_key": "1-5"});
    for (path, body) in [
        (format!("{DAGS}/chain"), None),
        (format!("{DAGS}/chain/versions"), None),
        (format!("{DAGS}/chain/cutover"), Some(json!({"version": 1}))),
        (format!("{DAGS}/chain/rollback"), Some(json!({}))),
        (format!("{DAGS}/chain/jobs/import/trigger"), Some(json!({}))),
        (format!("{DATASETS}/decoded"), None),
        (format!("{DATASETS}/{uuid}"), None),
        (format!("{DATASETS}/decoded/invalidate"), Some(invalidation.clone())),
        (format!("{DATASETS}/{uuid}/invalidate"), Some(invalidation.clone())),
    ] {
        let answer = match &body {
            None => get(&server, &bob, &path).await,
            Some(body) => post(&server, &bob, &path, body.clone()).await,
        };
        assert_eq!(answer.status.as_u16(), 404, "{path}: {}", answer.body);
        assert!(!answer.body.to_string().contains("did you mean"), "{path}: {}", answer.body);
        // The same names in a tenant that has them.
        let own = match body {
            None => get(&server, &ann, &path).await,
            Some(body) => post(&server, &ann, &path, body).await,
        };
        assert_ne!(own.status.as_u16(), 404, "{path}: {}", own.body);
    }
    // Datasets of others cannot be read by a DAG either.
    let spy = "name: spy
jobs:
  - { name: look, activation: reactive, runtime: worker, operator: look, outputs: 0, execution_strategy: PerPartition,
      inputs: [{ from: { dataset: decoded } }] }
";
    let refused = post_yaml(&server, "", &bob, spy).await.refused(422);
    assert_eq!(refused["errors"][0]["code"], "unknown_dataset");
    // The same DAG is another one there.
    assert_eq!(post_yaml(&server, "", &bob, &chain(3)).await.status.as_u16(), 201);
    assert_eq!(get(&server, &ann, &format!("{DAGS}/chain")).await.ok()["yaml"], json!(chain(0)));
    // An admin says whose it looks at.
    assert_eq!(get(&server, &[ADMIN], &format!("{DAGS}/chain")).await.status.as_u16(), 404);
    let looked = get(&server, &[ADMIN, ("X-Tenant-ID", "acme")], &format!("{DAGS}/chain")).await.ok();
    assert_eq!(looked["yaml"], json!(chain(0)));
}

async fn a_viewer_looks_and_changes_nothing(server: Server) {
    with_users(&server);
    let api = made(&server, json!({"tenant": "acme", "role": "api"})).await;
    let viewer = made(&server, json!({"tenant": "acme", "role": "viewer"})).await;
    let (api, viewer) = ([api.header()], [viewer.header()]);
    post_yaml(&server, "", &api, &chain(0)).await.ok();
    for query in ["", "?dry_run=true"] {
        assert_eq!(said(&post_yaml(&server, query, &viewer, &chain(1)).await), (403, "forbidden"));
    }
    for path in ["/chain/cutover", "/chain/rollback", "/chain/jobs/import/trigger"] {
        let answer = post(&server, &viewer, &format!("{DAGS}{path}"), json!({"version": 1})).await;
        assert_eq!(said(&answer), (403, "forbidden"), "{path}");
    }
    let answer = post(&server, &viewer, &format!("{DATASETS}/decoded/invalidate"), json!({})).await;
    assert_eq!(said(&answer), (403, "forbidden"));
    for path in [format!("{DAGS}/chain"), format!("{DAGS}/chain/versions"), format!("{DATASETS}/decoded")] {
        assert_eq!(get(&server, &viewer, &path).await.status.as_u16(), 200, "{path}");
    }
    assert_eq!(said(&post_yaml(&server, "", &[], &chain(1)).await).0, 401);
    assert_eq!(get(&server, &api, &format!("{DAGS}/chain/versions")).await.ok()["items"].as_array().unwrap().len(), 1);
}

async fn texts_that_would_cost_too_much_are_refused(server: Server) {
    let bomb = (0..30)
        .fold("a0: &a0 [x, x]\n".to_owned(), |text, n| format!("{text}a{}: &a{} [*a{n}, *a{n}]\n", n + 1, n + 1));
    let deep = format!("name: d\njobs: {}{}\n", "[".repeat(50_000), "]".repeat(50_000));
    let wide = format!("name: d\njobs: [{}]\n", "{},".repeat(300_000));
    let jobs = (0..1_001).map(|n| {
        format!("  - {{ name: j{n}, activation: source, runtime: worker, operator: o, outputs: 0, source: {{ kind: manual }} }}\n")
    });
    let many = format!("name: d\njobs:\n{}", jobs.collect::<String>());
    for (text, code) in [
        (bomb.as_str(), "anchor_not_allowed"),
        (&deep, "too_deep"),
        (&wide, "too_many_values"),
        (&many, "out_of_range"),
        ("name: !!python/object:os.system d\n", "tag_not_allowed"),
        ("a: b: c: d", "syntax"),
        ("", "missing_field"),
        ("name: d\u{0}\njobs: []\n", "syntax"),
    ] {
        let began = std::time::Instant::now();
        let refused = post_yaml(&server, "", &[], text).await.refused(422);
        let codes: Vec<&str> =
            refused["errors"].as_array().unwrap().iter().map(|it| it["code"].as_str().unwrap()).collect();
        assert!(codes.contains(&code) && codes.len() <= 1_000, "{code}: {codes:?}");
        assert!(began.elapsed() < SOON, "{code} took {:?}", began.elapsed());
    }
    let not_text = server.send(DAGS, &[], vec![0xff_u8, 0xfe, 0x00]).await.refused(400);
    assert_eq!(not_text["error"], "malformed_request");
    assert_eq!(server.get(DAGS).await.ok()["items"], json!([]));
}

async fn a_body_of_one_byte_too_many_is_refused(server: Server) {
    let padded = |bytes: usize| {
        let yaml = chain(0);
        let comment = "#".repeat(bytes - yaml.len() - 1);
        format!("{yaml}{comment}\n")
    };
    let fits = padded(1 << 20);
    assert_eq!(fits.len(), 1 << 20);
    assert_eq!(post_yaml(&server, "", &[], &fits).await.status.as_u16(), 201);
    // It is announced and refused before it is sent.
    let head = format!("POST {DAGS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", (1 << 20) + 1);
    let mut raw = RawClient::connect(&server.url).await;
    raw.send(head).await.unwrap();
    let answer = raw.read_until("body_too_large", SOON).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

async fn names_that_are_code_are_only_names(server: Server) {
    deploy(&server, &chain(0)).await;
    for name in [
        "'%3B%20DROP%20TABLE%20queues%3B--",
        "..%2F..%2Fetc",
        "%00",
        "chain%00",
        "%F0%9F%92%A9",
        "a%0Ab",
        &"x".repeat(4_000),
    ] {
        for path in [format!("{DAGS}/{name}"), format!("{DAGS}/{name}/versions"), format!("{DATASETS}/{name}")] {
            assert_eq!(server.get(&path).await.status.as_u16(), 404, "{path}");
        }
        for (path, body) in [
            (format!("{DAGS}/{name}/cutover"), json!({"version": 1})),
            (format!("{DAGS}/{name}/rollback"), json!({})),
            (format!("{DAGS}/chain/jobs/{name}/trigger"), json!({})),
            (format!("{DAGS}/{name}/jobs/import/trigger"), json!({})),
            (format!("{DATASETS}/{name}/invalidate"), json!({"scope": "partition", "partition_key": "1-5"})),
        ] {
            assert_eq!(server.post(&path, body).await.status.as_u16(), 404, "{path}");
        }
    }
    // In the text of a DAG, in a request and in a cursor they are refused or harmless.
    let code = "x'; DELETE FROM queues; --";
    let refused = post_yaml(&server, "", &[], &chain(0).replace("name: chain", &format!("name: \"{code}\""))).await;
    assert_eq!(refused.refused(422)["errors"][0]["code"], "invalid_name");
    let fired =
        server.post(&format!("{DAGS}/chain/jobs/import/trigger"), json!({"request_id": code, "input": code})).await;
    assert_eq!(fired.status.as_u16(), 202);
    for bad in ["a\u{0}b", "", &"x".repeat(129)] {
        let refused = server.post(&format!("{DAGS}/chain/jobs/import/trigger"), json!({"request_id": bad})).await;
        assert_eq!(refused.refused(422)["field"], "request_id");
    }
    let page = server.get(&format!("{DATASETS}/decoded?cursor=%27%20OR%201%3D1")).await.ok();
    assert_eq!(page["partitions"]["items"], json!([]));
    assert_eq!(shown(&server, "chain").await["active_version"], 1);
}

async fn unknown_parameters_are_refused(server: Server) {
    for query in ["?dryrun=true", "?dry_run=yes", "?cutover=never", "?dry_run=true&dry_run=false", "?version=1"] {
        let answer = post_yaml(&server, query, &[], &chain(0)).await;
        assert_eq!(answer.status.as_u16(), 422, "{query}: {}", answer.body);
    }
    assert_eq!(server.get(DAGS).await.ok()["items"], json!([]), "a slip deploys nothing");
    deploy(&server, &chain(0)).await;
    for path in ["/chain?versoin=1", "/chain?version=one", "/chain/versions?limit=9999", "/chain/versions?cursor=x"] {
        assert_eq!(server.get(&format!("{DAGS}{path}")).await.status.as_u16(), 422, "{path}");
    }
    let path = format!("{DAGS}/chain/cutover");
    for body in [json!({}), json!({"version": "one"}), json!({"version": null}), json!([1])] {
        assert_eq!(server.post(&path, body.clone()).await.status.as_u16(), 422, "{body}");
    }
    // Fields that a later version may know are ignored.
    assert_eq!(server.post(&path, json!({"version": 1, "why": "x"})).await.status.as_u16(), 200);
}
