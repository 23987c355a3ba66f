//! Bundles: uploads, DAGs that name them, and what workers and functions are told.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tenure_core::objects::Prefix;
use tenure_engine::dags::NewVersion;
use tenure_objects::{Credentials, Place, Settings};
use tenure_testkit::Moto;

use super::kit::{self, ORG, Plane};
use crate::cases;
use crate::harness::{Answer, Server};
use crate::identity::people::{get, made, with_users};

#[path = "../../../../bundle/tests/it/cases.rs"]
mod rules;
#[path = "../../../../bundle/tests/it/zip.rs"]
mod zip;

use rules::Refused;
pub use rules::good;
use zip::Bundle;

cases!(
    kit,
    on_sqlite: [
        each_rule_of_a_bundle_has_an_upload_that_breaks_it,
        bundles_that_follow_the_rules_are_accepted,
        a_bundle_is_counted_while_it_arrives,
        a_tenant_sees_its_own_bundles,
        a_dag_is_held_against_its_bundle,
        code_that_sees_no_files_is_told_of_buckets,
        a_server_without_objects_takes_no_bundles,
        a_bundle_in_s3_has_an_address_of_its_own,
    ],
    on_both_stores: [
        a_bundle_is_uploaded_once,
        uploads_and_removals_of_the_same_bytes_at_once_lose_nothing,
        a_bundle_that_no_job_runs_can_be_removed,
        a_task_is_told_of_its_bundle_and_downloads_it,
    ],
);

const BUNDLES: &str = "/api/v1/udf/bundles";

async fn upload(server: &Server, zip: Vec<u8>) -> Answer {
    server.send(BUNDLES, &[("content-type", "application/zip")], zip).await
}

async fn each_rule_of_a_bundle_has_an_upload_that_breaks_it(plane: Plane) {
    for case in rules::refused() {
        let (status, code) = match case.refused {
            Refused::Invalid => (422, "invalid_bundle"),
            Refused::TooLarge => (413, "bundle_too_large"),
        };
        let answer = upload(&plane, case.zip).await;
        assert_eq!(answer.status.as_u16(), status, "{}: {}", case.name, answer.body);
        let message = answer.body["message"].as_str().unwrap();
        assert_eq!(answer.body["error"], code, "{}", case.name);
        assert!(message.contains(case.says), "{}: {message}", case.name);
    }
}

async fn bundles_that_follow_the_rules_are_accepted(plane: Plane) {
    for (name, zip) in rules::accepted() {
        let answer = upload(&plane, zip).await;
        assert_eq!(answer.status.as_u16(), 201, "{name}: {}", answer.body);
    }
}

async fn a_bundle_is_uploaded_once(plane: Plane) {
    let zip = good().build();
    let answer = upload(&plane, zip.clone()).await;
    assert_eq!(answer.status.as_u16(), 201, "{}", answer.body);
    let made = answer.body;
    let expected = json!({
        "bundle_id": made["bundle_id"], "sha256": zip::hex(&zip), "runtime": "node", "entrypoint": "index.js", "files": 2,
        "bytes": zip.len(),
    });
    assert_eq!(made, expected);
    let again = upload(&plane, zip).await;
    assert_eq!((again.status.as_u16(), &again.body), (200, &made));
    let path = format!("{BUNDLES}/{}", made["bundle_id"].as_str().unwrap());
    assert_eq!(plane.get(&path).await.ok(), made);
    for id in ["0190c0de-0000-7000-8000-000000000001", "x", "..%2Fx"] {
        let refused = plane.get(&format!("{BUNDLES}/{id}")).await.refused(404);
        assert_eq!(refused["error"], "bundle_not_found", "{id}");
    }
}

/// The zip files in the object store.
fn zip_files(plane: &Plane) -> Vec<std::path::PathBuf> {
    let folders = |path: std::path::PathBuf| std::fs::read_dir(path).into_iter().flatten().map(|it| it.unwrap().path());
    let bundles = folders(plane.objects.path().join("bundles")).flat_map(folders).flat_map(folders);
    bundles.filter(|path| path.extension().is_some_and(|it| it == "zip")).collect()
}

