//! Where a job runs, and what: `runtime`, `operator`, `udf`, `secrets`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_core::dag::definition::{BUILTIN_OPERATORS, JobDefinition, Runtime, UDF_OPERATOR, Udf, is_secret_name};
use tenure_core::dag::operators;
use tenure_core::limits;
use uuid::Uuid;

use super::Context;
use super::fields::{Fields, text};
use crate::problem::{Code, quoted};
use crate::surroundings::{Bundle, Bundles, PRESET_RUNTIMES};
use crate::yaml::{Content, Node, Scalar};

const SECRETS: usize = 64;
const ENV: usize = 64;
const ENV_BYTES: usize = 4 << 10;

/// `None` if it is missing or unknown.
pub(super) fn runtime(fields: &Fields<'_, '_>, context: Context<'_>) -> Option<Runtime> {
    let name = fields.required_text("runtime")?;
    let further = |name: &str| PRESET_RUNTIMES.contains(&name) || context.settings.runtimes.contains(name);
    match name {
        Runtime::WORKER | "ecs_platform" => Some(Runtime::Worker { name: Runtime::WORKER.into() }),
        Runtime::LAMBDA => Some(Runtime::Lambda),
        Runtime::DISPATCHER => Some(Runtime::Dispatcher),
        Runtime::SANDBOX => Some(Runtime::Sandbox),
        name if further(name) => Some(Runtime::Worker { name: name.into() }),
        name => {
            let known = [Runtime::WORKER, "ecs_platform", Runtime::LAMBDA, Runtime::DISPATCHER, Runtime::SANDBOX];
            let registered = context.settings.runtimes.iter().map(String::as_str);
            let meant = fields.report.meant(name, known.into_iter().chain(PRESET_RUNTIMES).chain(registered));
            let message = format!(
                "no runtime named '{}'{meant} (worker, lambda, dispatcher, sandbox, or a name of `dispatch.runtimes`)",
                quoted(name)
            );
            fields.error("runtime", Code::UnknownRuntime, message);
            None
        }
    }
}

pub(super) fn operator(fields: &Fields<'_, '_>, runtime: Option<&Runtime>, context: Context<'_>) -> Arc<str> {
    let name = fields.required_text("operator").unwrap_or_default();
    if name.len() > limits::NAME_BYTES || name.chars().any(char::is_control) {
        fields.error("operator", Code::InvalidName, "an operator has 1 to 128 bytes and no control characters");
    } else if !name.is_empty() {
        match runtime {
            Some(Runtime::Dispatcher) if !BUILTIN_OPERATORS.contains(&name) => {
                let meant = fields.report.meant(name, BUILTIN_OPERATORS);
                let known = BUILTIN_OPERATORS.join(", ");
                let message = format!("no built-in operator named '{}'{meant} ({known})", quoted(name));
                fields.error("operator", Code::UnknownOperator, message);
            }
            Some(Runtime::Lambda) => lambda(fields, name, context),
            _ => {}
        }
    }
    name.into()
}

/// Whether the built-in operator of a job can run it.
pub(super) fn builtin(fields: &Fields<'_, '_>, job: &JobDefinition) {
    if !BUILTIN_OPERATORS.contains(&&*job.operator) {
        return;
    }
    let Err(fault) = operators::check(job) else { return };
    let (mut at, mut place, mut parent) = (fields.at, fields.place.clone(), None::<&Node>);
    for (depth, key) in fault.field.split('.').enumerate() {
        place = place.key(key);
        parent = if depth == 0 { fields.get(key) } else { parent.and_then(|parent| parent.entry(key)) };
        at = parent.map_or(at, |node| node.at);
    }
    fields.report.error(at, &place, Code::InvalidValue, fault.message);
}

/// Whether some entry of `dispatch.lambda.functions` stands for an operator.
fn lambda(fields: &Fields<'_, '_>, operator: &str, context: Context<'_>) {
    let functions = &context.settings.lambda_functions;
    let bundle = fields.get("udf").is_some() || operator == UDF_OPERATOR;
    let languages = languages(fields, context);
    let by_language = |name: &str| languages.iter().any(|kind| functions.contains(&format!("{name}.{kind}")));
    let found = functions.contains(operator)
        || functions.contains("*")
        || bundle && (by_language(operator) || by_language(UDF_OPERATOR));
    if !found {
        let meant = fields.report.meant(operator, functions.iter().map(String::as_str));
        let message = format!("`dispatch.lambda.functions` has no entry '{}'{meant}", quoted(operator));
        fields.error("operator", Code::UnknownOperator, message);
    }
}

/// The language of the job's bundle, or each one if the bundle is not known.
fn languages<'a>(fields: &Fields<'_, '_>, context: Context<'a>) -> Vec<&'a str> {
    let id = fields.get("udf").and_then(|udf| udf.entry("bundle_id")).and_then(Node::scalar);
    let known = match (&context.surroundings.bundles, id) {
        (Bundles::Known(bundles), Some(Scalar::Text(id))) => Uuid::try_parse(id).ok().and_then(|id| bundles.get(&id)),
        _ => None,
    };
    known.map_or_else(|| vec!["node", "python"], |bundle| vec![&bundle.runtime])
}

