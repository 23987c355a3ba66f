//! The file that a run is submitted from.

use std::collections::BTreeMap;

use serde::Deserializer;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenure_client::Json;
use tenure_client::run::{RunEntry, RunSubmission};
use tenure_contract::run::EntryFields;
use tenure_contract::suggest;
use tenure_contract::user::TaskSubmission;

/// JSON is read as JSON, so that its numbers keep their digits.
pub fn parse(text: &str) -> Result<RunSubmission, String> {
    let is_json = text.trim_start().starts_with('{');
    let value = if is_json { serde_json::from_str(text).map_err(|error| error.to_string())? } else { yaml(text)? };
    // serde would also take the fields one after the other in a list, without their names.
    if !value.is_object() {
        return Err("it must be a mapping with a `tasks` field".to_owned());
    }
    let run = if is_json { serde_json::from_str(text) } else { serde_json::from_value(value.clone()) };
    // Some mistakes show only in the text, such as a field that is there twice.
    run.map_err(|error| fault(&value).unwrap_or_else(|| error.to_string()))
}

fn yaml(text: &str) -> Result<Value, String> {
    // The largest run that the server takes, and no more.
    let options = serde_saphyr::options! {
        with_snippet: false,
        emit_comments: false,
        budget: serde_saphyr::budget! {
            max_depth: 128,
            max_events: 8_000_000,
            max_nodes: 4_000_000,
            max_documents: 1,
            max_total_scalar_bytes: 64 << 20,
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        // What follows the name is for programmers.
        error.without_snippet().to_string().replace(", set DuplicateKeyPolicy in Options if acceptable", "")
    })
}

/// The first mistake and its place. The tasks are read one by one, because the whole does not name the field.
fn fault(run: &Value) -> Option<String> {
    let entries = run.get("tasks").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let tasks = entries.iter().enumerate().find_map(|(at, entry)| match entry_fault(entry)? {
        (field, problem) if field.is_empty() => Some(format!("tasks[{at}]: {problem}")),
        (field, problem) => Some(format!("tasks[{at}].{field}: {problem}")),
    });
    tasks.or_else(|| {
        let (field, problem) = located::<RunSubmission, _>(run, &[]).err()?;
        Some(if field.is_empty() { problem } else { format!("{field}: {problem}") })
    })
}

fn entry_fault(entry: &Value) -> Option<(String, String)> {
    let error = serde_json::from_value::<RunEntry>(entry.clone()).err()?;
    let fields = serde_json::from_value::<BTreeMap<String, Json>>(entry.clone()).ok().map(EntryFields::of);
    let task = match fields {
        Some(Ok(fields)) => {
            let mut text = serde_json::Deserializer::from_str(&fields.task);
            located::<TaskSubmission, _>(&mut text, &["key", "depends_on"]).err()
        }
        Some(Err(fault)) => Some((fault.field, fault.message)),
        None => None,
    };
    // Only `key` and `depends_on` are left.
    task.or_else(|| {
        let error = error.to_string();
        let (field, problem) = error.split_once(": ").unwrap_or(("", &error));
        Some((field.to_owned(), problem.to_owned()))
    })
}

/// The field at fault, and what is wrong with it.
fn located<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D, more: &[&str]) -> Result<T, (String, String)>
where
    D::Error: std::fmt::Display,
{
    serde_path_to_error::deserialize(from).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        // The position is that of a text that nobody has written.
        let message = message.split(" at line ").next().unwrap_or_default();
        let message = suggest::unknown_field(message, more).unwrap_or_else(|| message.to_owned());
        (if path == "." { String::new() } else { path }, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_and_json_are_the_same_run() {
        let yaml = "run_key: k\ntasks:\n  - key: a\n    queue: q\n    operator: op\n  - key: b\n    queue: q\n    operator: op\n    depends_on: [a]\n    payload: {x: {$from: a}}\n";
        let json = r#"{"run_key":"k","tasks":[{"key":"a","queue":"q","operator":"op"},
            {"key":"b","queue":"q","operator":"op","depends_on":["a"],"payload":{"x":{"$from":"a"}}}]}"#;
        let (yaml, json) = (parse(yaml).unwrap(), parse(json).unwrap());
        assert_eq!((yaml.run_key, yaml.tasks.len()), (json.run_key, 2));
        assert_eq!(yaml.tasks[1].depends_on, ["a"]);
        let payload = |run: &[RunEntry]| run[1].task.payload.as_ref().unwrap().value();
        assert_eq!(payload(&yaml.tasks), payload(&json.tasks));
    }

    #[test]
    fn what_is_wrong_is_said_and_where() {
        let task = |more: &str| format!("tasks: [{{key: a, queue: q, operator: o{more}}}]");
        for (text, says) in [
            ("tasks: 5", "tasks: invalid type: integer `5`, expected a sequence"),
            ("{", "EOF while parsing an object at line 1 column 1"),
            ("- a", "it must be a mapping with a `tasks` field"),
            ("a: [", "at line 1"),
            ("taks: [{key: a}]", "taks: unknown field `taks`; did you mean `tasks`?"),
            (r#"{"tasks": [], "color": "red"}"#, "color: unknown field `color`"),
            (&task(", timeout_ms: long"), "tasks[0].timeout_ms: invalid type: string \"long\", expected i64"),
            (&task(", depends_on: b"), "tasks[0].depends_on: invalid type: string \"b\", expected a sequence"),
            (&task(", depend_on: [b]"), "tasks[0].depend_on: unknown field `depend_on`; did you mean `depends_on`?"),
            (&task(", retry: {jitter: full, max: 1}"), "tasks[0].retry.max: unknown field `max`"),
            ("tasks: [{key: a, queue: q}]", "tasks[0]: missing field `operator`"),
            (&task(", retry: {factor: x}"), "tasks[0].retry.factor: invalid type: string \"x\", expected f64"),
            (&task(", queue: p"), "duplicate mapping key: queue at line 1, column 41"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn fields_may_be_empty_absent_or_in_camel_case() {
        let run = "runKey: k\nlabels: {}\ntasks:\n  - {key: a, queue: q, operator: o, dependsOn: [], maxAttempts: 2, \
                   payload: {any: 1, dependOn: 2}, tags: {team: etl}, timeout_ms: null, retry: {maxBackoffMs: 1}}\n";
        let run = parse(run).unwrap();
        assert_eq!((run.run_key.as_deref(), run.tasks[0].task.max_attempts), (Some("k"), Some(2)));
    }

    #[test]
    fn a_run_of_ten_thousand_tasks_is_not_too_large() {
        let entries: String = (0..10_000)
            .map(|n| format!("  - key: t{n}\n    queue: q\n    operator: op\n    depends_on: []\n"))
            .collect();
        assert_eq!(parse(&format!("tasks:\n{entries}")).unwrap().tasks.len(), 10_000);
    }
}
