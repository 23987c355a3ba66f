//! The reference is complete, and the examples are DAGs.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tenure_dag::Code;

use super::support::{accepted, definition, read};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn reference() -> String {
    fs::read_to_string(root().join("docs/DAGS.md")).unwrap()
}

#[test]
fn every_code_is_documented() {
    let reference = reference();
    let missing: Vec<&str> =
        Code::ALL.iter().map(|code| code.as_str()).filter(|code| !reference.contains(&format!("`{code}`"))).collect();
    assert!(missing.is_empty(), "docs/DAGS.md does not explain {missing:?}");
}

/// The keys that the parser knows are those that it suggests for a key that is nearly one.
#[test]
fn every_key_of_a_job_is_documented() {
    let reference = reference();
    let (_, jobs) = reference.split_once("### Jobs").unwrap();
    let (jobs, _) = jobs.split_once("\n### ").unwrap();
    let documented = jobs.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    for key in documented {
        let text = format!("name: d\njobs: [{{ name: a, {key}: {{}}, {key}x: 1 }}]");
        let problems = read(&text).unwrap_err();
        let unknown =
            |name: &str| problems.iter().any(|problem| problem.field == name && problem.code == Code::UnknownKey);
        assert!(!unknown(key) && unknown(&format!("{key}x")), "{key}: {problems:?}");
    }
    let known = jobs.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(known, 20, "a job has 20 keys");
}

#[test]
fn the_examples_are_dags() {
    let mut found = 0;
    for entry in fs::read_dir(root().join("examples/dags")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(accepted(&text).warnings, [], "{}", path.display());
            found += 1;
        }
    }
    assert!(found >= 2, "{found} examples");
}

#[test]
fn the_texts_of_the_reference_are_right() {
    let reference = reference();
    let (_, dag) = reference.split_once("```yaml\n").unwrap();
    let (dag, rest) = dag.split_once("```").unwrap();
    assert_eq!(definition(dag).jobs.len(), 2);
    let (_, error) = rest.split_once("```json\n").unwrap();
    let (error, _) = error.split_once("```").unwrap();
    let documented: Value = serde_json::from_str(error).unwrap();
    let text = super::support::EXAMPLE.replace("{ job: new_range, output: 1 }", "{ job: new_rnge, output: 1 }");
    let problems = serde_json::to_value(read(&text).unwrap_err()).unwrap();
    assert_eq!(problems, serde_json::json!([documented]));
}
