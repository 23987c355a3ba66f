use std::collections::BTreeMap;

use anyhow::Context;
use tenure_client::{Client, Json};
use tenure_contract::user::{
    BatchItem, BatchSubmission, RetryPolicy, SandboxCommand, SandboxRuntime, Submitted, TaskRuntime, TaskSubmission,
};

use super::super::connect::text_or_file;
use super::watch;
use crate::exit::{CODES, Exit, Stop};
use crate::{output, times};

#[derive(Debug, clap::Args)]
#[command(after_help = CODES)]
pub struct Args {
    /// Queue to put the task into
    #[arg(required_unless_present = "file")]
    queue: Option<String>,
    /// Operator that runs it
    #[arg(required_unless_present = "file")]
    operator: Option<String>,
    /// Payload: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// Priority from 0 (first) to 9 (last) [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..=9))]
    priority: Option<i64>,
    /// Delay before it may start
    #[arg(long, value_name = "TIME", value_parser = times::millis, conflicts_with = "run_at")]
    delay: Option<i64>,
    /// Time at which it may start
    #[arg(long, value_name = "WHEN", value_parser = times::point)]
    run_at: Option<String>,
    /// Idempotency key: submitting the same task again returns the existing one
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Maximum number of attempts [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    max_attempts: Option<i64>,
    /// Wait before the second attempt; it doubles with each further one, and its jitter is full [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = times::millis)]
    backoff: Option<i64>,
    /// Longest wait between attempts [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = times::millis)]
    backoff_max: Option<i64>,
    /// How long a worker may be silent before the task goes to another [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = times::seconds)]
    lease_ttl: Option<i64>,
    /// How long one attempt may take [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = times::some_millis)]
    timeout: Option<i64>,
    /// Tag; repeatable
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = tag)]
    tags: Vec<(String, String)>,
    /// Run it in a sandbox, in a queue whose push URL is sandbox: the `runtime` of the API as JSON, or @FILE
    #[arg(long, value_name = "JSON", conflicts_with = "sandbox_command")]
    runtime: Option<String>,
    /// Command line to run in a sandbox, in a queue whose push URL is sandbox:
    #[arg(long, value_name = "LINE")]
    sandbox_command: Option<String>,
    /// Image of the sandbox
    #[arg(long, value_name = "NAME", requires = "sandbox_command")]
    sandbox_image: Option<String>,
    /// Template of the sandbox
    #[arg(long, value_name = "NAME", requires = "sandbox_command")]
    sandbox_template: Option<String>,
    /// Memory of the sandbox in MiB
    #[arg(long, value_name = "MIB", requires = "sandbox_command")]
    sandbox_memory: Option<u64>,
    /// Tenant; needs a key that may act for it
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Workspace [default: default]
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Submit many tasks, all or none: a file with a JSON array of tasks as in the API, or -
    #[arg(long, value_name = "FILE", conflicts_with_all = ["queue", "operator", "payload", "key"])]
    file: Option<String>,
    /// Wait for the task to end; the exit code reports the outcome
    #[arg(long)]
    wait: bool,
}

fn tag(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as team=etl")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub async fn run(client: &Client, mut args: Args, json: bool) -> anyhow::Result<Exit> {
    let (wait, file) = (args.wait, args.file.take());
    if let Some(file) = file {
        return batch(client, &file, wait, json).await;
    }
    let submitted = client.submit(&submission(args)?).await.context("the task was not submitted")?;
    if wait {
        if !json {
            eprintln!("{}", sentence(&submitted));
        }
        return watch::until_end(client, &submitted.task_id, json).await;
    }
    if json {
        output::json(&submitted)?
    } else {
        output::line(sentence(&submitted))?
    }
    Ok(Exit::Ok)
}

fn sentence(submitted: &Submitted) -> String {
    let Submitted { task_id, state, created } = submitted;
    match created {
        true => format!("Submitted task {task_id}: {state}"),
        false => format!("Task {task_id} already exists with this key: {state}"),
    }
}

