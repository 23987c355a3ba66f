//! The OpenAPI document, made from the handlers and the wire types.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::api::admin::{api_keys, audit, outbox, task_keys, tenants, worker_tokens};
use crate::api::{
    buffers, bundles, dags, datasets, dead_letters, events, health, metrics, queries, queues, redrives, runs,
    schedules, task_logs, tasks, webhooks, whoami, why,
};
use crate::contracts::pull::{self, exchange};
use crate::contracts::sandboxes::paths as sandboxes;
use crate::contracts::{Contract, callback, dispatch, worker_plane};

#[derive(OpenApi)]
#[openapi(
    info(title = "Tenure", description = "A control plane for leased work.", license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")),
    servers((url = "/", description = "The server that serves this document")),
    tags(
        (name = "tasks", description = "Submit, list, watch and steer tasks"),
        (name = "runs", description = "Tasks that depend on each other, submitted and watched as one"),
        (name = "queues", description = "Settings of queues, and what is in them"),
        (name = "schedules", description = "Tasks and runs that are submitted again and again"),
        (name = "dags", description = "DAGs: their versions, sources and datasets"),
        (name = "datasets", description = "What DAGs produce, and what to do when it has changed"),
        (name = "dead letters", description = "Tasks that failed for good"),
        (name = "events", description = "Changes of tasks and runs as server-sent events"),
        (name = "health", description = "State of the control plane, metrics and the identity of the caller"),
        (name = "admin", description = "API keys, worker tokens, tenants, audit, outbox"),
        (name = "worker identity", description = "Tokens and keys for workers"),
        (name = "pull contract", description = "Workers that claim tasks"),
        (name = "callback contract", description = "Workers that tasks are pushed to"),
        (name = "dispatch contract", description = "Workers that are woken with the id of a task of a DAG"),
        (name = "sandboxes", description = "Sandboxes with their commands, files and ports"),
        (name = "snapshots", description = "Files of sandboxes, kept"),
        (name = "templates", description = "Sandboxes described in advance, and warm pools"),
        (name = "workers", description = "Workers that hold sandboxes, and their providers"),
        (name = "quotas", description = "What owners may have"),
        (name = "policies", description = "What sandboxes may be"),
        (name = "worker plane", description = "Heartbeats and leases of workers that hold sandboxes"),
    ),
    paths(
        pull::claim,
        pull::heartbeat,
        pull::complete,
        pull::fail,
        pull::logs::logs,
        exchange::exchange,
        callback::started,
        callback::heartbeat,
        callback::completed,
        callback::logs::logs,
        callback::started_alias,
        callback::heartbeat_alias,
        callback::completed_alias,
        dispatch::claim::claim,
        dispatch::claim::fetch,
        dispatch::wakeups::wakeups,
        dispatch::heartbeat::heartbeat,
        dispatch::heartbeat::heartbeat_alias,
        dispatch::report::complete,
        dispatch::report::complete_alias,
        dispatch::events::events,
        dispatch::events::events_alias,
        dispatch::logs::logs,
        dispatch::logs::logs_alias,
        dispatch::publish::publish,
        dispatch::query::query,
        dispatch::credentials::credentials,
        dispatch::bundle::download,
        tasks::submit_one,
        tasks::submit_batch,
        tasks::list,
        tasks::show,
        tasks::attempts,
        why::why,
        task_logs::logs,
        tasks::cancel,
        tasks::retry,
        runs::submit,
        runs::list,
        runs::show,
        runs::cancel,
        runs::rerun,
        queues::list,
        queues::show,
        queues::set,
        queues::change,
        queues::pause,
        queues::resume,
        queues::delete,
        schedules::create,
        schedules::list,
        schedules::show,
        schedules::change,
        schedules::delete,
        schedules::pause,
        schedules::resume,
        schedules::trigger,
        webhooks::deliver,
        dags::deploy,
        dags::show::list,
        dags::show::show,
        dags::show::versions,
        dags::cutover,
        dags::rollback,
        dags::trigger,
        queries::query,
        queries::result,
        buffers::publish,
        buffers::dead,
        buffers::replay,
        bundles::upload,
        bundles::show,
        bundles::remove,
        datasets::list,
        datasets::show,
        datasets::invalidate,
        dead_letters::list,
        dead_letters::redrive,
        redrives::list,
        redrives::show,
        redrives::pause,
        redrives::resume,
        redrives::cancel,
        events::events,
        health::live,
        health::ready,
        health::health,
        health::openapi,
        metrics::metrics,
        metrics::metrics_at_root,
        whoami::whoami,
        whoami::jwks,
        api_keys::create,
        api_keys::list,
        api_keys::show,
        api_keys::revoke,
        worker_tokens::issue,
        worker_tokens::revoke,
        worker_tokens::revocations,
        worker_tokens::bootstrap,
        task_keys::list,
        task_keys::forget,
        tenants::list,
        tenants::create,
        tenants::show,
        tenants::set,
        tenants::unset,
        audit::admin,
        audit::operations,
        outbox::list,
        outbox::retry,
        worker_plane::heartbeat,
        worker_plane::renew,
        sandboxes::lifecycle::create,
        sandboxes::lifecycle::list,
        sandboxes::lifecycle::prune,
        sandboxes::lifecycle::admission,
        sandboxes::lifecycle::show,
        sandboxes::lifecycle::destroy,
        sandboxes::lifecycle::extend,
        sandboxes::exec::exec,
        sandboxes::socket::open,
        sandboxes::files::write,
        sandboxes::files::upload,
        sandboxes::files::read,
        sandboxes::files::delete,
        sandboxes::files::list,
        sandboxes::files::stat,
        sandboxes::files::glob,
        sandboxes::files::rename,
        sandboxes::files::chmod,
        sandboxes::logs::logs,
        sandboxes::logs::stats,
        sandboxes::snapshots::create,
        sandboxes::snapshots::list_of,
        sandboxes::snapshots::restore,
        sandboxes::snapshots::list,
        sandboxes::snapshots::show,
        sandboxes::snapshots::delete,
        sandboxes::proxy::root,
        sandboxes::proxy::below,
        sandboxes::templates::create,
        sandboxes::templates::list,
        sandboxes::templates::show,
        sandboxes::templates::update,
        sandboxes::templates::delete,
        sandboxes::templates::spawn,
        sandboxes::workers::workers,
        sandboxes::workers::worker,
        sandboxes::workers::drain,
        sandboxes::workers::undrain,
        sandboxes::workers::admin_workers,
        sandboxes::workers::admin_worker,
        sandboxes::workers::admin_drain,
        sandboxes::workers::admin_undrain,
        sandboxes::fleet::remove,
        sandboxes::fleet::providers,
        sandboxes::fleet::admin_providers,
        sandboxes::fleet::provider,
        sandboxes::fleet::provider_health,
        sandboxes::fleet::test_providers,
        sandboxes::fleet::pool,
        sandboxes::quotas::list,
        sandboxes::quotas::admin_list,
        sandboxes::quotas::summary,
        sandboxes::quotas::admin_summary,
        sandboxes::quotas::show,
        sandboxes::quotas::admin_show,
        sandboxes::quotas::usage,
        sandboxes::quotas::admin_usage,
        sandboxes::quotas::set,
        sandboxes::quotas::admin_set,
        sandboxes::quotas::delete,
        sandboxes::quotas::admin_delete,
        sandboxes::members::list,
        sandboxes::members::create,
        sandboxes::members::set,
        sandboxes::members::remove,
        sandboxes::policies::list_global,
        sandboxes::policies::create_global,
        sandboxes::policies::delete_global,
        sandboxes::policies::list,
        sandboxes::policies::create,
        sandboxes::policies::remove,
        sandboxes::diagnostics::system,
        sandboxes::diagnostics::metrics,
        sandboxes::diagnostics::admin_metrics,
        sandboxes::diagnostics::diagnostics,
        sandboxes::diagnostics::admin_diagnostics,
        sandboxes::environments::list,
        sandboxes::environments::below,
        sandboxes::tenant_audit::export,
    ),
    components(schemas(
        tenure_contract::error::UserError,
        tenure_contract::events::RunEvent,
        tenure_contract::sandboxes::SandboxError,
        tenure_contract::sandboxes::SandboxEvent
    )),
    modifiers(&Credentials)
)]
struct Document;

