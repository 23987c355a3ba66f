//! `tenure push`

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tenure_auth::Secret;
use tenure_config::{Config, Flags};
use tenure_server::{PushTargets, PushTest, PushTestReport, PushVerdict};

use crate::access;
use crate::exit::{Exit, Stop};
use crate::output::{self, Card, clean};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Push a test envelope to a worker and explain the answer
    #[command(after_help = TEST_DETAILS)]
    Test(TestArgs),
}

const TEST_DETAILS: &str = "\
The envelope is signed like a real one and has the operator tenure.push-test and the header X-Tenure-Test: true. There \
is no task for it: the control plane acknowledges what the worker reports on it, and nothing changes. It is sent from this machine, so run the command where the \
control plane runs, with its configuration.

Exit codes:
  0  the worker would accept the task
  2  wrong flags, values or configuration, or the address is refused
  4  the worker rejects the task
  5  the worker does not answer, or asks to try again later";

#[derive(Debug, clap::Args)]
struct TestArgs {
    /// Where to push to: https://HOST/dispatch
    #[arg(value_name = "URL")]
    url: String,
    /// Name in push.secrets of the secret to send
    #[arg(long, value_name = "NAME", conflicts_with = "secret_file")]
    secret_ref: Option<String>,
    /// File with the secret to send
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Header that carries the secret; repeat it for several. Authorization sends a bearer token
    /// [default: X-Tenure-Dispatch-Secret]
    #[arg(long, value_name = "HEADER")]
    secret_header: Vec<String>,
    /// Name in push.mtls of the client certificate to use
    #[arg(long, value_name = "NAME")]
    mtls_ref: Option<String>,
    /// How long to wait for an answer
    #[arg(long, value_name = "MS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    timeout_ms: u64,
    /// Configuration file [env: TENURE_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder with the key that signs task tokens [default: ~/.tenure]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let Command::Test(args) = args.command;
    let flags = Flags { config: args.config.clone(), data: args.data.clone(), ..Flags::default() };
    let config = Config::load(flags)?;
    let dev_mode = !config.auth.enabled;
    let own_url = format!("http://{}:{}", config.server.host, config.server.port);
    let targets = access::push_targets(&config, dev_mode, Some(&own_url))?;
    let secret = secret(&args, &targets)?;
    let client = match &args.mtls_ref {
        None => &targets.client,
        Some(name) => targets.mtls.get(name).ok_or_else(|| unknown(name, "push.mtls"))?,
    };
    let keys = access::task_keys(&config)?;
    // Without an address to report to nothing could be pushed; a test can.
    let base_url = targets.base_url.clone().unwrap_or(own_url);
    let test = PushTest {
        url: &args.url,
        client,
        secret: secret.as_ref(),
        secret_headers: &args.secret_header,
        keys: &keys,
        base_url: &base_url,
        timeout: Duration::from_millis(args.timeout_ms),
    };
    let report = test.run().await.context("the envelope could not be signed")?;
    let mut told = Told::of(&report, secret.is_some(), targets.base_url.is_some());
    told.secret_headers = args.secret_header.clone();
    if args.json {
        output::json(&told)?;
    } else {
        output::line(told.card())?;
    }
    Ok(exit(&report))
}

fn unknown(name: &str, setting: &str) -> Stop {
    Stop::usage(format!("{setting} has no `{}`", clean(name))).hint("`tenure config show` lists the names")
}

