//! `tenure dag` and `tenure dataset` against a real server.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::commands::kit::{Site, code};

fn chain(config: u32) -> String {
    format!(
        "name: chain
jobs:
  - {{ name: import, activation: source, runtime: worker, operator: import, outputs: 1, source: {{ kind: manual }} }}
  - name: decode
    activation: reactive
    runtime: worker
    operator: decode
    outputs: 1
    execution_strategy: PerPartition
    update_strategy: replace
    inputs: [{{ from: {{ job: import, output: 0 }}, alias: raw }}]
    config: {{ n: {config} }}
  - name: count
    activation: reactive
    runtime: worker
    operator: count
    outputs: 0
    execution_strategy: PerPartition
    inputs: [{{ from: {{ dataset: decoded }} }}]
publish:
  decoded: {{ from: {{ job: decode, output: 0 }} }}
"
    )
}

fn write(site: &Site, name: &str, text: &str) -> String {
    let file = site.home.path().join(name);
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[tokio::test]
async fn a_dag_is_planned_applied_shown_and_listed() {
    let site = Site::new().await;
    assert_eq!(site.ok(&["dag", "list"]).await, "No DAGs. Deploy one with `tenure dag apply`.\n");
    let file = write(&site, "chain.yaml", &chain(0));
    let plan = site.ok(&["dag", "plan", &file]).await;
    for part in ["version 1 would be Active (nothing is active yet)", "+ decode  new", "Nothing was written."] {
        assert!(plan.contains(part), "no {part} in\n{plan}");
    }
    assert_eq!(site.ok(&["dag", "list"]).await, "No DAGs. Deploy one with `tenure dag apply`.\n");
    assert_eq!(site.ok(&["dag", "apply", &file]).await, "Version 1 of chain is active.\n");
    assert_eq!(site.ok(&["dag", "apply", &file]).await, "Version 1 of chain is active; no job has changed.\n");
    assert!(site.ok(&["dag", "plan", &file]).await.ends_with("Nothing would change.\n"));
    let shown = site.ok(&["dag", "show", "chain"]).await;
    for part in [
        "DAG chain",
        "version  1 Active",
        "●  import  manual worker/import",
        "●  decode  PerPartition worker/decode",
        "→ decoded",
        "●  count",
    ] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
    assert!(!shown.contains('\x1b'), "colours off a terminal: {shown:?}");
    assert_eq!(site.ok(&["dag", "show", "chain", "--yaml"]).await, chain(0));
    assert_eq!(site.json(&["dag", "show", "chain"]).await["yaml"], json!(chain(0)));
    let picture = site.home.path().join("chain.svg");
    site.ok(&["dag", "show", "chain", "--svg", &picture.display().to_string()]).await;
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("decode") && svg.matches("marker-end").count() == 2, "{svg}");
    let list = site.ok(&["dag", "list"]).await;
    assert!(list.starts_with("DAG ") && list.contains("chain") && list.contains("Active"), "{list}");
    let missing = site.run(&["dag", "show", "chian"]).await;
    assert!(code(&missing) == 3 && missing.stderr.contains("did you mean `chain`?"), "{missing:?}");
}

#[tokio::test]
async fn versions_are_switched_watched_and_rolled_back() {
    let site = Site::new().await;
    let first = write(&site, "first.yaml", &chain(0));
    site.ok(&["dag", "apply", &first]).await;
    let second = write(&site, "second.yaml", &chain(1));
    let plan = site.ok(&["dag", "plan", &second]).await;
    for part in ["~ decode  changed, rebuilt", "~ count   rebuilt, because it reads", "= import  kept, with"] {
        assert!(plan.contains(part), "no {part} in\n{plan}");
    }
    let applied = site.ok(&["dag", "apply", &second, "--manual-cutover", "--wait"]).await;
    assert!(applied.contains("version 2 Ready"), "{applied}");
    let cut = site.ok(&["dag", "cutover", "chain", "2"]).await;
    assert!(cut.starts_with("Version 2 of chain is active.") && cut.contains("1 dataset with another"), "{cut}");
    let watched = site.ok(&["dag", "watch", "chain"]).await;
    assert!(watched.contains("version 2 Active"), "{watched}");
    assert_eq!(site.json(&["dag", "watch", "chain", "--version", "2"]).await["state"], "Active");
    let replaced = site.run(&["dag", "watch", "chain", "--version", "1"]).await;
    assert!(code(&replaced) == 11 && replaced.stderr.contains("version 1 is Superseded"), "{replaced:?}");
    let refused = site.run(&["dag", "rollback", "chain"]).await;
    assert!(code(&refused) == 2 && refused.stderr.contains("--yes"), "asks first: {refused:?}");
    let back = site.ok(&["dag", "rollback", "chain", "--yes"]).await;
    assert!(back.starts_with("Version 1 of chain is active."), "{back}");
    let versions = site.ok(&["dag", "versions", "chain"]).await;
    assert!(versions.contains("RolledBack") && versions.contains("Active"), "{versions}");
    assert_eq!(site.json(&["dag", "versions", "chain"]).await["items"][0]["version"], 2);
    let none = site.run(&["dag", "rollback", "chain", "--yes"]).await;
    assert!(code(&none) == 4 && none.stderr.contains("no_previous_version"), "{none:?}");
    let unknown = site.run(&["dag", "cutover", "chain", "9"]).await;
    assert!(code(&unknown) == 3 && unknown.stderr.contains("version_not_found"), "{unknown:?}");
}