async fn uploads_and_removals_of_the_same_bytes_at_once_lose_nothing(plane: Plane) {
    let zip = good().build();
    let path = |bundle: &Value| format!("{BUNDLES}/{}", bundle["bundle_id"].as_str().unwrap());
    // Everybody is told of the one bundle, and its bytes are there once.
    let uploads = (0..4).map(|_| upload(&plane, zip.clone()));
    let answers = futures_util::future::join_all(uploads).await;
    assert_eq!(answers.iter().filter(|answer| answer.status.as_u16() == 201).count(), 1);
    let mut bundle = answers[0].body.clone();
    assert!(answers.iter().all(|answer| answer.body == bundle), "one bundle");
    assert_eq!(zip_files(&plane).len(), 1);
    // The same bytes later are elsewhere: whoever removes the first bundle does not have the place of the second.
    let first = zip_files(&plane);
    assert_eq!(plane.delete(&path(&bundle)).await.status.as_u16(), 204);
    assert!(zip_files(&plane).is_empty());
    bundle = upload(&plane, zip.clone()).await.ok();
    assert_ne!(zip_files(&plane), first);
    for _ in 0..20 {
        let own = path(&bundle);
        let (uploaded, removed) = tokio::join!(upload(&plane, zip.clone()), plane.delete(&own));
        assert_eq!(removed.status.as_u16(), 204);
        let uploaded = uploaded.ok();
        if plane.get(&path(&uploaded)).await.status.as_u16() == 404 {
            assert_eq!(uploaded, bundle, "it was uploaded before it was removed");
            bundle = upload(&plane, zip.clone()).await.ok();
        } else {
            bundle = uploaded;
        }
        let files = zip_files(&plane);
        assert_eq!(files.len(), 1, "{files:?}");
        assert_eq!(std::fs::read(&files[0]).unwrap(), zip, "whoever is on record has its bytes");
        assert!(files[0].to_str().unwrap().contains(bundle["bundle_id"].as_str().unwrap()));
    }
}

fn with_file(name: &str) -> Vec<u8> {
    Bundle::new("node", &[("index.js", b"1"), (name, b"1")]).build()
}

async fn a_bundle_that_no_job_runs_can_be_removed(plane: Plane) {
    let zip = good().build();
    let (used, other) = (upload(&plane, zip.clone()).await.ok(), upload(&plane, with_file("x.js")).await.ok());
    let path = |bundle: &Value| format!("{BUNDLES}/{}", bundle["bundle_id"].as_str().unwrap());
    let deploy = async |bundle: &Value| {
        let yaml = dag(bundle["bundle_id"].as_str().unwrap(), "");
        plane.dags.deploy(NewVersion { org: ORG, yaml: &yaml, manual: false, dry_run: false }).await.map(drop)
    };
    deploy(&used).await.unwrap();
    let refused = plane.delete(&path(&used)).await.refused(409);
    assert_eq!(refused["error"], "bundle_in_use");
    assert!(refused["message"].as_str().unwrap().contains("of the DAG 'chain'"), "{refused}");
    assert_eq!(plane.get(&path(&used)).await.ok(), used, "it is still there");
    let objects = || zip_files(&plane).len();
    assert_eq!(objects(), 2);
    assert_eq!(plane.delete(&path(&other)).await.status.as_u16(), 204);
    assert_eq!(
        (plane.get(&path(&other)).await.refused(404)["error"].clone(), objects()),
        (json!("bundle_not_found"), 1)
    );
    assert_eq!(plane.delete(&path(&other)).await.refused(404)["error"], "bundle_not_found");
    // What was removed cannot be deployed.
    assert!(format!("{:?}", deploy(&other).await.unwrap_err()).contains("UnknownBundle"));
    // The version before can be returned to, so that its bundle stays.
    let third = upload(&plane, with_file("y.js")).await.ok();
    deploy(&third).await.unwrap();
    assert_eq!(plane.delete(&path(&used)).await.refused(409)["error"], "bundle_in_use");
}

/// The object store of this server is a folder whose outputs are called `file:///...`, for workers that see it.
async fn code_that_sees_no_files_is_told_of_buckets(plane: Plane) {
    let bundle = upload(&plane, good().build()).await.ok();
    plane.deploy(&dag(bundle["bundle_id"].as_str().unwrap(), "")).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let staging = claim["task"]["outputs"][0]["staging_prefix"].as_str().unwrap().to_owned();
    let key = staging.strip_prefix("s3://tenure/").unwrap_or_else(|| panic!("{staging}"));
    let folder = plane.objects.path().join(key);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("a.parquet"), "PAR1").unwrap();
    std::fs::write(folder.join("_SUCCESS"), "").unwrap();
    let beside = staging.replace("/1/0/", "/1/1/");
    let said = |location: &str| {
        let output = claim.output(0, json!({"partition_key": "1-5", "location": location}));
        json!({"status": "Completed", "outputs": [output]})
    };
    let refused = plane.complete(&claim, said(&beside)).await.refused(403);
    assert_eq!(refused["error"], "prefix_not_granted");
    plane.complete(&claim, said(&staging)).await.ok();
    let dataset = claim["task"]["outputs"][0]["dataset_uuid"].as_str().unwrap();
    let row = plane.get(&format!("/api/v1/datasets/{dataset}")).await.ok()["partitions"]["items"][0].clone();
    // It is recorded under the one name that all readers of the store know.
    let location = row["location"].as_str().unwrap();
    assert!(location.starts_with("file:///") && location.ends_with(key), "{row}");
}