fn secret(args: &TestArgs, targets: &PushTargets) -> anyhow::Result<Option<Secret>> {
    if let Some(name) = &args.secret_ref {
        let found = targets.secrets.get(name).cloned();
        return Ok(Some(found.ok_or_else(|| unknown(name, "push.secrets"))?));
    }
    let Some(path) = &args.secret_file else { return Ok(None) };
    let unreadable = |error| Stop::usage(format!("{} could not be read: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let secret = Secret::new(&text).filter(|secret| secret.reveal().bytes().all(|b| (0x20..0x7f).contains(&b)));
    Ok(Some(secret.ok_or_else(|| Stop::usage(format!("{} does not contain one line of ASCII text", path.display())))?))
}

fn exit(report: &PushTestReport) -> Exit {
    match &report.answer {
        _ if report.refused.is_some() => Exit::Usage,
        None => Exit::Unavailable,
        Some(answer) => match answer.verdict {
            PushVerdict::Accepted | PushVerdict::Duplicate => Exit::Ok,
            PushVerdict::Rejected => Exit::Refused,
            PushVerdict::Again { .. } => Exit::Unavailable,
        },
    }
}

/// What is told about a test.
#[derive(Debug, Serialize)]
struct Told {
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    addresses: Vec<String>,
    /// `allowed`, or why it is refused.
    guard: String,
    secret_sent: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    secret_headers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dispatch_id: Option<String>,
    request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    /// `accepted`, `duplicate`, `again`, `rejected`, `no_answer` or `refused`.
    outcome: &'static str,
    meaning: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    hints: Vec<String>,
}

impl Told {
    fn of(report: &PushTestReport, secret_sent: bool, has_base_url: bool) -> Self {
        let (outcome, meaning) = meaning(report);
        let answer = report.answer.as_ref();
        Self {
            target: report.target.clone(),
            addresses: report.addresses.iter().map(ToString::to_string).collect(),
            guard: report.refused.as_ref().map_or_else(|| "allowed".to_owned(), ToString::to_string),
            secret_sent: secret_sent && report.refused.is_none() && report.target.is_some(),
            secret_headers: Vec::new(),
            dispatch_id: Some(report.dispatch_id.clone()).filter(|id| !id.is_empty()),
            request_id: report.request_id.clone(),
            status: answer.map(|answer| answer.status),
            outcome,
            meaning,
            took_ms: answer.map(|answer| u64::try_from(answer.took.as_millis()).unwrap_or(u64::MAX)),
            body: answer.map(|answer| answer.body.clone()).filter(|body| !body.is_empty()),
            hints: hints(report, secret_sent, has_base_url),
        }
    }

    fn secret(&self) -> String {
        match (self.secret_sent, self.secret_headers.as_slice()) {
            (false, _) => "none sent".to_owned(),
            (true, []) => "sent as X-Tenure-Dispatch-Secret".to_owned(),
            (true, names) => format!("sent as {}", clean(&names.join(", "))),
        }
    }

    fn card(&self) -> String {
        let mut card = Card::default();
        card.row_if("target", self.target.as_deref().map(clean))
            .row_if("resolves to", Some(self.addresses.join(", ")).filter(|addresses| !addresses.is_empty()))
            .row("guard", clean(&self.guard))
            .row("secret", self.secret())
            .row_if("dispatch id", self.dispatch_id.clone())
            .row("request id", self.request_id.clone())
            .row_if("status", self.status.map(|status| status.to_string()))
            .row_if("took", self.took_ms.map(|ms| format!("{ms} ms")))
            .row_if("answer", self.body.as_deref().map(|body| output::shortened(body, 200)))
            .row("outcome", self.outcome)
            .row("meaning", clean(&self.meaning));
        let hints: String = self.hints.iter().map(|hint| format!("\n- {}", clean(hint))).collect();
        card.render() + &hints
    }
}

fn meaning(report: &PushTestReport) -> (&'static str, String) {
    if report.refused.is_some() {
        return ("refused", "nothing was sent, and no queue can use this address".to_owned());
    }
    let Some(answer) = &report.answer else {
        let why = report.failure.clone().unwrap_or_default();
        let meaning = format!("{why}; a task would be pushed again after 1 s, 2 s and so on up to 30 s");
        return ("no_answer", meaning);
    };
    match answer.verdict {
        PushVerdict::Accepted => {
            ("accepted", "the worker accepted the task and must call started within start_timeout_ms".to_owned())
        }
        PushVerdict::Duplicate => ("duplicate", "the worker already had this dispatch: counts as accepted".to_owned()),
        PushVerdict::Again { after_ms: Some(ms) } => {
            ("again", format!("the worker asks for the task to be pushed again in {} s", (ms + 999) / 1000))
        }
        PushVerdict::Again { after_ms: None } => {
            ("again", "a task would be pushed again after 1 s, 2 s and so on up to 30 s".to_owned())
        }
        PushVerdict::Rejected => {
            ("rejected", "the attempt would fail with DISPATCH_REJECTED and not be retried".to_owned())
        }
    }
}

fn hints(report: &PushTestReport, secret_sent: bool, has_base_url: bool) -> Vec<String> {
    let mut hints = Vec::new();
    if !has_base_url {
        hints.push("callback.base_url is not set: without it no queue can push its tasks".to_owned());
    }
    let Some(answer) = &report.answer else { return hints };
    match answer.status {
        401 | 403 if secret_sent => hints.push("the worker expects a different secret".to_owned()),
        401 | 403 => hints.push("the worker may expect a secret: use --secret-ref or --secret-file".to_owned()),
        404 => hints.push("the path may be wrong: workers usually listen at /dispatch".to_owned()),
        405 => hints.push("the worker does not accept POST at this path".to_owned()),
        415 => hints.push("the worker does not accept application/json".to_owned()),
        300..=399 if answer.location => {
            hints.push("redirects are not followed: use the address they lead to".to_owned())
        }
        _ => {}
    }
    if answer.truncated {
        hints.push("the answer is larger than 64 KiB; the rest was not read".to_owned());
    }
    if answer.content_type.as_deref().is_some_and(|media| media.starts_with("text/html")) {
        hints.push("the answer is a web page: a proxy or another service may have answered".to_owned());
    }
    if report.target.as_deref().is_some_and(|target| target.starts_with("http://")) {
        hints.push("without TLS the task token and the secret can be read in transit".to_owned());
    }
    hints
}