pub(super) fn secrets(fields: &Fields<'_, '_>, runtime: Option<&Runtime>) -> Vec<Arc<str>> {
    let rule = "a letter, then up to 127 letters, digits, _ and -";
    let names = fields.names("secrets", SECRETS, is_secret_name, rule).unwrap_or_default();
    let untrusted = fields.get("udf").is_some() || matches!(runtime, Some(Runtime::Sandbox));
    if untrusted && !names.is_empty() {
        let message = "untrusted code gets no secrets: remove `secrets`, or run a trusted operator on `worker`";
        fields.error("secrets", Code::SecretsNotAllowed, message);
    }
    let variables: std::collections::BTreeSet<String> =
        names.iter().map(|name| name.to_ascii_uppercase().replace('-', "_")).collect();
    let distinct: std::collections::BTreeSet<&Arc<str>> = names.iter().collect();
    if variables.len() < distinct.len() {
        fields.error("secrets", Code::InvalidValue, "two secrets become the same environment variable");
    }
    names
}

pub(super) fn udf(
    fields: &Fields<'_, '_>,
    runtime: Option<&Runtime>,
    operator: &str,
    context: Context<'_>,
) -> Option<Udf> {
    let present = fields.get("udf").is_some();
    if operator == UDF_OPERATOR && !present {
        fields.error("udf", Code::UdfRequired, "the operator 'udf' runs a bundle: name it with `udf.bundle_id`");
    }
    if !present && operator != UDF_OPERATOR {
        return None;
    }
    if !matches!(runtime, None | Some(Runtime::Sandbox | Runtime::Lambda)) {
        fields.error("udf", Code::UdfNotAllowed, "a bundle runs only on the runtimes sandbox and lambda");
    } else if matches!(context.surroundings.bundles, Bundles::Unavailable) {
        fields.error("udf", Code::BundlesUnavailable, "this server does not run bundles");
    }
    let udf = fields.map("udf", &["bundle_id", "entrypoint", "env"])?;
    let bundle_id = bundle_id(&udf);
    let entrypoint = udf.text("entrypoint").map(Arc::from);
    let env = env(&udf);
    let udf_value = Udf { bundle_id: bundle_id?, entrypoint, env };
    if let Bundles::Known(bundles) = &context.surroundings.bundles {
        match bundles.get(&udf_value.bundle_id) {
            Some(bundle) => manifest(&udf, &udf_value, bundle),
            None => {
                udf.error("bundle_id", Code::UnknownBundle, "no bundle has this id: upload it to /api/v1/udf/bundles");
            }
        }
    }
    Some(udf_value)
}

fn bundle_id(udf: &Fields<'_, '_>) -> Option<Uuid> {
    let text = udf.required_text("bundle_id")?;
    let id = Uuid::try_parse(text).ok().filter(|_| text.len() == 36);
    if id.is_none() {
        udf.error("bundle_id", Code::InvalidValue, format!("'{}' is not a UUID", quoted(text)));
    }
    id
}

fn env(udf: &Fields<'_, '_>) -> BTreeMap<Arc<str>, Arc<str>> {
    let mut variables = BTreeMap::new();
    let Some(node) = udf.get("env") else { return variables };
    let place = udf.place.key("env");
    let Content::Map(entries) = &node.content else {
        udf.error("env", Code::WrongType, format!("expected a map, found {}", node.kind()));
        return variables;
    };
    if entries.len() > ENV {
        udf.error("env", Code::OutOfRange, format!("at most {ENV} variables are allowed"));
        return variables;
    }
    for (key, value) in entries {
        let place = place.key(&key.text);
        if !is_variable(&key.text) {
            let message = "a variable is A-Z or _, then A-Z, 0-9 and _";
            udf.report.error(key.at, &place, Code::InvalidName, message);
        }
        // Numbers and booleans are taken as they are written.
        let written = match (&value.content, value.scalar()) {
            (Content::Scalar { text, .. }, Some(scalar)) if scalar != Scalar::Null => Some(text.as_str()),
            _ => text(value, &place, udf.report),
        };
        let Some(written) = written else { continue };
        if written.len() > ENV_BYTES || written.contains('\0') {
            let message = format!("a variable has at most {ENV_BYTES} bytes and no NUL character");
            udf.report.error(value.at, &place, Code::OutOfRange, message);
        }
        variables.insert(key.text.as_str().into(), written.into());
    }
    variables
}

fn is_variable(name: &str) -> bool {
    let part = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=128).contains(&name.len()) && !name.starts_with(|c: char| c.is_ascii_digit()) && name.bytes().all(part)
}

fn manifest(fields: &Fields<'_, '_>, udf: &Udf, bundle: &Bundle) {
    match &udf.entrypoint {
        Some(entrypoint) if *entrypoint == bundle.entrypoint => {}
        Some(entrypoint) if bundle.files.contains(entrypoint) => {
            let message = format!("the entrypoint of the bundle is '{}'", quoted(&bundle.entrypoint));
            fields.error("entrypoint", Code::EntrypointMismatch, message);
        }
        Some(_) => {
            let message = "not a file of the bundle: it is passed to the code as `handler`";
            fields.warning("entrypoint", Code::EntrypointHandler, message);
        }
        None => {}
    }
    for name in udf.env.keys().filter(|name| !bundle.env_allowlist.contains(*name)) {
        let meant = fields.report.meant(name, bundle.env_allowlist.iter().map(|name| &**name));
        let message = format!("the bundle's `env_allowlist` does not contain '{}'{meant}", quoted(name));
        fields.error("env", Code::EnvNotAllowed, message);
    }
}
