//! Outputs in the object store.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::kit::{self, Claim, Plane};
use crate::cases;

cases!(
    kit,
    on_sqlite: [outputs_elsewhere_or_unfinished_are_refused],
    on_both_stores: [a_finished_output_is_committed_where_it_is],
);

fn folder(claim: &Claim, index: usize) -> PathBuf {
    let prefix = claim["task"]["outputs"][index]["staging_prefix"].as_str().unwrap();
    Path::new(prefix.strip_prefix("file://").unwrap()).to_owned()
}

fn write(folder: &Path, name: &str, content: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(name), content).unwrap();
}

fn staged(claim: &Claim, index: usize, key: &str) -> Value {
    let location = &claim["task"]["outputs"][index]["staging_prefix"];
    json!({"status": "Completed", "outputs": [claim.output(index, json!({"partition_key": key, "location": location}))]})
}

async fn a_finished_output_is_committed_where_it_is(plane: Plane) {
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let place = folder(&claim, 0);
    write(&place, "blocks_1_5.parquet", "PAR1");
    let refused = plane.complete(&claim, staged(&claim, 0, "1-5")).await.refused(422);
    assert_eq!(refused["error"], "missing_success_marker");
    write(&place, "_SUCCESS", "");
    let first = plane.complete(&claim, staged(&claim, 0, "1-5")).await.ok();
    assert!(place.join("blocks_1_5.parquet").exists(), "nothing is moved");
    let manifest: Value = serde_json::from_slice(&std::fs::read(place.join("_manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["parquet_keys"].as_array().unwrap().len(), 1);
    assert_eq!(plane.complete(&claim, staged(&claim, 0, "1-5")).await.ok(), first);
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    let location = &decode["task"]["inputs"][0]["partition"]["location"];
    assert_eq!(location, &claim["task"]["outputs"][0]["staging_prefix"]);
}

async fn outputs_elsewhere_or_unfinished_are_refused(plane: Plane) {
    plane.still().await;
    plane.deploy(kit::CHAIN).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let other = plane.claim(&plane.fire("r-2").await).await;
    for claim in [&claim, &other] {
        for index in 0..2 {
            write(&folder(claim, index), "_SUCCESS", "");
        }
    }
    let at = |location: Value| json!({"status": "Completed", "outputs": [claim.output(0, json!({"partition_key": "1-5", "location": location}))]});
    let own = claim["task"]["outputs"][0]["staging_prefix"].as_str().unwrap();
    for (location, status, word) in [
        (other["task"]["outputs"][0]["staging_prefix"].clone(), 403, "prefix_not_granted"),
        (claim["task"]["outputs"][1]["staging_prefix"].clone(), 403, "prefix_not_granted"),
        (json!(format!("{own}deeper/")), 403, "prefix_not_granted"),
        (json!(format!("{own}../0/")), 422, "invalid_prefix"),
        (json!("file:///etc/"), 403, "prefix_not_granted"),
        (json!("http://host/x/"), 422, "invalid_prefix"),
        (json!(format!("postgres_table:dataset_{}", claim.task())), 403, "prefix_not_granted"),
    ] {
        let refused = plane.complete(&claim, at(location.clone())).await.refused(status);
        assert_eq!(refused["error"], word, "{location}");
    }
    // Manifests.
    for (manifest, status, word) in [
        ("{".to_owned(), 422, "invalid_manifest"),
        (json!({"version": 2}).to_string(), 422, "invalid_manifest"),
        (" ".repeat((1 << 20) + 1), 413, "manifest_too_large"),
    ] {
        write(&folder(&claim, 0), "_manifest.json", &manifest);
        let refused = plane.complete(&claim, at(json!(own))).await.refused(status);
        assert_eq!(refused["error"], word, "{} bytes", manifest.len());
    }
    std::fs::remove_file(folder(&claim, 0).join("_manifest.json")).unwrap();
    // The prefix of an attempt that is over.
    plane.advance(120_000);
    plane.not_claimed(claim.task()).await;
    plane.advance(45_000);
    let second = plane.claim(claim.task()).await;
    let stale =
        json!({"status": "Completed", "outputs": [second.output(0, json!({"partition_key": "1-5", "location": own}))]});
    assert_eq!(plane.complete(&second, stale).await.refused(403)["error"], "prefix_not_granted");
    // The table of the dataset is a location by name.
    let table = format!("postgres_table:dataset_{}", second["task"]["outputs"][0]["dataset_uuid"].as_str().unwrap());
    let body = json!({"status": "Completed", "outputs": [second.output(0, json!({"cursor": 5, "location": table}))]});
    plane.complete(&second, body).await.ok();
}
