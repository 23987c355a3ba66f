//! A job.

use std::sync::Arc;

use tenure_core::dag::definition::{
    self, Activation, CONFIG_BYTES, ExecutionStrategy, IdleTimeout, JobDefinition, PORTS, Runtime, Scaling, Source,
    UpdateStrategy,
};

use super::defaults::Defaults;
use super::fields::{Fields, IDENTIFIER_RULE, NAME_RULE, is_identifier};
use super::input::{self, FromAt};
use super::{Context, runtime, source, structure};
use crate::problem::{Code, Place, quoted};
use crate::yaml::{At, Node, Scalar};

const KEYS: [&str; 20] = [
    "name",
    "activation",
    "runtime",
    "operator",
    "outputs",
    "inputs",
    "execution_strategy",
    "update_strategy",
    "unique_key",
    "source",
    "bootstrap",
    "idle_timeout",
    "scaling",
    "secrets",
    "timeout_seconds",
    "max_attempts",
    "heartbeat_timeout_seconds",
    "priority",
    "config",
    "udf",
];
const UNIQUE_KEY_COLUMNS: usize = 32;
/// They differ between attempts, so a repeated attempt would add its rows again.
const UNSTABLE: [&str; 4] = ["task_id", "attempt", "lease_token", "fence"];

/// A job, as far as it could be read.
pub(crate) struct JobDraft {
    /// Parts that could not be read have some value; their errors are reported.
    pub definition: JobDefinition,
    pub at: At,
    pub name_at: At,
    pub place: Place,
    /// Where each input names its upstream, and its condition.
    pub froms: Vec<FromAt>,
    pub conditions: Vec<Option<(At, Place)>>,
    /// Whether the number of outputs could be read.
    pub outputs_known: bool,
    pub runtime_known: bool,
    pub unique_key_at: At,
    pub webhook_at: At,
}

pub(super) fn read(node: &Node, index: usize, defaults: &Defaults, context: Context<'_>) -> Option<JobDraft> {
    let place = structure::place_of_job(node, index);
    let fields = Fields::of(node, place, context.report, &KEYS)?;
    let name = name(&fields);
    let runtime = runtime::runtime(&fields, context);
    let operator = runtime::operator(&fields, runtime.as_ref(), context);
    let udf = runtime::udf(&fields, runtime.as_ref(), &operator, context);
    let outputs = fields.required("outputs").and_then(|_| fields.number("outputs", 0..=ports()));
    let (activation, drafts) = activation(&fields);
    let update_strategy = update_strategy(&fields, activation.as_ref(), outputs);
    let unique_key = unique_key(&fields, update_strategy);
    let always_on = matches!(activation, Some(Activation::Source { source: Source::AlwaysOn, .. }));
    let times = defaults.overridden(&fields);
    if always_on {
        no_limits(&fields);
    }
    let (runtime_known, activation_known) = (runtime.is_some(), activation.is_some());
    let runtime = runtime.unwrap_or(Runtime::Dispatcher);
    let timeout_seconds = times.timeout_seconds.unwrap_or(runtime.timeout_seconds_default());
    let scaling = scaling(&fields, &runtime);
    let secrets = runtime::secrets(&fields, runtime_known.then_some(&runtime));
    let config = config(&fields);
    let definition = JobDefinition {
        name: name?.into(),
        activation: activation.unwrap_or(Activation::Source { source: Source::Manual, reset_outputs: false }),
        operator,
        outputs: outputs.unwrap_or_default(),
        update_strategy: update_strategy.unwrap_or_default(),
        unique_key,
        priority: times.priority,
        scaling,
        secrets,
        timeout_seconds: (!always_on).then_some(timeout_seconds),
        max_attempts: (!always_on).then_some(times.max_attempts),
        heartbeat_timeout_seconds: times.heartbeat_timeout_seconds,
        config,
        udf,
        runtime,
    };
    if runtime_known && activation_known && outputs.is_some() && definition.runtime == Runtime::Dispatcher {
        runtime::builtin(&fields, &definition);
    }
    let at_of = |key: &str| fields.get(key).map_or(node.at, |value| value.at);
    let webhook = fields.get("source").and_then(|source| source.entry("webhook_path"));
    let (froms, conditions) = drafts;
    Some(JobDraft {
        definition,
        at: node.at,
        name_at: at_of("name"),
        froms,
        conditions,
        outputs_known: outputs.is_some(),
        runtime_known,
        unique_key_at: at_of("unique_key"),
        webhook_at: webhook.map_or(node.at, |node| node.at),
        place: fields.place,
    })
}

