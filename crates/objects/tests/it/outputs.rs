//! When an output is finished.

use serde_json::{Value, json};
use tenure_core::objects::{MANIFEST, MANIFEST_BYTES, Prefix, Values, WriteTemplate};
use tenure_objects::{Finished, ObjectError};

use crate::stand::{Stand, at, output};

crate::on_both!(
    an_output_is_finished_when_it_says_so,
    the_list_of_files_is_fixed_once,
    only_its_own_staging_prefix_is_a_location,
    a_granted_prefix_is_a_location_too,
    a_manifest_must_be_valid,
    an_output_has_a_bounded_number_of_objects,
    prefixes_are_directories,
);

fn names(finished: &Finished) -> Vec<&str> {
    finished.files.iter().map(|file| &*file.name).collect()
}

async fn an_output_is_finished_when_it_says_so(stand: Stand) {
    let output = output(1, 1);
    let location = stand.staging(&output);
    let nothing = stand.objects.finished(&at(&output, &location)).await.unwrap_err();
    assert_eq!((nothing.code(), nothing.status()), ("missing_success_marker", 422));
    stand.put(&location, "blocks_0_99.parquet", "12345").await;
    stand.put(&location, "day=1/blocks_100_199.parquet", "123").await;
    stand.put(&location, "_temporary/blocks_0_9.parquet", "1").await;
    stand.put(&location, "deeper/_SUCCESS", "").await;
    assert_eq!(stand.objects.finished(&at(&output, &location)).await.unwrap_err().code(), "missing_success_marker");

    stand.put(&location, "_SUCCESS", "").await;
    let finished = stand.objects.finished(&at(&output, &location)).await.unwrap();
    assert_eq!(names(&finished), ["blocks_0_99.parquet", "day=1/blocks_100_199.parquet"]);
    assert_eq!((finished.bytes(), finished.has_manifest), (8, false));
}

async fn the_list_of_files_is_fixed_once(stand: Stand) {
    let output = output(1, 1);
    let location = stand.staging(&output);
    stand.put(&location, "a.parquet", "1").await;
    stand.put(&location, "_SUCCESS", "").await;
    let sealed = stand.objects.seal(&at(&output, &location)).await.unwrap();
    assert_eq!((names(&sealed), sealed.has_manifest), (vec!["a.parquet"], true));
    let written = stand.objects.get(&location, MANIFEST, 10_000).await.unwrap();
    let written: Value = serde_json::from_slice(&written).unwrap();
    assert_eq!(written["parquet_keys"], json!([format!("{}a.parquet", location.path())]));
    assert_eq!(written["dataset_version"], json!(output.version));

    // What comes later is not part of it, however often it is asked for.
    stand.put(&location, "b.parquet", "2").await;
    for _ in 0..2 {
        assert_eq!(stand.objects.seal(&at(&output, &location)).await.unwrap(), sealed);
    }
}

async fn only_its_own_staging_prefix_is_a_location(stand: Stand) {
    let own = output(1, 2);
    let text = stand.staging(&own).to_string();
    for same in [&*text, text.trim_end_matches('/')] {
        assert_eq!(stand.objects.location(same, &own, &[]).unwrap(), stand.staging(&own));
    }
    let layout = stand.objects.layout();
    let mut other = own;
    other.output = 1;
    for foreign in [
        stand.staging(&output(1, 1)).to_string(),
        stand.staging(&output(2, 2)).to_string(),
        stand.staging(&other).to_string(),
        layout.attempt(&own).unwrap().to_string(),
        layout.version(own.dataset, own.version).unwrap().to_string(),
        layout.scratch(own.task, 2).unwrap().to_string(),
        layout.root().to_string() + "x",
        format!("{text}deeper/"),
        format!("{}-evil/", text.trim_end_matches('/')),
        "s3://other/x/".into(),
    ] {
        let refused = stand.objects.location(&foreign, &own, &[]).unwrap_err();
        assert_eq!((refused.code(), refused.status()), ("prefix_not_granted", 403), "{foreign}");
    }
    for odd in [format!("{text}../0/"), format!("{text}%2e%2e/0/"), format!("{text}*"), "none".into(), String::new()] {
        let refused = stand.objects.location(&odd, &own, &[]).unwrap_err();
        assert_eq!((refused.code(), refused.status()), ("invalid_prefix", 422), "{odd}");
    }
}

