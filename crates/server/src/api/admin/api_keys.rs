//! API keys: make, list, revoke. A key is shown once, when it is made.

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tenure_auth::{NewApiKey as Fresh, Role};
use tenure_contract::admin::{ApiKey, ApiKeyPage, CreatedApiKey, NewApiKey};
use tenure_contract::duration;
use tenure_contract::user::Page;
use tenure_core::{Timestamp, limits};
use tenure_engine::store::{ApiKey as StoredKey, NewApiKey as StoredNew};

use crate::access::caller::Caller;
use crate::access::guard::{User, unix_now};
use crate::api::errors::refuse;
use crate::api::queues::PageQuery;
use crate::api::{query, respond};
use crate::error::{Fault, Forbidden, Thing};
use crate::request::{self, RequestId};
use crate::state::App;
use crate::tenants::unavailable;
use crate::validate;

const NAME_BYTES: usize = 128;

pub fn router() -> Router<App> {
    Router::new()
        .route("/api/v1/admin/api-keys", post(create).get(list))
        .route("/api/v1/admin/api-keys/{id}", get(show).delete(revoke))
}

/// Create an API key
///
/// The key itself is in this answer and nowhere else.
#[utoipa::path(post, path = "/api/v1/admin/api-keys", operation_id = "create_api_key", tag = "admin", request_body = NewApiKey, security(("api_key" = ["tenant:admin"])),
    responses((status = 201, body = CreatedApiKey, description = "The new key; this is the only time that it is shown")))]
pub async fn create(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let answer = async {
        let asked: NewApiKey = request::read(&headers, body, limits::BODY_BYTES).await?.decode()?;
        let name = validate::words(&asked.name, "name", NAME_BYTES)?;
        let role = role(asked.role.as_deref(), &caller)?;
        let owner = match (&caller.owner, asked.owner.as_deref()) {
            (Some(own), Some(asked)) if **own != *asked => return Err(Forbidden::Owner.into()),
            (Some(own), _) => Some(own.to_string()),
            (None, Some(asked)) => Some(validate::owner(asked, "owner")?.to_string()),
            (None, None) => None,
        };
        let fresh = Fresh::random();
        let new = StoredNew {
            key_id: fresh.id.clone(),
            hash: fresh.digest,
            name: name.to_string(),
            role: role.as_str().to_owned(),
            tenant: caller.tenant_for(asked.tenant.as_deref(), "tenant")?.to_string(),
            owner,
            created_by: caller.actor.to_string(),
            expires_at: asked.expires_in.as_deref().map(expiry).transpose()?,
        };
        let stored = app.engine.identity().create_api_key(&new).await.map_err(unavailable)?;
        Ok(CreatedApiKey { key: fresh.text.reveal().to_owned(), info: render(&stored) })
    };
    match answer.await {
        Ok(created) => (StatusCode::CREATED, Json(created)).into_response(),
        Err(fault) => refuse(fault, &id),
    }
}

/// Nobody hands out more than it has.
fn role(asked: Option<&str>, caller: &Caller) -> Result<Role, Fault> {
    let role = asked
        .map_or(Some(Role::Api), Role::parse)
        .ok_or_else(|| Fault::invalid("role", "must be viewer, api, operator, tenant_admin or admin"))?;
    if role > caller.role { Err(Forbidden::HigherRole { role: caller.role }.into()) } else { Ok(role) }
}

fn expiry(text: &str) -> Result<Timestamp, Fault> {
    let lasts = duration::parse(text).filter(|lasts| !lasts.is_zero());
    let lasts = lasts.ok_or_else(|| Fault::invalid("expires_in", "must be a duration such as 720h"))?;
    let seconds = i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX);
    Ok(Timestamp::from_millis(unix_now().saturating_add(seconds).saturating_mul(1000)))
}

/// List API keys, also those that were revoked
#[utoipa::path(get, path = "/api/v1/admin/api-keys", operation_id = "list_api_keys", tag = "admin", params(PageQuery), security(("api_key" = ["tenant:admin"])),
    responses((status = 200, body = ApiKeyPage, description = "A page of keys, without the keys themselves")))]
pub async fn list(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    uri: Uri,
) -> Response {
    let answer = async {
        let asked: PageQuery = query(&uri)?;
        let limit = validate::page_limit(asked.limit)?;
        let store = app.engine.identity();
        let page =
            store.api_keys(caller.tenant.as_deref(), asked.cursor.as_deref(), limit).await.map_err(unavailable)?;
        let items = page.items.iter().filter(|key| reaches(&caller, key)).map(render).collect();
        Ok(Page { items, next_cursor: page.next })
    };
    respond(answer.await, &id)
}

/// Show an API key, without the key
#[utoipa::path(get, path = "/api/v1/admin/api-keys/{id}", operation_id = "get_api_key", tag = "admin", params(("id" = String, Path)), security(("api_key" = ["tenant:admin"])),
    responses((status = 200, body = ApiKey, description = "The key, without the key itself")))]
pub async fn show(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(key): Path<String>,
) -> Response {
    let answer = async {
        let key = known(&key)?;
        find(&app, &caller, key).await.map(|key| render(&key))
    };
    respond(answer.await, &id)
}

/// Revoke an API key
///
/// It is refused here at once and on other replicas within 5 s.
#[utoipa::path(delete, path = "/api/v1/admin/api-keys/{id}", operation_id = "revoke_api_key", tag = "admin", params(("id" = String, Path)), security(("api_key" = ["tenant:admin"])),
    responses((status = 200, body = ApiKey, description = "The revoked key")))]
pub async fn revoke(
    State(app): State<App>,
    Extension(id): Extension<RequestId>,
    Extension(caller): User,
    Path(key): Path<String>,
) -> Response {
    let answer = async {
        let key = known(&key)?;
        find(&app, &caller, key).await?;
        let revoked = app.engine.identity().revoke_api_key(key, caller.tenant.as_deref()).await.map_err(unavailable)?;
        app.identity.api_keys().forget(key);
        revoked.as_ref().map(render).ok_or(Fault::NotFound(Thing::ApiKey))
    };
    respond(answer.await, &id)
}

async fn find(app: &App, caller: &Caller, key: &str) -> Result<StoredKey, Fault> {
    let found = app.engine.identity().api_key(key, caller.tenant.as_deref()).await.map_err(unavailable)?;
    found.filter(|key| reaches(caller, key)).ok_or(Fault::NotFound(Thing::ApiKey))
}

/// A key of a higher role is out of reach, also one that happens to belong to the same tenant; so is one of another
/// owner. A role that nobody knows any more is for admins to clean up.
fn reaches(caller: &Caller, key: &StoredKey) -> bool {
    let within_role = Role::parse(&key.role).map_or(caller.role == Role::Admin, |role| role <= caller.role);
    let within_owner = caller.owner.as_deref().is_none_or(|own| key.owner.as_deref() == Some(own));
    within_role && within_owner
}

/// Not every store could be asked for any text.
fn known(key: &str) -> Result<&str, Fault> {
    validate::name(key, "id").map(|_| key).map_err(|_| Fault::NotFound(Thing::ApiKey))
}

fn render(key: &StoredKey) -> ApiKey {
    ApiKey {
        id: key.key_id.clone(),
        name: key.name.clone(),
        role: key.role.clone(),
        tenant: key.tenant.clone(),
        owner: key.owner.clone(),
        created_at: key.created_at.to_string(),
        created_by: key.created_by.clone(),
        expires_at: key.expires_at.map(|at| at.to_string()),
        revoked_at: key.revoked_at.map(|at| at.to_string()),
    }
}
