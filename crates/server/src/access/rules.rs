//! Who may call which route. A route that is missing here is refused: see the test that walks the OpenAPI document.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::Method;
use tenure_auth::UserScope;
use tenure_auth::worker::Scope;

/// What a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Nothing. Answers must not tell more than that the server is there.
    Open,
    /// A worker with this scope.
    Worker(Scope),
    /// The bootstrap key of the worker that the path names.
    Bootstrap,
    /// The token of the task that the path names.
    Task,
    /// The capability token of the task that the body names.
    Capability,
    /// A signature of the body, which the handler judges.
    Signed,
    /// A user whose role has this scope.
    User(UserScope),
}

use Rule::{Bootstrap, Capability, Open, Signed, Task, User, Worker};
use UserScope::{Admin, Api, Operator, Read, TenantAdmin};

/// A line for every method of its path.
const ANY: &str = "*";

const RULES: &[(&str, &str, Rule)] = &[
    ("GET", "/api/v1/live", Open),
    ("GET", "/api/v1/ready", Open),
    ("GET", "/api/v1/health", Open),
    ("GET", "/api/v1/openapi.json", Open),
    ("GET", "/internal/jwks/task", Open),
    ("POST", "/internal/worker/claim", Worker(Scope::Lease)),
    ("POST", "/internal/worker/heartbeat", Worker(Scope::Lease)),
    ("POST", "/internal/worker/complete", Worker(Scope::Lease)),
    ("POST", "/internal/worker/fail", Worker(Scope::Lease)),
    ("POST", "/internal/worker/exchange", Worker(Scope::Lease)),
    ("POST", "/internal/worker/logs", Worker(Scope::Lease)),
    ("POST", "/internal/task-claim", Worker(Scope::Lease)),
    ("GET", "/internal/task-fetch", Worker(Scope::Lease)),
    ("GET", "/internal/task-wakeups", Worker(Scope::Lease)),
    ("POST", "/internal/heartbeat", Worker(Scope::Lease)),
    ("POST", "/internal/task-complete", Worker(Scope::Lease)),
    ("POST", "/internal/events", Worker(Scope::Lease)),
    ("POST", "/internal/task-logs", Worker(Scope::Lease)),
    ("POST", "/v1/task/heartbeat", Capability),
    ("POST", "/v1/task/complete", Capability),
    ("POST", "/v1/task/events", Capability),
    ("POST", "/v1/task/logs", Capability),
    ("POST", "/v1/task/buffer-publish", Capability),
    ("POST", "/v1/task/query", Capability),
    ("POST", "/v1/task/credentials", Capability),
    ("GET", "/v1/task/bundle", Capability),
    ("POST", "/v1/tasks/{id}/started", Task),
    ("POST", "/v1/tasks/{id}/heartbeat", Task),
    ("POST", "/v1/tasks/{id}/completed", Task),
    ("POST", "/v1/tasks/{id}/logs", Task),
    ("POST", "/api/v1/tasks/{id}/started", Task),
    ("POST", "/api/v1/tasks/{id}/heartbeat", Task),
    ("POST", "/api/v1/tasks/{id}/completed", Task),
    ("POST", "/api/v1/worker/{id}/token", Bootstrap),
    ("POST", "/api/v1/webhooks/{*path}", Signed),
    ("POST", "/api/v1/tasks", User(Api)),
    ("GET", "/api/v1/tasks", User(Read)),
    ("POST", "/api/v1/tasks/batch", User(Api)),
    ("GET", "/api/v1/tasks/{id}", User(Read)),
    ("GET", "/api/v1/tasks/{id}/attempts", User(Read)),
    ("GET", "/api/v1/tasks/{id}/why", User(Read)),
    ("GET", "/api/v1/tasks/{id}/logs", User(Read)),
    ("POST", "/api/v1/tasks/{id}/cancel", User(Api)),
    ("POST", "/api/v1/tasks/{id}/retry", User(Api)),
    ("POST", "/api/v1/runs", User(Api)),
    ("GET", "/api/v1/runs", User(Read)),
    ("GET", "/api/v1/runs/{id}", User(Read)),
    ("POST", "/api/v1/runs/{id}/cancel", User(Api)),
    ("POST", "/api/v1/runs/{id}/rerun", User(Api)),
    ("GET", "/api/v1/queues", User(Read)),
    ("GET", "/api/v1/queues/{name}", User(Read)),
    ("PUT", "/api/v1/queues/{name}", User(Api)),
    ("PATCH", "/api/v1/queues/{name}", User(Api)),
    ("DELETE", "/api/v1/queues/{name}", User(Api)),
    ("POST", "/api/v1/queues/{name}/pause", User(Api)),
    ("POST", "/api/v1/queues/{name}/resume", User(Api)),
    ("POST", "/api/v1/schedules", User(Api)),
    ("GET", "/api/v1/schedules", User(Read)),
    ("GET", "/api/v1/schedules/{name}", User(Read)),
    ("PATCH", "/api/v1/schedules/{name}", User(Api)),
    ("DELETE", "/api/v1/schedules/{name}", User(Api)),
    ("POST", "/api/v1/schedules/{name}/pause", User(Api)),
    ("POST", "/api/v1/schedules/{name}/resume", User(Api)),
    ("POST", "/api/v1/schedules/{name}/trigger", User(Api)),
    ("POST", "/api/v1/dags", User(Api)),
    ("GET", "/api/v1/dags", User(Read)),
    ("GET", "/api/v1/dags/{name}", User(Read)),
    ("GET", "/api/v1/dags/{name}/versions", User(Read)),
    ("POST", "/api/v1/dags/{name}/cutover", User(Api)),
    ("POST", "/api/v1/dags/{name}/rollback", User(Api)),
    ("POST", "/api/v1/dags/{name}/jobs/{job}/trigger", User(Api)),
    ("POST", "/api/v1/buffers/{dataset}/publish", User(Api)),
    ("GET", "/api/v1/buffers/{dataset}/dead", User(Read)),
    ("POST", "/api/v1/buffers/{dataset}/replay", User(Api)),
    ("POST", "/api/v1/query", User(Read)),
    ("GET", "/api/v1/query/{id}/result", User(Read)),
    ("POST", "/api/v1/udf/bundles", User(Api)),
    ("GET", "/api/v1/udf/bundles/{id}", User(Read)),
    ("DELETE", "/api/v1/udf/bundles/{id}", User(Api)),
    ("GET", "/api/v1/datasets", User(Read)),
    ("GET", "/api/v1/datasets/{name}", User(Read)),
    ("POST", "/api/v1/datasets/{name}/invalidate", User(Api)),
    ("GET", "/api/v1/dead-letters", User(Read)),
    ("POST", "/api/v1/dead-letters/redrive", User(Api)),
    ("GET", "/api/v1/redrives", User(Read)),
    ("GET", "/api/v1/redrives/{id}", User(Read)),
    ("POST", "/api/v1/redrives/{id}/pause", User(Api)),
    ("POST", "/api/v1/redrives/{id}/resume", User(Api)),
    ("POST", "/api/v1/redrives/{id}/cancel", User(Api)),
    ("GET", "/api/v1/events", User(Read)),
    ("GET", "/api/v1/whoami", User(Read)),
    ("GET", "/api/v1/audit", User(Read)),
    ("GET", "/metrics", User(Operator)),
    ("GET", "/api/v1/metrics/prometheus", User(Operator)),
    ("POST", "/api/v1/admin/api-keys", User(TenantAdmin)),
    ("GET", "/api/v1/admin/api-keys", User(TenantAdmin)),
    ("GET", "/api/v1/admin/api-keys/{id}", User(TenantAdmin)),
    ("DELETE", "/api/v1/admin/api-keys/{id}", User(TenantAdmin)),
    ("POST", "/api/v1/admin/worker-tokens", User(Admin)),
    ("POST", "/api/v1/admin/worker-tokens/revocations", User(Admin)),
    ("GET", "/api/v1/admin/worker-tokens/revocations", User(Admin)),
    ("GET", "/api/v1/admin/task-keys", User(Admin)),
    ("DELETE", "/api/v1/admin/task-keys/{id}", User(Admin)),
    ("GET", "/api/v1/admin/audit", User(Admin)),
    ("GET", "/api/v1/admin/tenants", User(Admin)),
    ("POST", "/api/v1/admin/tenants", User(Admin)),
    ("GET", "/api/v1/admin/tenants/{tenant}", User(TenantAdmin)),
    ("PUT", "/api/v1/admin/tenants/{tenant}", User(Admin)),
    ("DELETE", "/api/v1/admin/tenants/{tenant}", User(Admin)),
    ("GET", "/api/v1/admin/outbox", User(Admin)),
    ("POST", "/api/v1/admin/outbox/retry", User(Admin)),
    ("POST", "/api/v1/worker/{id}/heartbeat", Worker(Scope::Heartbeat)),
    ("POST", "/api/v1/worker/{id}/leases/{resource}/renew", Worker(Scope::Lease)),
    ("POST", "/api/v1/sandboxes", User(Api)),
    ("GET", "/api/v1/sandboxes", User(Read)),
    ("DELETE", "/api/v1/sandboxes", User(Api)),
    ("POST", "/api/v1/sandboxes/admission", User(Read)),
    ("GET", "/api/v1/sandboxes/{id}", User(Read)),
    ("DELETE", "/api/v1/sandboxes/{id}", User(Api)),
    ("POST", "/api/v1/sandboxes/{id}/extend", User(Api)),
    ("POST", "/api/v1/sandboxes/{id}/exec", User(Api)),
    ("GET", "/api/v1/sandboxes/{id}/exec/ws", User(Api)),
    ("POST", "/api/v1/sandboxes/{id}/files", User(Api)),
    ("PUT", "/api/v1/sandboxes/{id}/files", User(Api)),
    ("GET", "/api/v1/sandboxes/{id}/files", User(Read)),
    ("DELETE", "/api/v1/sandboxes/{id}/files", User(Api)),
    ("GET", "/api/v1/sandboxes/{id}/files/list", User(Read)),
    ("GET", "/api/v1/sandboxes/{id}/files/stat", User(Read)),
    ("GET", "/api/v1/sandboxes/{id}/files/glob", User(Read)),
    ("POST", "/api/v1/sandboxes/{id}/files/move", User(Api)),
    ("POST", "/api/v1/sandboxes/{id}/files/chmod", User(Api)),
    ("GET", "/api/v1/sandboxes/{id}/logs", User(Read)),
    ("GET", "/api/v1/sandboxes/{id}/stats", User(Read)),
    ("POST", "/api/v1/sandboxes/{id}/snapshots", User(Api)),
    ("GET", "/api/v1/sandboxes/{id}/snapshots", User(Read)),
    ("POST", "/api/v1/sandboxes/{id}/restore", User(Api)),
    (ANY, "/api/v1/sandboxes/{id}/proxy/{port}", User(Api)),
    (ANY, "/api/v1/sandboxes/{id}/proxy/{port}/{*path}", User(Api)),
    ("GET", "/api/v1/snapshots", User(Read)),
    ("GET", "/api/v1/snapshots/{id}", User(Read)),
    ("DELETE", "/api/v1/snapshots/{id}", User(Api)),
    ("POST", "/api/v1/templates", User(Api)),
    ("GET", "/api/v1/templates", User(Read)),
    ("GET", "/api/v1/templates/{name}", User(Read)),
    ("PUT", "/api/v1/templates/{name}", User(Api)),
    ("DELETE", "/api/v1/templates/{name}", User(Api)),
    ("POST", "/api/v1/templates/{name}/spawn", User(Api)),
    ("GET", "/api/v1/pool/status", User(Read)),
    ("GET", "/api/v1/providers", User(Operator)),
    ("POST", "/api/v1/providers/test", User(Operator)),
    ("GET", "/api/v1/providers/{name}", User(Operator)),
    ("GET", "/api/v1/providers/{name}/health", User(Operator)),
    ("GET", "/api/v1/workers", User(Operator)),
    ("GET", "/api/v1/workers/{id}", User(Operator)),
    ("POST", "/api/v1/workers/{id}/drain", User(Admin)),
    ("POST", "/api/v1/workers/{id}/undrain", User(Admin)),
    ("GET", "/api/v1/quotas", User(Read)),
    ("GET", "/api/v1/quotas/summary", User(Read)),
    ("GET", "/api/v1/quotas/{owner}", User(Read)),
    ("PUT", "/api/v1/quotas/{owner}", User(Admin)),
    ("DELETE", "/api/v1/quotas/{owner}", User(Admin)),
    ("GET", "/api/v1/quotas/{owner}/usage", User(Read)),
    ("GET", "/api/v1/diagnostics", User(Operator)),
    ("GET", "/api/v1/metrics", User(Operator)),
    ("GET", "/api/v1/system/stats", User(Operator)),
    (ANY, "/api/v1/environments", User(Read)),
    (ANY, "/api/v1/environments/{*path}", User(Read)),
    ("GET", "/api/v1/admin/workers", User(Admin)),
    ("GET", "/api/v1/admin/workers/{id}", User(Admin)),
    ("DELETE", "/api/v1/admin/workers/{id}", User(Admin)),
    ("POST", "/api/v1/admin/workers/{id}/drain", User(Admin)),
    ("POST", "/api/v1/admin/workers/{id}/undrain", User(Admin)),
    ("GET", "/api/v1/admin/providers", User(Admin)),
    ("GET", "/api/v1/admin/quotas", User(Admin)),
    ("GET", "/api/v1/admin/quotas/summary", User(Admin)),
    ("GET", "/api/v1/admin/quotas/{owner}", User(Admin)),
    ("PUT", "/api/v1/admin/quotas/{owner}", User(Admin)),
    ("DELETE", "/api/v1/admin/quotas/{owner}", User(Admin)),
    ("GET", "/api/v1/admin/quotas/{owner}/usage", User(Admin)),
    ("GET", "/api/v1/admin/diagnostics", User(Admin)),
    ("GET", "/api/v1/admin/metrics", User(Admin)),
    ("GET", "/api/v1/admin/policies", User(Admin)),
    ("POST", "/api/v1/admin/policies", User(Admin)),
    ("DELETE", "/api/v1/admin/policies/{policy}", User(Admin)),
    ("GET", "/api/v1/admin/tenants/{tenant}/members", User(TenantAdmin)),
    ("POST", "/api/v1/admin/tenants/{tenant}/members", User(TenantAdmin)),
    ("PUT", "/api/v1/admin/tenants/{tenant}/members/{user}", User(TenantAdmin)),
    ("DELETE", "/api/v1/admin/tenants/{tenant}/members/{user}", User(TenantAdmin)),
    ("GET", "/api/v1/admin/tenants/{tenant}/policies", User(TenantAdmin)),
    ("POST", "/api/v1/admin/tenants/{tenant}/policies", User(TenantAdmin)),
    ("DELETE", "/api/v1/admin/tenants/{tenant}/policies/{policy}", User(TenantAdmin)),
    ("GET", "/api/v1/admin/tenants/{tenant}/audit", User(TenantAdmin)),
];