async fn a_granted_prefix_is_a_location_too(stand: Stand) {
    let own = output(1, 2);
    let root = match stand.objects.allows_file() {
        true => stand.objects.layout().root().to_string(),
        false => "s3://lake/".into(),
    };
    let template =
        WriteTemplate::parse(&format!("{root}out/{{dag}}/{{task_id}}"), stand.objects.allows_file()).unwrap();
    let task_id = own.task.to_string();
    let values = Values { task_id: &task_id, attempt: 2, dag: "watch", job: "decode", dataset_uuid: "u" };
    let granted = [template.expand(&values, stand.objects.allows_file()).unwrap()];
    let text = format!("{root}out/watch/{task_id}/part-1/");
    let location = stand.objects.location(&text, &own, &granted).unwrap();
    assert!(stand.objects.location(&format!("{root}out/watch/{task_id}1/"), &own, &granted).is_err());
    assert!(stand.objects.location(&text, &own, &[]).is_err());

    stand.put(&location, "x.parquet", "1").await;
    let manifest = json!({"version": 1, "parquet_objects": [format!("{}x.parquet", location.path())]}).to_string();
    stand.put(&location, MANIFEST, &manifest).await;
    let finished = stand.objects.finished(&at(&own, &location)).await.unwrap();
    assert_eq!((names(&finished), finished.has_manifest), (vec!["x.parquet"], true));
}

async fn a_manifest_must_be_valid(stand: Stand) {
    let oversize = json!({"parquet_keys": [], "pad": "x".repeat(MANIFEST_BYTES)}).to_string();
    for (task, manifest, code) in [
        (1, "not json", "invalid_manifest"),
        (2, r#"{"parquet_keys": ["missing.parquet"]}"#, "invalid_manifest"),
        (3, r#"{"parquet_keys": ["../0/a.parquet"]}"#, "invalid_manifest"),
        (4, r#"{"parquet_keys": ["a.csv"]}"#, "invalid_manifest"),
        (5, r#"{"parquet_keys": ["a.parquet"], "dataset_uuid": "0"}"#, "invalid_manifest"),
        (6, &oversize, "manifest_too_large"),
    ] {
        let output = output(task, 1);
        let location = stand.staging(&output);
        for (name, text) in [("a.parquet", "1"), ("a.csv", "1"), ("_SUCCESS", ""), (MANIFEST, manifest)] {
            stand.put(&location, name, text).await;
        }
        let refused = stand.objects.seal(&at(&output, &location)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{}", &manifest[..manifest.len().min(80)]);
    }
}

async fn an_output_has_a_bounded_number_of_objects(stand: Stand) {
    let output = output(1, 1);
    let location = stand.staging(&output);
    stand.put(&location, "_SUCCESS", "").await;
    for n in 0..49 {
        stand.put(&location, &format!("{n}.parquet"), "").await;
    }
    assert_eq!(stand.objects.finished(&at(&output, &location)).await.unwrap().files.len(), 49);
    stand.put(&location, "one-more.parquet", "").await;
    let refused = stand.objects.finished(&at(&output, &location)).await.unwrap_err();
    assert!(matches!(refused, ObjectError::TooMany(50)) && refused.status() == 413, "{refused:?}");
    let large = stand.objects.get(&location, "_SUCCESS", 0).await.map(|bytes| bytes.len());
    assert_eq!(large.unwrap(), 0);
    stand.put(&location, "large", "123").await;
    assert!(matches!(stand.objects.get(&location, "large", 2).await, Err(ObjectError::TooLarge(2))));
}

async fn prefixes_are_directories(stand: Stand) {
    let root = stand.objects.layout().root();
    let (p, evil): (Prefix, Prefix) = (root.below("p").unwrap(), root.below("p-evil").unwrap());
    stand.put(&p, "x", "1").await;
    stand.put(&evil, "y", "1").await;
    assert_eq!((stand.names(&p).await, stand.names(&evil).await), (vec!["x".to_owned()], vec!["y".to_owned()]));
    assert!(stand.names(&root.below("q").unwrap()).await.is_empty());
    assert!(matches!(stand.objects.get(&p, "z", 10).await, Err(ObjectError::NotFound)));
    assert!(!stand.objects.put_new(&p, "x", "2".into()).await.unwrap(), "what is there stays");
    assert_eq!(stand.objects.get(&p, "x", 10).await.unwrap(), "1");
    stand.objects.check().await.unwrap();
}