#[tokio::test]
async fn errors_of_a_dag_are_shown_where_they_are() {
    let site = Site::new().await;
    let wrong = chain(0).replace("job: import, output: 0", "job: imprt, output: 0");
    let file = write(&site, "wrong.yaml", &wrong);
    for command in ["apply", "plan"] {
        let output = site.run(&["dag", command, &file]).await;
        assert_eq!(code(&output), 2, "{output:?}");
        let line = wrong.lines().nth(10).unwrap();
        let column = line.find("imprt").unwrap();
        let expected = format!(
            "error: {file}:11:{}: job decode, inputs[0].from.job: no job named 'imprt'; did you mean 'import'? \
             (unknown_job)\n   |\n11 | {line}\n   | {}^\n",
            column + 1,
            " ".repeat(column)
        );
        assert!(output.stderr.starts_with(&expected), "{}\ninstead of\n{expected}", output.stderr);
        assert!(output.stderr.contains("has 1 error: nothing was deployed"), "{}", output.stderr);
        let json = site.run(&["dag", command, &file, "--json"]).await;
        let value: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!((code(&json), &value["errors"][0]["code"]), (2, &json!("unknown_job")));
    }
    let warned = chain(0).replace("    execution_strategy: PerPartition\n    update", "    update");
    let mut command = site.command(&["dag", "apply", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(warned.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.starts_with("warning: standard input:"), "{said}");
    let missing = site.run(&["dag", "apply", "nowhere.yaml"]).await;
    assert!(code(&missing) == 2 && missing.stderr.contains("nowhere.yaml could not be read"), "{missing:?}");
}

#[tokio::test]
async fn sources_are_triggered_and_datasets_looked_at() {
    let site = Site::new().await;
    assert!(site.ok(&["dataset", "list"]).await.starts_with("No datasets."));
    let file = write(&site, "chain.yaml", &chain(0));
    site.ok(&["dag", "apply", &file]).await;
    let trigger = ["dag", "trigger", "chain", "import", "--request-id", "r-1", "--input", "{\"from\":7}"];
    let fired = site.ok(&trigger).await;
    assert!(fired.starts_with("Task ") && fired.ends_with(" created.\n"), "{fired}");
    assert!(site.ok(&trigger).await.ends_with(" was created before by the same request.\n"));
    let shown = site.ok(&["dag", "show", "chain"]).await;
    assert!(shown.contains("1 queued"), "{shown}");
    let bad = site.run(&["dag", "trigger", "chain", "import", "--input", "{"]).await;
    assert!(code(&bad) == 2 && bad.stderr.contains("--input is not JSON"), "{bad:?}");
    let reactive = site.run(&["dag", "trigger", "chain", "decode"]).await;
    assert!(code(&reactive) == 4 && reactive.stderr.contains("not_a_manual_source"), "{reactive:?}");

    let list = site.ok(&["dataset", "list"]).await;
    assert!(list.contains("decoded") && list.contains("chain/decode:0") && list.lines().count() == 2, "{list}");
    assert_eq!(site.ok(&["dataset", "list", "--all", "--dag", "chain"]).await.lines().count(), 3);
    let shown = site.ok(&["dataset", "show", "decoded"]).await;
    assert!(shown.starts_with("Dataset decoded\n") && shown.contains("chain/decode, output 0"), "{shown}");
    let lineage = site.ok(&["dataset", "lineage", "decoded"]).await;
    assert_eq!(lineage, "made from\ndecoded\n└─ chain/import:0\n\nread by\ndecoded\n└─ chain/count  without outputs\n");
    let invalidate = ["dataset", "invalidate", "decoded", "--partition", "1-5", "--reason", "reorg"];
    let said = site.ok(&invalidate).await;
    assert!(said.starts_with("1 job runs again. Generation 1, invalidation "), "{said}");
    let rows = site.json(&["dataset", "invalidate", "decoded", "--rows", "{\"n\":{\"gte\":1}}"]).await;
    assert_eq!(rows["dependents"], 1);
    let wrong = site.run(&["dataset", "invalidate", "decoded", "--partition", "a b"]).await;
    assert!(code(&wrong) == 2 && wrong.stderr.contains("invalid_event"), "{wrong:?}");
}