fn ports() -> u32 {
    u32::try_from(PORTS).unwrap_or(u32::MAX)
}

fn name<'n>(fields: &Fields<'n, '_>) -> Option<&'n str> {
    let name = fields.required_text("name")?;
    if !definition::valid_name(name) {
        fields.error("name", Code::InvalidName, format!("'{}' is not a valid name: {NAME_RULE}", quoted(name)));
    }
    Some(name)
}

type Places = (Vec<FromAt>, Vec<Option<(At, Place)>>);

fn activation(fields: &Fields<'_, '_>) -> (Option<Activation>, Places) {
    fields.required("activation");
    match fields.text("activation") {
        Some("source") => {
            let why = "belongs to reactive jobs; this one is a source";
            fields.forbid(&["inputs", "execution_strategy", "idle_timeout"], why);
            let reset_outputs = reset_outputs(fields);
            let source = source::read(fields);
            (source.map(|source| Activation::Source { source, reset_outputs }), (Vec::new(), Vec::new()))
        }
        Some("reactive") => {
            fields.forbid(&["source", "bootstrap"], "belongs to sources; this job is reactive");
            let drafts = input::read(fields);
            let execution = execution(fields);
            let idle_timeout = idle_timeout(fields);
            let mut inputs = Vec::new();
            let mut places = (Vec::new(), Vec::new());
            for draft in drafts {
                inputs.push(draft.input);
                places.0.push(draft.from);
                places.1.push(draft.condition);
            }
            (Some(Activation::Reactive { inputs, execution, idle_timeout }), places)
        }
        Some("manual") => {
            let message = "'manual' is reserved: write `activation: source` with `source: {kind: manual}`";
            fields.error("activation", Code::ReservedKey, message);
            (None, Places::default())
        }
        Some(other) => {
            let meant = fields.report.meant(other, ["source", "reactive"]);
            let message = format!("'{}' is not one of: source, reactive{meant}", quoted(other));
            fields.error("activation", Code::InvalidValue, message);
            (None, Places::default())
        }
        None => (None, Places::default()),
    }
}

fn reset_outputs(fields: &Fields<'_, '_>) -> bool {
    let bootstrap = fields.map("bootstrap", &["reset_outputs"]);
    bootstrap.and_then(|bootstrap| bootstrap.boolean("reset_outputs")).unwrap_or(false)
}

fn execution(fields: &Fields<'_, '_>) -> ExecutionStrategy {
    if fields.get("execution_strategy").is_none() {
        let message = "'execution_strategy' is not set: PerUpdate is used; write it out";
        fields.warning("execution_strategy", Code::DefaultStrategy, message);
    } else if fields.text("execution_strategy") == Some("Bulk") {
        let message = "Bulk is not supported: use PerUpdate or PerPartition";
        fields.error("execution_strategy", Code::BulkStrategy, message);
        return ExecutionStrategy::PerUpdate;
    }
    let words = [("PerUpdate", ExecutionStrategy::PerUpdate), ("PerPartition", ExecutionStrategy::PerPartition)];
    fields.word("execution_strategy", &words).unwrap_or(ExecutionStrategy::PerUpdate)
}