struct Credentials;

impl Modify for Credentials {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let key = |name: &str| SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new(name)));
        components.add_security_scheme("api_key", key("X-API-Key"));
        components.add_security_scheme("worker_token", key("X-Worker-Token"));
        components.add_security_scheme("task_token", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        components.add_security_scheme("capability_token", key("X-Trace-Task-Capability"));
        components.add_security_scheme("bootstrap_key", key("X-Worker-Bootstrap-Key"));
    }
}

/// What is served at `/api/v1/openapi.json`, as text.
pub fn document() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", whole()));
    &TEXT
}

fn whole() -> Value {
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    for (path, operations) in document["paths"].as_object_mut().into_iter().flatten() {
        let error = match Contract::of(path) {
            Contract::Sandboxes | Contract::WorkerPlane => "SandboxError",
            _ => "UserError",
        };
        each(operations, |one| operation(one, error));
    }
    each(&mut document["components"]["schemas"], schema);
    flatten(&mut document["components"]["schemas"]);
    document
}

fn each(object: &mut Value, change: impl FnMut(&mut Value)) {
    object.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(change);
}

/// What holds for every operation is said here instead of at each handler: how it is refused, and in which form.
fn operation(operation: &mut Value, error: &str) {
    let Value::Object(responses) = operation["responses"].take() else { return };
    let mut responses = responses;
    if operation.get("security").is_some() && !responses.contains_key("4XX") {
        for status in ["4XX", "503"] {
            let body = json!({"schema": {"$ref": format!("#/components/schemas/{error}")}});
            responses.entry(status).or_insert_with(|| json!({"content": {"application/json": body}}));
        }
    }
    if let Some(unavailable) = responses.get("503").filter(|_| responses.contains_key("4XX")) {
        let failed =
            json!({"description": "A defect of the server; its log has more", "content": unavailable["content"]});
        responses.insert("500".to_owned(), failed);
    }
    for (status, response) in &mut responses {
        if response["description"].as_str().is_none_or(str::is_empty) {
            response["description"] = match status.as_str() {
                "4XX" => "Refused; `error` names the reason",
                "503" => "Cannot be served now; try again after `Retry-After`",
                _ => "Accepted",
            }
            .into();
        }
    }
    operation["responses"] = responses.into();
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        parameter.get_mut("schema").into_iter().for_each(schema);
    }
}

