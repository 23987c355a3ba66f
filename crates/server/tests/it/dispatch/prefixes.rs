//! `dispatch.write_prefixes`: where a task may write beside its staging prefix.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tenure_core::objects::WriteTemplate;

use super::kit::{self, Claim, ORG, Plane};
use super::tokens::claims_of;
use crate::cases;
use crate::harness::Home;

cases!(
    starts,
    on_sqlite: [a_task_may_write_where_the_configuration_says],
);

mod starts {
    pub async fn sqlite() -> super::Plane {
        let home = super::Home::Sqlite(tempfile::tempdir().unwrap());
        super::kit::plane_on(super::Arc::new(home), super::Arc::default(), |dispatch| {
            let root = dispatch.objects.as_ref().unwrap().layout().root().to_string();
            let templates = ["out/{dag}/{job}/{task_id}-{attempt}", "lake/{dataset_uuid}"];
            dispatch.write_prefixes =
                templates.map(|below| super::WriteTemplate::parse(&format!("{root}{below}"), true).unwrap()).into();
        })
        .await
    }
}

const DAG: &str = "name: chain
jobs:
  - { name: import, activation: source, runtime: worker, operator: import, outputs: 2, source: { kind: manual } }
  - { name: judge, activation: source, runtime: sandbox, operator: judge, outputs: 1, source: { kind: manual } }
  - { name: decode, activation: reactive, runtime: worker, operator: decode, outputs: 0, execution_strategy: PerPartition,
      inputs: [{ from: { job: import, output: 0 } }] }
";

fn granted(claim: &Claim) -> Vec<String> {
    claims_of(claim.token())["s3"]["write_prefixes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap().to_owned())
        .collect()
}

fn write(location: &str, name: &str, content: &str) {
    let folder = Path::new(location.strip_prefix("file://").unwrap());
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(name), content).unwrap();
}

async fn a_task_may_write_where_the_configuration_says(plane: Plane) {
    plane.deploy(DAG).await;
    let claim = plane.claim(&plane.fire("r-1").await).await;
    let other = plane.claim(&plane.fire("r-2").await).await;
    let dataset =
        |claim: &Claim, index: usize| claim["task"]["outputs"][index]["dataset_uuid"].as_str().unwrap().to_owned();
    let staging = claim["task"]["outputs"][0]["staging_prefix"].as_str().unwrap();
    let root = &staging[..staging.find("dataset/").unwrap()];
    let own = format!("{root}out/chain/import/{}-1/", claim.task());
    let lake = |index| format!("{root}lake/{}/", dataset(&claim, index));
    // They are in the capability token, beside the prefix of the attempt.
    let prefixes = granted(&claim);
    for prefix in [&own, &lake(0), &lake(1)] {
        assert!(prefixes.contains(prefix), "{prefix} in {prefixes:?}");
    }
    assert_eq!(prefixes.len(), 5, "{prefixes:?}");
    // Code that is not trusted gets only what no other task can write.
    let judge = plane.dags.trigger(ORG, "chain", "judge", &"r-1".into(), None).await.unwrap().task;
    let judge = plane.claim(&judge.to_string()).await;
    let prefixes = granted(&judge);
    assert!(prefixes.contains(&format!("{root}out/chain/judge/{}-1/", judge.task())), "{prefixes:?}");
    assert!(!prefixes.iter().any(|prefix| prefix.contains("/lake/")), "{prefixes:?}");
    let at = |claim: &Claim, index: usize, location: &str| {
        let output = claim.output(index, json!({"partition_key": "1-5", "location": location}));
        json!({"status": "Completed", "outputs": [output]})
    };
    let theirs = format!("{root}lake/{}/", dataset(&judge, 0));
    for location in [&own, &lake(0), &lake(1), &theirs] {
        write(location, "_SUCCESS", "");
    }
    assert_eq!(plane.complete(&judge, at(&judge, 0, &theirs)).await.refused(403)["error"], "prefix_not_granted");
    // Of another task, of another output, and elsewhere.
    let foreign = format!("{root}out/chain/import/{}-1/", other.task());
    for location in [&foreign, &lake(1), &format!("{root}out/chain/import/")] {
        let refused = plane.complete(&claim, at(&claim, 0, location)).await.refused(403);
        assert_eq!(refused["error"], "prefix_not_granted", "{location}");
    }
    // Finished is a marker, or a valid manifest with full keys, whatever its list is called and files are called.
    let bare = own.replace("-1/", "-1");
    std::fs::remove_file(format!("{}_SUCCESS", own.strip_prefix("file://").unwrap())).unwrap();
    let refused = plane.complete(&claim, at(&claim, 0, &own)).await.refused(422);
    assert_eq!(refused["error"], "missing_success_marker");
    write(&own, "part 0 of it.parquet", "PAR1");
    let key = |file: &str| format!("{}{file}", own.strip_prefix("file:///").unwrap());
    for (keys, status) in [(json!([key("missing.parquet")]), 422), (json!([key("part 0 of it.parquet")]), 200)] {
        let manifest = json!({"version": 1, "dataset_uuid": dataset(&claim, 0),
            "dataset_version": claim["task"]["outputs"][0]["dataset_version"], "parquet_objects": keys});
        write(&own, "_manifest.json", &manifest.to_string());
        let answer = plane.complete(&claim, at(&claim, 0, &bare)).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.body);
    }
    // Whoever reads it is told where it is, and may read it.
    let decode = plane.claim(&plane.nth("decode", 1).await).await;
    assert_eq!(decode["task"]["inputs"][0]["partition"]["location"], own);
    let claims = claims_of(decode.token());
    assert!(claims["s3"]["read_prefixes"].as_array().unwrap().contains(&json!(own)), "{claims}");
}
