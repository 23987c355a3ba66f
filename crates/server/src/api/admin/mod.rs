//! What admins do. Every request below `/api/v1/admin/` is written to the audit by the guard.

pub mod api_keys;
pub mod audit;
pub mod outbox;
pub mod task_keys;
pub mod tenants;
pub mod worker_tokens;

use axum::Router;

use crate::state::App;

pub fn router() -> Router<App> {
    Router::new()
        .merge(api_keys::router())
        .merge(audit::router())
        .merge(outbox::router())
        .merge(task_keys::router())
        .merge(tenants::router())
        .merge(worker_tokens::router())
}
