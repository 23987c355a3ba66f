//! Those who call: users with keys of every role, admins, workers.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tenure_auth::{Secret, UserAuth};
use tenure_engine::Engine;
use tenure_engine::store::Retention;
use tenure_server::{Access, ServerConfig};

use crate::harness::{Answer, Server, merge};

/// A header and what stands in it.
pub type Header<'a> = (&'a str, &'a str);

pub const ADMIN: Header<'_> = ("X-Admin-API-Key", "the-admin-key");
pub const USER: Header<'_> = ("X-API-Key", "the-user-key");

pub fn key(text: &str) -> Header<'_> {
    ("X-API-Key", text)
}

/// Turns authentication of users on, with the two keys of the configuration.
pub fn with_users(server: &Server) {
    set(server, |access| {
        access.users = UserAuth {
            enabled: true,
            api_key: Secret::new(USER.1),
            admin_api_key: Secret::new(ADMIN.1),
            ..UserAuth::default()
        };
    });
}

/// The same store behind a server that is set up differently.
pub async fn restarted(mut server: Server, change: impl FnOnce(&Engine, &mut ServerConfig)) -> Server {
    server.stop().await;
    let (home, clock) = (Arc::clone(&server.home), Arc::clone(&server.clock));
    let mut config = server.config.clone();
    drop(server);
    let set_up = |engine: &Engine| {
        change(engine, &mut config);
        config
    };
    Server::start_with(home, Retention::default(), clock, set_up).await
}

/// Changes who is let in, while the server runs.
pub fn set(server: &Server, change: impl FnOnce(&mut Access)) {
    server.config.access.update(change);
}

/// An API key that was made over the API: its id and its text.
#[derive(Debug, Clone)]
pub struct Key {
    pub id: String,
    pub text: String,
}

impl Key {
    pub fn header(&self) -> Header<'_> {
        key(&self.text)
    }
}

/// An admin makes a key.
pub async fn made(server: &Server, asked: Value) -> Key {
    let mut body = json!({"name": "a key of the tests"});
    merge(&mut body, asked);
    let made = server.call(Method::POST, "/api/v1/admin/api-keys", &[ADMIN], Some(&body)).await;
    assert_eq!(made.status.as_u16(), 201, "{}", made.body);
    let text = |name: &str| made.body[name].as_str().unwrap().to_owned();
    Key { id: text("id"), text: text("key") }
}

pub async fn get(server: &Server, who: &[Header<'_>], path: &str) -> Answer {
    server.call(Method::GET, path, who, None).await
}

pub async fn post(server: &Server, who: &[Header<'_>], path: &str, body: Value) -> Answer {
    server.call(Method::POST, path, who, Some(&body)).await
}

pub async fn put(server: &Server, who: &[Header<'_>], path: &str, body: Value) -> Answer {
    server.call(Method::PUT, path, who, Some(&body)).await
}

pub async fn patch(server: &Server, who: &[Header<'_>], path: &str, body: Value) -> Answer {
    server.call(Method::PATCH, path, who, Some(&body)).await
}

pub async fn delete(server: &Server, who: &[Header<'_>], path: &str) -> Answer {
    server.call(Method::DELETE, path, who, None).await
}

/// Submits a task and gives its id.
pub async fn submit(server: &Server, who: &[Header<'_>], task: Value) -> String {
    let mut body = json!({"queue": "q", "operator": "op"});
    merge(&mut body, task);
    post(server, who, "/api/v1/tasks", body).await.ok()["task_id"].as_str().unwrap().to_owned()
}

/// Status and word of an answer.
pub fn said(answer: &Answer) -> (u16, &str) {
    (answer.status.as_u16(), answer.body["error"].as_str().unwrap_or_default())
}

/// The field of every item of a page, in order.
pub fn column(page: &Value, field: &str) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|item| item[field].as_str().unwrap().to_owned()).collect()
}