/// Nothing announces how long the body is: it is counted.
async fn a_bundle_is_counted_while_it_arrives(plane: Plane) {
    let piece = vec![0_u8; 1 << 20];
    let pieces = futures_util::stream::iter((0..65).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
    let refused = plane.send(BUNDLES, &[], reqwest::Body::wrap_stream(pieces)).await.refused(413);
    assert_eq!(refused["error"], "bundle_too_large");
    // One that is announced is refused before it is read.
    let refused = upload(&plane, vec![0; (64 << 20) + 1]).await.refused(413);
    assert_eq!(refused["error"], "bundle_too_large");
}

async fn a_tenant_sees_its_own_bundles(plane: Plane) {
    with_users(&plane);
    let ann = made(&plane, json!({"tenant": "acme", "role": "api"})).await;
    let bob = made(&plane, json!({"tenant": "other", "role": "api"})).await;
    let viewer = made(&plane, json!({"tenant": "acme", "role": "viewer"})).await;
    let zip = good().build();
    let own = plane.send(BUNDLES, &[ann.header()], zip.clone()).await.ok();
    let path = format!("{BUNDLES}/{}", own["bundle_id"].as_str().unwrap());
    assert_eq!(get(&plane, &[ann.header()], &path).await.ok(), own);
    assert_eq!(get(&plane, &[viewer.header()], &path).await.ok(), own);
    assert_eq!(get(&plane, &[bob.header()], &path).await.refused(404)["error"], "bundle_not_found");
    assert_eq!(plane.send(BUNDLES, &[viewer.header()], zip.clone()).await.status.as_u16(), 403);
    assert_eq!(plane.send(BUNDLES, &[], zip.clone()).await.status.as_u16(), 401);
    // The same bytes are another bundle to another tenant: nobody learns what others have.
    let others = plane.send(BUNDLES, &[bob.header()], zip).await;
    assert_eq!(others.status.as_u16(), 201);
    assert_ne!(others.body["bundle_id"], own["bundle_id"]);
    // A DAG cannot run a bundle of another tenant.
    let yaml = dag(own["bundle_id"].as_str().unwrap(), "");
    let deploy = async |org: &str| {
        plane.dags.deploy(NewVersion { org, yaml: &yaml, manual: false, dry_run: true }).await.map(drop)
    };
    assert!(deploy("acme").await.is_ok());
    assert!(format!("{:?}", deploy("other").await.unwrap_err()).contains("UnknownBundle"));
}

fn dag(bundle: &str, more: &str) -> String {
    format!(
        "name: chain
jobs:
  - {{ name: import, activation: source, runtime: sandbox, operator: udf, outputs: 1, source: {{ kind: manual }},
      config: {{ n: 1 }}, udf: {{ bundle_id: {bundle}{more} }} }}
"
    )
}

async fn deployed(plane: &Plane, yaml: &str) -> Answer {
    plane.send("/api/v1/dags?dry_run=true", &[("content-type", "application/yaml")], yaml.to_owned()).await
}

async fn a_dag_is_held_against_its_bundle(plane: Plane) {
    let zip = good().with("env_allowlist", json!(["THRESHOLD"])).build();
    let bundle = upload(&plane, zip).await.ok()["bundle_id"].as_str().unwrap().to_owned();
    for more in ["", ", entrypoint: index.js", ", env: { THRESHOLD: 5 }"] {
        let answer = deployed(&plane, &dag(&bundle, more)).await;
        assert_eq!(answer.status.as_u16(), 200, "{}", answer.body);
        assert_eq!(answer.body["warnings"], json!([]), "{more}");
    }
    let handler = deployed(&plane, &dag(&bundle, ", entrypoint: handle")).await.ok();
    assert_eq!(handler["warnings"][0]["code"], "entrypoint_is_handler", "{handler}");
    for (id, more, code) in [
        ("0190c0de-0000-7000-8000-000000000001", "", "unknown_bundle"),
        (&bundle, ", entrypoint: lib/a.js", "entrypoint_mismatch"),
        (&bundle, ", env: { OTHER: 5 }", "env_not_allowed"),
    ] {
        let refused = deployed(&plane, &dag(id, more)).await.refused(422);
        assert_eq!(refused["errors"][0]["code"], code, "{refused}");
        assert_eq!(refused["errors"][0]["job"], "import");
    }
}

async fn a_task_is_told_of_its_bundle_and_downloads_it(plane: Plane) {
    let zip = good().with("env_allowlist", json!(["THRESHOLD"])).build();
    let bundle = upload(&plane, zip.clone()).await.ok();
    let id = bundle["bundle_id"].as_str().unwrap();
    plane.deploy(&dag(id, ", entrypoint: handle, env: { THRESHOLD: 5 }")).await;
    let task = plane.fire("r-1").await;
    let claim = plane.claim(&task).await;
    let told = &claim["task"];
    assert_eq!(told["bundle_url"], "/v1/task/bundle");
    assert_eq!(told["handler"], "handle");
    let expected = json!({
        "bundle_id": id, "sha256": bundle["sha256"], "runtime": "node", "entrypoint": "index.js", "bytes": zip.len(),
        "env": {"THRESHOLD": "5"}, "object_store": {"bucket": "tenure", "endpoint_url": null},
    });
    assert_eq!(told["bundle"], expected);
    let work = &claim["work_payload"];
    assert_eq!((&work["n"], &work["bundle_url"]), (&json!(1), &told["bundle_url"]));
    assert_eq!(plane.fetch(&task).await.ok()["work_payload"], *work);

    let download = async |token: Option<&str>| {
        let mut request = reqwest::Client::new().get(format!("{}/v1/task/bundle", plane.url));
        if let Some(token) = token {
            request = request.header("X-Trace-Task-Capability", token);
        }
        request.send().await.unwrap()
    };
    let answer = download(Some(claim.token())).await;
    assert_eq!(answer.status().as_u16(), 200);
    let bytes = answer.bytes().await.unwrap();
    assert_eq!(zip::hex(&bytes), bundle["sha256"].as_str().unwrap());
    assert_eq!(Sha256::digest(&bytes), Sha256::digest(&zip));
    assert_eq!(download(None).await.status().as_u16(), 401);
    assert_eq!(download(Some("x.y.z")).await.status().as_u16(), 401);
    // The token of a worker is not one of a task.
    let worker =
        plane.call(reqwest::Method::GET, "/v1/task/bundle", &[("X-Trace-Worker-Token", crate::harness::TOKEN)], None);
    assert_eq!(worker.await.status.as_u16(), 401);
    // A task without a bundle has none to download.
    plane.deploy(kit::CHAIN).await;
    plane.active(2).await;
    let other = plane.claim(&plane.fire("r-2").await).await;
    assert_eq!((&other["task"]["bundle"], &other["task"]["bundle_url"]), (&Value::Null, &json!("")));
    assert_eq!(download(Some(other.token())).await.status().as_u16(), 404);
}

async fn a_server_without_objects_takes_no_bundles(_: Plane) {
    let home = std::sync::Arc::new(crate::harness::Home::Sqlite(tempfile::tempdir().unwrap()));
    let plane = kit::plane_on(home, std::sync::Arc::default(), |dispatch| dispatch.objects = None).await;
    let refused = upload(&plane, Bundle::new("node", &[("index.js", b"1")]).build()).await.refused(503);
    assert_eq!(refused["error"], "object_store_unavailable");
    let view = plane.dags.view(ORG).await.unwrap();
    assert!(view.deployment.dags.is_empty());
}

async fn a_bundle_in_s3_has_an_address_of_its_own(_: Plane) {
    let moto = Moto::start().await;
    let made = reqwest::Client::new().put(format!("{}/tenure-test", moto.url())).send().await.unwrap();
    assert!(made.status().is_success());
    let place = Place::S3 {
        root: Prefix::parse("s3://tenure-test/some/where/", false).unwrap(),
        endpoint_url: Some(moto.url()),
        region: Some("eu-central-1".into()),
        path_style: true,
    };
    let credentials = Credentials { access_key_id: "AKIDSESAME".into(), secret_access_key: "sesame".into() };
    let objects = Settings { credentials: Some(credentials), ..Settings::new(place) }.open().unwrap();
    let home = std::sync::Arc::new(crate::harness::Home::Sqlite(tempfile::tempdir().unwrap()));
    let plane =
        kit::plane_on(home, std::sync::Arc::default(), |dispatch| dispatch.objects = Some(objects.into())).await;
    let zip = good().build();
    let bundle = upload(&plane, zip.clone()).await.ok();
    plane.deploy(&dag(bundle["bundle_id"].as_str().unwrap(), "")).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let url = claim["task"]["bundle_url"].as_str().unwrap();
    assert!(url.starts_with(&format!("{}/tenure-test/some/where/", moto.url())), "{url}");
    assert!(
        url.contains("X-Amz-Signature=") && url.contains("X-Amz-Expires=3600") && !url.contains("=sesame"),
        "{url}"
    );
    assert_eq!(claim["work_payload"]["bundle_url"], url);
    let store = &claim["task"]["bundle"]["object_store"];
    assert_eq!(store, &json!({"bucket": "tenure-test", "endpoint_url": moto.url()}));
    let bytes = reqwest::get(url).await.unwrap().bytes().await.unwrap();
    assert_eq!(zip::hex(&bytes), bundle["sha256"].as_str().unwrap());
}
