//! The configuration as it holds, without its secrets.

use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use tenure_contract::duration;
use tenure_tls::ClientAuth;

use super::config::Config;
use super::keys::{self, Key, Kind, Shape};
use super::settings::{Given, Settings, Value};
use super::store_url;

const MASK: &str = "***";

/// A key, what it is set to, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub key: &'static str,
    /// Absent: not set, and without a default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Json>,
    pub origin: String,
}

impl Shown {
    /// The value in one line.
    pub fn text(&self) -> String {
        let entry = |value: &Json| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        match &self.value {
            None => String::new(),
            Some(Json::Array(list)) => list.iter().map(entry).collect::<Vec<_>>().join(", "),
            Some(Json::Object(map)) => {
                map.iter().map(|(name, value)| format!("{name}={}", entry(value))).collect::<Vec<_>>().join(", ")
            }
            Some(value) => entry(value),
        }
    }
}

/// Every key with the value that holds. Secrets are masked, also in a DSN.
pub fn show(config: &Config) -> Vec<Shown> {
    let origin = |key: &Key| config.settings.origin(key.path).map_or_else(|| "default".to_owned(), ToString::to_string);
    keys::all().map(|key| Shown { key: key.path, value: value(config, key), origin: origin(key) }).collect()
}

fn value(config: &Config, key: &Key) -> Option<Json> {
    // Their defaults depend on other keys.
    let tls = config.server.tls.as_ref();
    if key.path == "server.tls.client_auth" && tls.is_some_and(|tls| tls.client_auth == ClientAuth::Required) {
        return Some(json!("required"));
    }
    if key.path == "auth.enabled" {
        return Some(json!(config.auth.enabled));
    }
    let mask = |text: &str| if key.kind.is_secret() { json!(MASK) } else { json!(text) };
    match effective(&config.settings, key)? {
        Value::List(list) => Some(list.iter().map(|text| mask(text)).collect()),
        Value::Map(map) => {
            Some(Json::Object(map.iter().map(|(name, text)| (name.clone(), mask(text))).collect::<Map<_, _>>()))
        }
        Value::Text(text) => Some(match key.kind {
            Kind::Dsn => json!(store_url::masked(&text)),
            Kind::Bool | Kind::FlagOrTexts => json!(text == "true"),
            Kind::Number => text.parse::<f64>().map_or_else(|_| json!(text), |number| json!(number)),
            Kind::Integer | Kind::Size => text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number)),
            _ => mask(&text),
        }),
    }
}

/// The value that holds, in the one form that equal values share. Not masked.
pub(crate) fn effective(settings: &Settings, key: &Key) -> Option<Value> {
    let path = key.path;
    match (settings.get(path), key.kind.shape()) {
        (None, Shape::List) => Some(Value::List(Vec::new())),
        (None, Shape::Map) => Some(Value::Map(std::collections::BTreeMap::new())),
        (Some(given), Shape::List | Shape::Map) => Some(given.value.clone()),
        (Some(Given { value: list @ Value::List(_), .. }), Shape::FlagOrList) => Some(list.clone()),
        (_, Shape::Text | Shape::FlagOrList) => {
            let text = settings.plain(path)?;
            // A configuration that was loaded has values of the right kind; others stay as they are.
            let canonical = match key.kind {
                Kind::Bool | Kind::FlagOrTexts => settings.flag(path).ok().map(|flag| flag.to_string()),
                Kind::Integer => settings.integer(path).ok().map(|number| number.to_string()),
                Kind::Number => settings.number(path).ok().map(|number| number.to_string()),
                Kind::Size => settings.size(path).ok().map(|bytes| bytes.to_string()),
                Kind::Duration => settings.duration(path).ok().map(duration::canonical),
                Kind::Choice(_) => settings.choice(path).ok().flatten().map(ToOwned::to_owned),
                _ => None,
            };
            Some(Value::Text(canonical.unwrap_or(text)))
        }
    }
}
