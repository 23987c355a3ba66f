//! The OpenAPI document, made from the handlers and the wire types.

use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::api::admin::{api_keys, audit, outbox, task_keys, tenants, worker_tokens};
use crate::api::{dead_letters, events, health, metrics, queues, runs, tasks, whoami};
use crate::contracts::callback;
use crate::contracts::pull::{self, exchange};

#[derive(OpenApi)]
#[openapi(
    info(title = "Tenure", description = "A control plane for leased work.", license(name = "MIT OR Apache-2.0")),
    paths(
        pull::claim,
        pull::heartbeat,
        pull::complete,
        pull::fail,
        exchange::exchange,
        callback::started,
        callback::heartbeat,
        callback::completed,
        callback::started_alias,
        callback::heartbeat_alias,
        callback::completed_alias,
        tasks::submit_one,
        tasks::submit_batch,
        tasks::list,
        tasks::show,
        tasks::attempts,
        tasks::why,
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
        queues::pause,
        queues::resume,
        dead_letters::list,
        dead_letters::redrive,
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
        tenants::show,
        tenants::set,
        tenants::unset,
        audit::admin,
        audit::operations,
        outbox::list,
        outbox::retry,
    ),
    components(schemas(tenure_contract::events::RunEvent)),
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
        components.add_security_scheme("bootstrap_key", key("X-Worker-Bootstrap-Key"));
    }
}

/// What is served at `/api/v1/openapi.json`.
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

#[cfg(test)]
mod tests {
    /// The document is checked in, so that a changed contract shows in a diff. `TENURE_BLESS=1` writes it anew.
    #[test]
    fn the_checked_in_document_is_the_served_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        let mut served = serde_json::to_string_pretty(&super::document()).unwrap();
        served.push('\n');
        if std::env::var_os("TENURE_BLESS").is_some() {
            std::fs::write(path, &served).unwrap();
        }
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(checked_in == served, "the API changed: run TENURE_BLESS=1 cargo test -p tenure-server openapi");
    }
}
