//! Prefixes and manifests that anybody may have written.

use proptest::prelude::*;
use proptest::sample::select;
use tenure_core::dag::range::{Ranges, Span};
use tenure_core::objects::{Manifest, Prefix, file_name, parse_file_name};
use uuid::Uuid;

#[path = "../../../../fuzz/src/targets/objects.rs"]
mod target;

#[path = "../../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_prefixes_holds() {
    replay::corpus("object_prefix", target::prefix);
}

#[test]
fn the_corpus_of_manifests_holds() {
    replay::corpus("manifest", target::manifest);
}

/// Paths of pieces that are good, bad, or become bad next to each other.
fn path() -> impl Strategy<Value = String> {
    let pieces = vec![
        "a",
        "b-evil",
        "p",
        "/",
        "/",
        "/",
        ".",
        "..",
        "%2e",
        "%2E%2E",
        "%252e",
        "%2F",
        "%5c",
        "%",
        "%zz",
        "\\",
        "*",
        "?",
        "#",
        " ",
        "é",
        "\u{202e}",
        "\0",
        "\n",
        "staging",
        ".parquet",
        "x.parquet",
        "p/q/",
        "s3://",
        "file:///",
        "{task_id}",
    ];
    prop::collection::vec(select(pieces), 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_prefix_leads_nowhere_else(scheme in select(vec!["s3://tenure/", "file:///", "", "s3://"]), path in path()) {
        target::prefix(format!("{scheme}{path}").as_bytes());
    }

    #[test]
    fn one_prefix_covers_another_as_directories_do(a in path(), b in path()) {
        let parse = |path: &str| Prefix::parse(&format!("s3://tenure/{path}"), false);
        if let (Ok(a), Ok(b)) = (parse(&a), parse(&b)) {
            let segments = |prefix: &Prefix| prefix.path().trim_end_matches('/').split('/').map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(a.covers(&b), segments(&b).starts_with(&segments(&a)));
            prop_assert!(!(a.covers(&b) && b.covers(&a)) || a == b);
        }
    }

    #[test]
    fn a_manifest_names_nothing_outside(keys in prop::collection::vec(path(), 0..4), alias in any::<bool>()) {
        let name = if alias { "parquet_objects" } else { "parquet_keys" };
        target::manifest(serde_json::json!({"version": 1, name: keys}).to_string().as_bytes());
    }

    #[test]
    fn any_text_is_a_manifest_or_an_error(text in any::<Vec<u8>>()) {
        target::manifest(&text);
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written(files in prop::collection::btree_set("[a-z]{1,8}(/[a-z=0-9]{1,8})?\\.parquet", 0..20)) {
        let prefix = Prefix::parse("s3://tenure/p/q/", false).unwrap();
        let (dataset, version) = (Uuid::from_u128(7), Uuid::from_u128(8));
        let manifest = Manifest { dataset, version, files: files.into_iter().collect() };
        let written = manifest.to_json(&prefix).unwrap();
        prop_assert_eq!(Manifest::parse(&written, &prefix, dataset, Some(version)), Ok(manifest));
    }

    #[test]
    fn a_file_name_keeps_its_range(start in 0..=i64::MAX as u64, end in 0..=i64::MAX as u64, name in "[a-z_0-9]{1,12}") {
        let Some(span) = Span::new(start, end) else { return Ok(()) };
        for ranges in [Ranges::Inclusive, Ranges::HalfOpen] {
            if let Some(file) = file_name(&name, ranges, span) {
                prop_assert_eq!(parse_file_name(&file, ranges), Some((&*name, span)));
            }
        }
    }
}
