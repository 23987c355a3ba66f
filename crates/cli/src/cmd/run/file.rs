//! The file that a run is submitted from.
//!
//! The server ignores fields that it does not know, as an API has to. In a file one is a slip of the pen, and a task
//! whose `depends_on` is misspelt would not wait: so it is refused here.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tenure_client::run::{RunEntry, RunSubmission};
use tenure_contract::run::snake;
use tenure_contract::user::TaskSubmission;

/// Objects inside of a task whose fields have names of ours.
const NESTED: [&str; 2] = ["retry", "resources"];
/// For suggestions.
const RUN: [&str; 6] = ["run_key", "tenant", "workspace", "labels", "deadline", "tasks"];
const TASK: [&str; 14] = [
    "key",
    "queue",
    "operator",
    "payload",
    "depends_on",
    "priority",
    "delay_ms",
    "run_at",
    "max_attempts",
    "lease_ttl_seconds",
    "timeout_ms",
    "deadline",
    "retry",
    "tags",
];

/// JSON is read as JSON, so that its numbers keep their digits.
pub fn parse(text: &str) -> Result<RunSubmission, String> {
    let is_json = text.trim_start().starts_with('{');
    let value = if is_json { serde_json::from_str(text).map_err(|error| error.to_string())? } else { yaml(text)? };
    // serde would also take the fields one after the other in a list, without their names.
    let Value::Object(fields) = &value else {
        return Err("it must be a mapping with a `tasks` field".to_owned());
    };
    let run = if is_json { serde_json::from_str(text) } else { serde_json::from_value(value.clone()) };
    let run: RunSubmission = run.map_err(|error| match fault(&value) {
        // What only the text shows, such as a field that is there twice.
        problem if problem.is_empty() => error.to_string(),
        problem => problem,
    })?;
    let known = |value: &RunSubmission| object(serde_json::to_value(value));
    if let Some(name) = stranger(fields, &known(&run)) {
        return Err(format!("`{name}` is not a field of a run{}", suggestion(name, &RUN)));
    }
    let entries = fields.get("tasks").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (at, (entry, read)) in entries.iter().zip(&run.tasks).enumerate() {
        strangers_in(entry, read).map_err(|problem| format!("tasks[{at}]{problem}"))?;
    }
    Ok(run)
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

/// What does not fit, and where: field by field, since the whole does not say.
fn fault(run: &Value) -> String {
    let entries = run.get("tasks").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (at, entry) in entries.iter().enumerate() {
        if serde_json::from_value::<RunEntry>(entry.clone()).is_ok() {
            continue;
        }
        let part = located::<TaskSubmission>(entry).err();
        let whole = || located::<RunEntry>(entry).err().unwrap_or_default();
        let problem = part.filter(|problem| !problem.starts_with(':')).unwrap_or_else(whole);
        return match problem.strip_prefix(':') {
            Some(problem) => format!("tasks[{at}]:{problem}"),
            None => format!("tasks[{at}].{problem}"),
        };
    }
    let problem = located::<RunSubmission>(run).err().unwrap_or_default();
    problem.trim_start_matches([':', ' ']).to_owned()
}

/// `FIELD: PROBLEM`, or `: PROBLEM`.
fn located<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let message = error.inner().to_string();
        // Of a text that nobody has written.
        let message = message.split(" at line ").next().unwrap_or_default();
        match error.path().to_string().as_str() {
            "." => match message.split_once(": ") {
                Some((field, problem)) if TASK.contains(&field) => format!("{field}: {problem}"),
                _ => format!(": {message}"),
            },
            path => format!("{path}: {message}"),
        }
    })
}

fn strangers_in(entry: &Value, read: &RunEntry) -> Result<(), String> {
    let (Value::Object(entry), known) = (entry, object(serde_json::to_value(read))) else { return Ok(()) };
    if let Some(name) = stranger(entry, &known) {
        return Err(format!(": `{name}` is not a field of a task{}", suggestion(name, &TASK)));
    }
    for nested in NESTED {
        if let (Some(Value::Object(given)), Some(Value::Object(known))) = (entry.get(nested), known.get(nested))
            && let Some(name) = stranger(given, known)
        {
            return Err(format!(".{nested}: `{name}` is not one of its fields"));
        }
    }
    Ok(())
}

/// A field that was given and is not in what was understood. What is empty or null may be missing there.
fn stranger<'a>(given: &'a Map<String, Value>, known: &Map<String, Value>) -> Option<&'a str> {
    let says_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    let is_stranger = |(name, value): &(&'a String, &Value)| !says_nothing(value) && !known.contains_key(&snake(name));
    given.iter().find(is_stranger).map(|(name, _)| name.as_str())
}

fn object(value: serde_json::Result<Value>) -> Map<String, Value> {
    match value {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

fn suggestion(name: &str, known: &[&str]) -> String {
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(&snake(name), known), known));
    match near.min().filter(|(distance, _)| *distance <= 2) {
        Some((_, known)) => format!("; did you mean `{known}`?"),
        None => String::new(),
    }
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
            ("taks: [{key: a}]", "`taks` is not a field of a run; did you mean `tasks`?"),
            (r#"{"tasks": [], "color": "red"}"#, "`color` is not a field of a run"),
            (&task(", timeout_ms: long"), "tasks[0].timeout_ms: invalid type: string \"long\", expected i64"),
            (&task(", depends_on: b"), "tasks[0].depends_on: invalid type: string \"b\", expected a sequence"),
            (&task(", depend_on: [b]"), "tasks[0]: `depend_on` is not a field of a task; did you mean `depends_on`?"),
            (&task(", retry: {jitter: full, max: 1}"), "tasks[0].retry: `max` is not one of its fields"),
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