/// What is known about a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Rule(Rule),
    /// The path takes other methods.
    OtherMethod,
    /// Nobody said who may call it.
    Nothing,
}

static BY_ROUTE: LazyLock<HashMap<&str, Vec<(&str, Rule)>>> = LazyLock::new(|| {
    let mut routes: HashMap<&str, Vec<(&str, Rule)>> = HashMap::new();
    for &(method, route, rule) in RULES {
        routes.entry(route).or_default().push((method, rule));
    }
    routes
});

pub fn find(method: &Method, route: &str) -> Found {
    let Some(rules) = BY_ROUTE.get(route) else { return Found::Nothing };
    // What may be read may also be asked for its head.
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    rules
        .iter()
        .find(|(known, _)| *known == method || *known == ANY)
        .map_or(Found::OtherMethod, |(_, rule)| Found::Rule(*rule))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;

    /// What the OpenAPI document says about a route with this rule.
    fn documented(rule: Rule) -> Value {
        match rule {
            Open | Signed => Value::Null,
            Worker(scope) => json!([{"worker_token": [scope.as_str()]}]),
            Bootstrap => json!([{"bootstrap_key": []}]),
            Task => json!([{"task_token": []}]),
            Capability => json!([{"capability_token": []}]),
            User(scope) => json!([{"api_key": [scope.as_str()]}]),
        }
    }

    #[test]
    fn the_document_and_the_rules_name_the_same_routes_and_scopes() {
        let document: Value = serde_json::from_str(crate::openapi::document()).unwrap();
        let mut served = BTreeMap::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                served.insert((method.to_uppercase(), path.clone()), operation["security"].clone());
            }
        }
        let ruled: BTreeMap<_, _> = RULES
            .iter()
            .map(|&(method, path, rule)| {
                // The document names one method of a path that takes all, and knows no paths with slashes.
                let method = if method == ANY { "GET" } else { method };
                ((method.to_owned(), path.replace("{*", "{")), documented(rule))
            })
            .collect();
        assert_eq!(served, ruled);
    }

    #[test]
    fn only_known_routes_have_rules_and_heads_are_read() {
        assert_eq!(find(&Method::GET, "/api/v1/tasks"), Found::Rule(User(Read)));
        assert_eq!(find(&Method::HEAD, "/api/v1/tasks"), Found::Rule(User(Read)));
        assert_eq!(find(&Method::PATCH, "/api/v1/tasks"), Found::OtherMethod);
        assert_eq!(find(&Method::GET, "/api/v1/new"), Found::Nothing);
        let proxied = find(&Method::PATCH, "/api/v1/sandboxes/{id}/proxy/{port}");
        assert_eq!(proxied, Found::Rule(User(Api)));
    }
}