/// A pattern that lists words is an enumeration, and a property whose name ends in `_at` is a point in time.
fn schema(value: &mut Value) {
    let words = value["pattern"].as_str().and_then(|pattern| pattern.strip_prefix("^(")?.strip_suffix(")$"));
    let words = words.filter(|words| words.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '|'));
    if let Some(words) = words {
        let null = value["type"].is_array().then_some(Value::Null);
        let words: Value = words.split('|').map(Value::from).chain(null).collect();
        value["enum"] = words;
        value.as_object_mut().map(|schema| schema.remove("pattern"));
    }
    for (name, property) in value.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        if name.ends_with("_at") {
            property["format"] = "date-time".into();
        }
        schema(property);
    }
    value.get_mut("items").into_iter().for_each(schema);
}

/// A type that takes in the fields of another is one object: a part that allows no other fields would refuse the rest.
fn flatten(schemas: &mut Value) {
    let parts = |schema: &Value| schema["allOf"].as_array().cloned();
    let all = schemas.clone();
    each(schemas, |schema| {
        for part in parts(schema).into_iter().flatten() {
            let name = part["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
            let part = name.map_or(&part, |name| &all[name]);
            for key in ["properties", "required", "additionalProperties"] {
                match (&mut schema[key], part[key].clone()) {
                    (Value::Object(whole), Value::Object(more)) => whole.extend(more),
                    (Value::Array(whole), Value::Array(more)) => whole.extend(more),
                    (_, Value::Null) => {}
                    (absent, more) => *absent = more,
                }
            }
            schema["type"] = "object".into();
        }
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("allOf");
            schema.retain(|_, value| !value.is_null());
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// The document is checked in, so that a changed contract shows in a diff. `TENURE_BLESS=1` writes it anew.
    #[test]
    fn the_checked_in_document_is_the_served_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        if std::env::var_os("TENURE_BLESS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(checked_in == document(), "the API changed: run TENURE_BLESS=1 cargo test -p tenure-server openapi");
    }

    /// What client generators stumble over; `scripts/openapi` asks a validator and a generator for the rest.
    #[test]
    fn operations_have_names_of_their_own_and_responses_have_descriptions() {
        let document = whole();
        let mut ids = HashSet::new();
        let operations = document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
        for (_, operation) in operations {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id), "two operations are called {id}");
            for (status, response) in operation["responses"].as_object().unwrap() {
                let described = response["description"].as_str().is_some_and(|text| !text.is_empty());
                assert!(described, "{id} {status} has no description");
            }
        }
        let task = &document["components"]["schemas"]["Task"]["properties"];
        assert_eq!(task["state"], json!({"$ref": "#/components/schemas/TaskState"}));
        assert_eq!(task["created_at"]["format"], "date-time");
        assert_eq!(document["components"]["schemas"]["Queue"]["properties"]["kind"]["enum"], json!(["pull", "push"]));
    }
}
