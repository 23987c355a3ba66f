//! Caps, quotas, policies and templates.

use std::collections::BTreeMap;

use tenure_core::sandbox::template::{Request, Template};
use tenure_core::sandbox::{Secret, State};
use tenure_core::time::Timestamp;
use tenure_engine::sandboxes::{ErrorClass, TENANT_WIDE};
use tenure_engine::store::QuotaRow;
use tenure_testkit::wait_until;

use super::farm::{Call, Fault};
use super::{caller, caller_of, plane, settings};
use crate::harness::{Home, SOON};

fn quota(owner: &str, max_sandboxes: u64, max_ttl_ms: i64) -> QuotaRow {
    QuotaRow {
        tenant: "default".into(),
        owner: owner.into(),
        max_sandboxes,
        max_ttl_ms,
        max_exec_timeout_ms: 0,
        created_at: Timestamp::MIN,
        updated_at: Timestamp::MIN,
    }
}

fn named(template: &str) -> Request {
    Request { template: Some(template.to_owned()), ..Request::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_of_owners_and_tenants_hold() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let (ann, bob) = (caller_of("default", Some("ann")), caller_of("default", Some("bob")));
    plane.sandboxes.put_quota(&quota("ann", 1, 60_000)).await.unwrap();
    plane.sandboxes.put_quota(&quota(TENANT_WIDE, 2, 0)).await.unwrap();
    let create = async |who| plane.sandboxes.create(&Request::default(), who, None, true).await;
    let error = create(&ann).await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::ResourceLimit, "max_ttl"), "30 minutes by default");
    let short = Request { ttl_ms: Some(60_000), ..Request::default() };
    let row = plane.sandboxes.create(&short, &ann, None, true).await.unwrap().row;
    let error = plane.sandboxes.create(&short, &ann, None, true).await.unwrap_err();
    assert_eq!(&*error.reason, "max_sandboxes_per_owner");
    assert_eq!(plane.sandboxes.extend(&row.id, 60_001, &ann).await.unwrap_err().reason, "max_ttl");
    create(&bob).await.unwrap();
    assert_eq!(create(&bob).await.unwrap_err().reason, "max_sandboxes_per_tenant");
    let other = caller_of("other", None);
    create(&other).await.unwrap();
    assert!(plane.sandboxes.delete_quota("default", TENANT_WIDE).await.unwrap());
    create(&bob).await.unwrap();
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_judge_what_was_resolved() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let sandboxes = &plane.sandboxes;
    sandboxes.create_policy(Some("default"), "image", "deny", "alpine", 10).await.unwrap();
    sandboxes
        .create_template("default", "t", &Template { image: "debian".to_owned(), ..Template::default() })
        .await
        .unwrap();
    let error = plane.create().await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::Forbidden, "policy_denied"), "the default image");
    assert!(sandboxes.admission(&Request::default(), &caller()).await.is_err());
    sandboxes.create(&named("t"), &caller(), None, true).await.unwrap();
    sandboxes.create(&Request::default(), &caller_of("other", None), None, true).await.unwrap();
    let deny = sandboxes.create_policy(Some("default"), "image", "deny", "debian*", 10).await.unwrap();
    assert_eq!(sandboxes.create(&named("t"), &caller(), None, true).await.unwrap_err().class, ErrorClass::Forbidden);
    // A lower number comes first.
    sandboxes.create_policy(Some("default"), "image", "allow", "debian", 1).await.unwrap();
    sandboxes.create(&named("t"), &caller(), None, true).await.unwrap();
    let network = sandboxes.create_policy(None, "network", "deny", "*", 0).await.unwrap();
    assert_eq!(sandboxes.create(&named("t"), &caller(), None, true).await.unwrap_err().class, ErrorClass::Forbidden);
    assert!(sandboxes.delete_policy(None, &network.id).await.unwrap());
    assert!(sandboxes.delete_policy(Some("default"), &deny.id).await.unwrap());
    for (kind, effect) in [("disk", "deny"), ("image", "maybe")] {
        let error = sandboxes.create_policy(None, kind, effect, "*", 0).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::BadRequest);
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_of_a_template_acts() {
    let home = Home::sqlite();
    let mut settings = settings();
    settings.secrets = BTreeMap::from([("KEY".to_owned(), "s3cret".to_owned()), ("CERT".to_owned(), "pem".to_owned())]);
    let plane = plane(&home, &["w1"], settings).await;
    let secret = |name: &str, inject_at: &str| Secret { name: name.to_owned(), inject_at: inject_at.to_owned() };
    let template = Template {
        image: "python".to_owned(),
        setup: vec!["one".to_owned(), "two".to_owned()],
        memory_mb: 64,
        ttl_ms: 90_000,
        env: BTreeMap::from([("MODE".to_owned(), "test".to_owned())]),
        secrets: vec![secret("KEY", "API_KEY"), secret("CERT", "/run/cert.pem")],
        metadata: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
        ..Template::default()
    };
    let view = plane.sandboxes.create_template("default", "t", &template).await.unwrap();
    assert_eq!(view.version, 1);
    assert_eq!(
        plane.sandboxes.create_template("default", "t", &template).await.unwrap_err().class,
        ErrorClass::Conflict
    );
    let row = plane.sandboxes.create(&named("t"), &caller(), None, true).await.unwrap().row;
    assert_eq!(
        (row.spec.image.as_str(), row.spec.memory_mb, row.expires_at.since(row.created_at)),
        ("python", 64, 90_000)
    );
    assert_eq!(row.spec.metadata["team"], "a");
    let runtime = plane.farm.with("w1", |node| node.runtimes[&*row.id].clone());
    assert_eq!((runtime.commands, runtime.ttl_ms), (vec!["one".to_owned(), "two".to_owned()], 90_000));
    assert_eq!((runtime.env["MODE"].as_str(), runtime.env["API_KEY"].as_str()), ("test", "s3cret"));
    assert_eq!(runtime.files["/run/cert.pem"], b"pem");
    assert!(!format!("{:?}", row.spec).contains("s3cret"), "values of secrets are not stored");
    // A secret that nobody configured.
    let unknown = Template { secrets: vec![secret("NONE", "X")], ..template.clone() };
    plane.sandboxes.update_template("default", "t", &unknown).await.unwrap();
    let error = plane.sandboxes.create(&named("t"), &caller(), None, true).await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::BadRequest, "unknown_secret"));
    // An unknown template is ignored beside an image only.
    let both = Request { image: Some("alpine".to_owned()), ..named("none") };
    assert_eq!(plane.sandboxes.create(&both, &caller(), None, true).await.unwrap().row.spec.image, "alpine");
    assert_eq!(
        plane.sandboxes.create(&named("none"), &caller(), None, true).await.unwrap_err().class,
        ErrorClass::NotFound
    );
    plane.stop().await;
}