fn update_strategy(
    fields: &Fields<'_, '_>,
    activation: Option<&Activation>,
    outputs: Option<u32>,
) -> Option<UpdateStrategy> {
    let reactive = matches!(activation, Some(Activation::Reactive { .. }));
    if fields.get("update_strategy").is_none() {
        if reactive && outputs.is_some_and(|outputs| outputs > 0) {
            fields.missing(
                "update_strategy",
                "'update_strategy' is required of a reactive job with outputs: append or replace",
            );
        }
        return None;
    }
    fields.word("update_strategy", &[("append", UpdateStrategy::Append), ("replace", UpdateStrategy::Replace)])
}

fn unique_key(fields: &Fields<'_, '_>, strategy: Option<UpdateStrategy>) -> Vec<Arc<str>> {
    let present = fields.get("unique_key").is_some();
    let columns = fields.names("unique_key", UNIQUE_KEY_COLUMNS, is_identifier, IDENTIFIER_RULE);
    if strategy == Some(UpdateStrategy::Append) && (!present || columns.as_ref().is_some_and(Vec::is_empty)) {
        let message = "append needs 'unique_key': columns that follow from input data and config alone";
        fields.error("unique_key", Code::MissingUniqueKey, message);
    }
    let columns = columns.unwrap_or_default();
    if let Some(column) = columns.iter().find(|column| UNSTABLE.contains(&&***column)) {
        let message =
            format!("'{column}' differs between attempts: use columns that follow from input data and config");
        fields.error("unique_key", Code::UnstableUniqueKey, message);
    }
    columns
}

fn no_limits(fields: &Fields<'_, '_>) {
    for key in ["timeout_seconds", "max_attempts"] {
        if fields.get(key).is_some() {
            fields.warning(key, Code::NoEffect, format!("'{key}' has no effect on an always_on source"));
        }
    }
}

fn scaling(fields: &Fields<'_, '_>, runtime: &Runtime) -> Scaling {
    let Some(scaling) = fields.map("scaling", &["max_concurrency", "worker_pool"]) else { return Scaling::default() };
    let worker_pool = scaling.text("worker_pool");
    if let Some(pool) = worker_pool {
        if !is_pool(pool) {
            let message = "a pool is named by 1 to 64 letters, digits, _ and -";
            scaling.error("worker_pool", Code::InvalidName, message);
        }
        if !matches!(runtime, Runtime::Worker { .. }) {
            scaling.warning("worker_pool", Code::NoEffect, "only jobs of runtime worker have pools");
        }
    }
    let max_concurrency = scaling.number("max_concurrency", 1..=1_000_000);
    Scaling { max_concurrency, worker_pool: worker_pool.map(Arc::from) }
}

fn is_pool(name: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(part)
}

fn idle_timeout(fields: &Fields<'_, '_>) -> Option<IdleTimeout> {
    let node = fields.get("idle_timeout")?;
    let read = match node.scalar() {
        Some(Scalar::Int(0)) => Some(IdleTimeout::Seconds(0)),
        Some(Scalar::Text("never")) => Some(IdleTimeout::Never),
        Some(Scalar::Text(text)) => seconds(text).map(IdleTimeout::Seconds),
        _ => None,
    };
    if read.is_none() {
        fields.error("idle_timeout", Code::InvalidValue, "write never, 0, or a time such as 30s, 5m or 2h");
    }
    read
}

fn seconds(text: &str) -> Option<u32> {
    if text == "0" {
        return Some(0);
    }
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let factor: u32 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return None,
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| number.parse::<u32>().ok()?.checked_mul(factor))?
}

fn config(fields: &Fields<'_, '_>) -> Arc<str> {
    let place = fields.place.key("config");
    let json = match fields.get("config") {
        None => return "{}".into(),
        Some(node) => node.json(&place, fields.report),
    };
    if !json.is_object() {
        fields.error("config", Code::WrongType, "'config' is a map");
    }
    let text = json.to_string();
    if text.len() > CONFIG_BYTES {
        let message = format!("'config' has {} bytes as JSON; at most {CONFIG_BYTES} are allowed", text.len());
        fields.error("config", Code::ConfigTooLarge, message);
    }
    text.into()
}
