//! Templates: sandboxes described in advance. They belong to a tenant.

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use tenure_contract::sandboxes::{
    CPU_CORES_DEFAULT, MEMORY_MB_DEFAULT, Outcome, Sandbox, TTL_SECONDS_DEFAULT, Template, TemplateSecret,
    TemplateSpawn, TemplateWrite,
};
use tenure_core::sandbox::Secret;
use tenure_engine::sandboxes::{Request, Template as Body_, TemplateView};

use super::lifecycle::{asker, created_answer, respond_created};
use super::{params, render, respond, respond_whole, respond_with};
use crate::access::guard::User;
use crate::error::Fault;
use crate::request::RequestId;
use crate::sandboxes::duration_ms;
use crate::state::App;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/templates", post(create).get(list))
        .route("/api/v1/templates/{name}", get(show).put(update).delete(delete))
        .route("/api/v1/templates/{name}/spawn", post(spawn))
}

fn shown(view: TemplateView) -> Template {
    let TemplateView { name, version, template, created_at, updated_at, .. } = view;
    Template {
        name: name.to_string(),
        version: u64::try_from(version).unwrap_or_default(),
        image: template.image,
        description: Some(template.description).filter(|text| !text.is_empty()),
        setup: template.setup,
        allowed_hosts: template.allowed_hosts,
        memory_mb: template.memory_mb,
        cpu_cores: template.vcpus,
        ttl_seconds: u64::try_from(template.ttl_ms / 1000).unwrap_or_default(),
        env: template.env,
        secrets: template
            .secrets
            .into_iter()
            .map(|secret| TemplateSecret { name: secret.name, inject_at: secret.inject_at })
            .collect(),
        pool_size: u32::try_from(template.pool_size).unwrap_or(u32::MAX),
        created_at: render::whole_seconds(created_at),
        updated_at: render::whole_seconds(updated_at),
        provider: Some(template.provider).filter(|provider| !provider.is_empty()),
        metadata: template.metadata,
        read_only_root: false,
    }
}

fn read(asked: TemplateWrite) -> Result<Body_, Fault> {
    let seconds = asked.seconds().map_err(|_| Fault::bad("ttl", "ttl must be a duration such as 30m"))?;
    let cores = asked.cores();
    Ok(Body_ {
        image: asked.image,
        description: asked.description.unwrap_or_default(),
        setup: asked.setup,
        allowed_hosts: asked.allowed_hosts,
        memory_mb: asked.memory_mb.unwrap_or(MEMORY_MB_DEFAULT),
        vcpus: cores.unwrap_or(CPU_CORES_DEFAULT),
        ttl_ms: i64::try_from(seconds.unwrap_or(TTL_SECONDS_DEFAULT).saturating_mul(1000)).unwrap_or(i64::MAX),
        env: asked.env,
        secrets: asked
            .secrets
            .into_iter()
            .map(|secret| Secret { name: secret.name, inject_at: secret.inject_at })
            .collect(),
        pool_size: u64::from(asked.pool_size.unwrap_or_default()),
        provider: asked.provider.unwrap_or_default(),
        metadata: asked.metadata,
    })
}

/// Create a template
#[utoipa::path(post, path = "/api/v1/templates", operation_id = "create_template", tag = "templates", request_body = TemplateWrite, security(("api_key" = ["api"])),
    responses((status = 201, body = Template, description = "The template")))]
pub async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let (asked, _room): (TemplateWrite, _) = params::read(&app, &caller, &headers, body).await?;
        let name = asked.name.clone();
        Ok(shown(app.sandboxes()?.manager.create_template(&caller.home(), &name, &read(asked)?).await?))
    };
    respond_with(StatusCode::CREATED, answer.await, &id)
}

/// List templates
#[utoipa::path(get, path = "/api/v1/templates", operation_id = "list_templates", tag = "templates", security(("api_key" = ["read"])),
    responses((status = 200, body = Vec<Template>, description = "The templates, by name")))]
pub async fn list(State(app): State<App>, Extension(id): Extension<RequestId>, Extension(caller): User) -> Response {
    let answer = async {
        // Names are those of a tenant: an admin sees the tenant that it names, or its own.
        let found = app.sandboxes()?.manager.templates(Some(&caller.home())).await?;
        Ok(found.into_iter().map(shown).collect::<Vec<_>>())
    };
    respond_whole(&app, &caller, answer.await, &id).await
}

/// Show a template
#[utoipa::path(get, path = "/api/v1/templates/{name}", operation_id = "get_template", tag = "templates", params(("name" = String, Path)), security(("api_key" = ["read"])),
    responses((status = 200, body = Template, description = "The template")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = async { Ok(shown(app.sandboxes()?.manager.template(&caller.home(), plain(&name)?).await?)) };
    respond(answer.await, &id)
}

/// Replace a template
#[utoipa::path(put, path = "/api/v1/templates/{name}", operation_id = "update_template", tag = "templates", params(("name" = String, Path)), request_body = TemplateWrite, security(("api_key" = ["api"])),
    responses((status = 200, body = Template, description = "The template with its new version")))]
pub async fn update(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let (asked, _room): (TemplateWrite, _) = params::read(&app, &caller, &headers, body).await?;
        Ok(shown(app.sandboxes()?.manager.update_template(&caller.home(), plain(&name)?, &read(asked)?).await?))
    };
    respond(answer.await, &id)
}

/// Delete a template
#[utoipa::path(delete, path = "/api/v1/templates/{name}", operation_id = "delete_template", tag = "templates", params(("name" = String, Path)), security(("api_key" = ["api"])),
    responses((status = 200, body = Outcome, description = "deleted")))]
pub async fn delete(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
) -> Response {
    let answer = async {
        app.sandboxes()?.manager.delete_template(&caller.home(), plain(&name)?).await?;
        Ok(Outcome::new("deleted"))
    };
    respond(answer.await, &id)
}

/// Create a sandbox from a template
#[utoipa::path(post, path = "/api/v1/templates/{name}/spawn", operation_id = "spawn_template", tag = "templates", params(("name" = String, Path)), request_body = TemplateSpawn, security(("api_key" = ["api"])),
    responses((status = 201, body = Sandbox, description = "It runs")))]
pub async fn spawn(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let (asked, _room): (TemplateSpawn, _) = params::read(&app, &caller, &headers, body).await?;
        let request = Request {
            template: Some(plain(&name)?.to_owned()),
            provider: asked.provider,
            ttl_ms: asked.ttl.as_deref().map(|ttl| duration_ms(ttl, "ttl")).transpose()?,
            ..Request::default()
        };
        let created = app.sandboxes()?.manager.create(&request, &asker(&caller, &id), None, true).await?;
        created_answer(&app, created, true).await
    };
    respond_created(answer.await, &id)
}

/// Postgres keeps no NUL in a text: nothing can match one.
fn plain(name: &str) -> Result<&str, Fault> {
    if name.contains('\0') { Err(Fault::malformed("a name must not contain NUL")) } else { Ok(name) }
}