/// A worker of the contract alone knows of no variables in a spawn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_reach_every_command_on_a_worker_of_the_contract_alone() {
    let home = Home::sqlite();
    let plane = plane(&home, &[], settings()).await;
    plane.farm.with("w1", |node| node.capabilities = vec!["remote_worker".to_owned(), "heartbeat".to_owned()]);
    plane.farm.beat("w1").await;
    let env = BTreeMap::from([("MODE".to_owned(), "test".to_owned())]);
    let template = Template { setup: vec!["one".to_owned()], env: env.clone(), ..Template::default() };
    plane.sandboxes.create_template("default", "t", &template).await.unwrap();
    let row = plane.sandboxes.create(&named("t"), &caller(), None, true).await.unwrap().row;
    assert_eq!(plane.farm.with("w1", |node| node.runtimes[&*row.id].given.clone()), std::slice::from_ref(&env));
    assert_eq!(plane.sandboxes.route(&row.id, &caller().reach).await.unwrap().env, env);
    plane.farm.beat("w2").await;
    plane.sandboxes.drain("w1", None).await.unwrap();
    let row = plane.sandboxes.create(&named("t"), &caller(), None, true).await.unwrap().row;
    assert!(plane.sandboxes.route(&row.id, &caller().reach).await.unwrap().env.is_empty(), "w2 keeps them");
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_setup_that_fails_leaves_an_error_and_no_runtime() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    for setup in [vec!["one", "false", "three"], vec!["one"]] {
        let template = Template { setup: setup.iter().map(|text| (*text).to_owned()).collect(), ..Template::default() };
        let name = format!("t{}", setup.len());
        plane.sandboxes.create_template("default", &name, &template).await.unwrap();
        if setup.len() == 1 {
            plane.farm.fail("w1", Call::Exec, [Fault::Unreachable]);
        }
        let error = plane.sandboxes.create(&named(&name), &caller(), None, true).await.unwrap_err();
        let row = plane.rows().await.remove(0);
        assert_eq!((row.state, row.reason.as_deref()), (State::Error, Some("setup_failed")), "{error}");
        wait_until("the runtime to be gone", SOON, async || plane.farm.runtimes().is_empty()).await;
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_are_refused_where_nobody_enforces_them() {
    let home = Home::sqlite();
    let plane = plane(&home, &["w1"], settings()).await;
    let template = Template { allowed_hosts: vec!["example.com".to_owned()], ..Template::default() };
    let error = plane.sandboxes.create_template("default", "t", &template).await.unwrap_err();
    assert_eq!((error.class, &*error.reason), (ErrorClass::BadRequest, "egress_allow_list_unsupported"));
    plane.farm.with("w2", |node| node.capabilities.push("egress_allow_list".to_owned()));
    plane.farm.beat("w2").await;
    plane.sandboxes.create_template("default", "t", &template).await.unwrap();
    let row = plane.sandboxes.create(&named("t"), &caller(), None, true).await.unwrap().row;
    assert_eq!(row.worker.as_deref(), Some("w2"), "only there");
    plane.stop().await;
}