fn submission(args: Args) -> anyhow::Result<TaskSubmission> {
    let payload = args.payload.as_deref().map(payload).transpose()?;
    let tags: BTreeMap<_, _> = args.tags.into_iter().collect();
    let retry =
        RetryPolicy { initial_backoff_ms: args.backoff, max_backoff_ms: args.backoff_max, ..RetryPolicy::default() };
    let runtime = match (args.runtime.as_deref(), args.sandbox_command) {
        (Some(text), _) => Some(runtime(text)?),
        (None, Some(line)) => Some(TaskRuntime {
            sandbox: Some(SandboxRuntime {
                image: args.sandbox_image,
                template: args.sandbox_template,
                memory_mb: args.sandbox_memory,
                command: SandboxCommand::Line(line),
                ..SandboxRuntime::default()
            }),
        }),
        (None, None) => None,
    };
    Ok(TaskSubmission {
        runtime,
        queue: args.queue.unwrap_or_default(),
        operator: args.operator.unwrap_or_default(),
        payload,
        priority: args.priority,
        delay_ms: args.delay,
        run_at: args.run_at,
        idempotency_key: args.key,
        max_attempts: args.max_attempts,
        retry: Some(retry).filter(|retry| *retry != RetryPolicy::default()),
        lease_ttl_seconds: args.lease_ttl,
        timeout_ms: args.timeout,
        tags: (!tags.is_empty()).then_some(tags),
        tenant: args.tenant,
        workspace: args.workspace,
        ..TaskSubmission::default()
    })
}

fn runtime(argument: &str) -> anyhow::Result<TaskRuntime> {
    let text = text_or_file(argument)?;
    serde_json::from_str(&text).map_err(|error| {
        Stop::usage(format!("--runtime is not a runtime: {error}"))
            .hint("such as --runtime '{\"sandbox\":{\"image\":\"alpine\",\"command\":\"echo 1\"}}'")
            .into()
    })
}

fn payload(argument: &str) -> anyhow::Result<Json> {
    let text = text_or_file(argument)?;
    Json::parse(text.trim()).map_err(|error| {
        Stop::usage(format!("--payload is not JSON: {error}"))
            .hint(
                "quote it for the shell: --payload '{\"day\":\"2025-01-15\"}'; a string needs its own quotes: '\"text\"'",
            )
            .into()
    })
}

async fn batch(client: &Client, file: &str, wait: bool, json: bool) -> anyhow::Result<Exit> {
    let text = match file {
        "-" => text_or_file("-")?,
        path => text_or_file(&format!("@{path}"))?,
    };
    let wrong = |error: serde_json::Error| Stop::usage(format!("{file} is not a JSON array of tasks: {error}"));
    // An array, or the body of the API with one in it.
    let tasks = match text.trim_start().starts_with('{') {
        true => serde_json::from_str::<BatchSubmission>(&text).map_err(wrong)?.tasks,
        false => serde_json::from_str::<Vec<TaskSubmission>>(&text).map_err(wrong)?,
    };
    let count = tasks.len();
    let submitted = client.submit_batch(tasks).await.context("no task was submitted")?;
    if wait {
        return wait_for_all(client, &submitted.tasks, json).await;
    }
    if json {
        output::json(&submitted)?;
    } else {
        let there = count - submitted.created.min(count);
        let rest = if there > 0 { format!("; {there} already existed") } else { String::new() };
        output::line(format!("Submitted {} tasks{rest}", submitted.created))?;
    }
    Ok(Exit::Ok)
}

/// One failed task makes it a failure, else one canceled task a cancellation.
async fn wait_for_all(client: &Client, tasks: &[BatchItem], json: bool) -> anyhow::Result<Exit> {
    let mut all = Exit::Ok;
    for task in tasks {
        let exit = watch::until_end(client, &task.task_id, json).await?;
        if all != Exit::TaskFailed && exit != Exit::Ok {
            all = exit;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_must_be_json() {
        assert_eq!(payload(" {\"a\": 1}\n").unwrap().as_str(), "{\"a\": 1}");
        let message = payload("{day:1}").unwrap_err().to_string();
        assert!(message.starts_with("--payload is not JSON: "), "{message}");
        assert!(payload("@/nowhere").unwrap_err().to_string().contains("could not be read"));
    }

    #[test]
    fn a_runtime_is_that_of_the_api() {
        let found = runtime(r#"{"sandbox":{"command":["a","b"]}}"#).unwrap();
        assert_eq!(found.sandbox.unwrap().command, SandboxCommand::Words(vec!["a".into(), "b".into()]));
        let message = runtime(r#"{"sandbox":{"command":"a","memory":1}}"#).unwrap_err().to_string();
        assert!(message.starts_with("--runtime is not a runtime: unknown field `memory`"), "{message}");
    }

    #[test]
    fn tags_have_a_name_and_a_value() {
        assert_eq!(tag("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(tag("a").is_err());
    }
}
