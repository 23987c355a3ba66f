//! Settings in environment variables: `TENURE_` and the path in upper case, with `__` between levels.

use std::ffi::OsString;

use super::error::{ConfigError, Origin};
use super::keys::{self, Place, Shape};
use super::settings::{Given, Value};

const PREFIX: &str = "TENURE_";
const LEVEL: &str = "__";
/// Of variables that the profile `stacyvm` reads.
const LEGACY: &str = "STACYVM_";

/// Reads the variables that set keys. Others without `__`, such as `TENURE_SERVER`, belong to single commands.
pub(crate) fn parse(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Vec<Given>, ConfigError> {
    let named = variables.into_iter().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    named.filter_map(|(name, value)| path_of(&name).map(|path| given(name, &path, value))).collect()
}

/// The variables of StacyVM: the path in upper case, with `_` between levels. Unknown ones belong to others, and an empty
/// one says nothing.
pub(crate) fn parse_legacy(variables: &[(String, OsString)]) -> Result<Vec<Given>, ConfigError> {
    let known = variables.iter().filter(|(_, value)| !value.is_empty()).filter_map(|(name, value)| {
        let rest = name.strip_prefix(LEGACY)?;
        let rest =
            rest.strip_prefix("PROVIDERS_MOCK_").map_or(rest.to_owned(), |rest| format!("PROVIDERS_PROCESS_{rest}"));
        let key = keys::all().find(|key| key.path.replace('.', "_").to_ascii_uppercase() == rest)?;
        Some(given(name.clone(), key.path, value.clone()))
    });
    known.collect()
}

/// Those among all variables.
pub(crate) fn legacy(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(String, OsString)> {
    let named = variables.into_iter().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    named.filter(|(name, _)| name.starts_with(LEGACY)).collect()
}

fn path_of(name: &str) -> Option<String> {
    let path = name.strip_prefix(PREFIX)?;
    let key = path.replace(LEVEL, ".").to_ascii_lowercase();
    (path.contains(LEVEL) || keys::find(&key).is_some()).then_some(key)
}

/// The variable that sets a key.
pub(crate) fn name_of(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', LEVEL).to_ascii_uppercase())
}

fn given(name: String, path: &str, value: OsString) -> Result<Given, ConfigError> {
    let origin = Origin::Env(name);
    let wrong = |key: &str, origin: &Origin, problem: &str| ConfigError::Value {
        key: key.to_owned(),
        origin: origin.clone(),
        problem: problem.to_owned(),
    };
    let key = match keys::place(path) {
        Place::Key(key) => key,
        Place::Section | Place::Foreign(_) | Place::Nowhere => {
            let nearest = keys::nearest(path);
            return Err(ConfigError::UnknownKey { key: path.to_owned(), origin, nearest });
        }
    };
    let text = value.into_string().map_err(|_| wrong(path, &origin, "is no UTF-8"))?;
    let value = match key.kind.shape() {
        Shape::Text => Value::Text(text),
        Shape::FlagOrList if is_flag(&text) => Value::Text(text),
        Shape::List | Shape::FlagOrList => Value::List(list(&text)),
        Shape::Map => {
            let map = serde_json::from_str(&text)
                .map_err(|_| wrong(path, &origin, "must be a JSON object of strings, such as {\"name\":\"value\"}"))?;
            Value::Map(map)
        }
    };
    Ok(Given { key, value, origin })
}

fn is_flag(text: &str) -> bool {
    text.trim().eq_ignore_ascii_case("true") || text.trim().eq_ignore_ascii_case("false")
}

/// Entries between commas. Nothing at all is a list without entries.
fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Vec<Given>, String> {
        parse([(name.into(), value.into())]).map_err(|error| error.to_string())
    }

    #[test]
    fn names_lead_to_keys() {
        let given = read("TENURE_AUTH__WORKER_TOKEN", "t").unwrap();
        assert_eq!(given[0].key.path, "auth.worker_token");
        assert_eq!(name_of("auth.worker_token"), "TENURE_AUTH__WORKER_TOKEN");
        assert!(matches!(&given[0].value, Value::Text(text) if text == "t"));
    }

    #[test]
    fn every_key_has_a_name_of_its_own_in_the_other_way_of_writing() {
        let names: std::collections::BTreeSet<_> = keys::all().map(|key| key.path.replace('.', "_")).collect();
        assert_eq!(names.len(), keys::all().count());
        let read = |name: &str, value: &str| parse_legacy(&[(name.to_owned(), value.into())]).unwrap();
        for (name, path) in [
            ("STACYVM_AUTH_WORKER_TOKEN", "auth.worker_token"),
            ("STACYVM_WORKER_RPC_TLS_ENABLED", "worker.rpc_tls.enabled"),
            ("STACYVM_PROVIDERS_MOCK_ENABLED", "providers.process.enabled"),
        ] {
            assert_eq!(read(name, "true")[0].key.path, path);
            assert!(read(name, "").is_empty(), "{name}");
        }
        assert!(read("STACYVM_API_KEY", "k").is_empty() && read("STACYVM_NEW_THING", "x").is_empty());
    }

    #[test]
    fn maps_are_json() {
        let given = read("TENURE_AUTH__WORKER_TOKENS", r#"{"w-1":"t"}"#).unwrap();
        assert!(matches!(&given[0].value, Value::Map(map) if map["w-1"] == "t"));
        let message = read("TENURE_AUTH__WORKER_TOKENS", "hunter2").unwrap_err();
        assert!(message.contains("must be a JSON object") && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn lists_have_commas() {
        let given = read("TENURE_AUTH__OIDC_ADMIN_GROUPS", " a, b c,,").unwrap();
        assert!(matches!(&given[0].value, Value::List(list) if *list == ["a", "b c"]));
        let given = read("TENURE_AUTH__OIDC_ADMIN_GROUPS", "").unwrap();
        assert!(matches!(&given[0].value, Value::List(list) if list.is_empty()));
    }

    #[test]
    fn other_variables_are_left_alone_and_unknown_keys_are_not() {
        assert!(read("TENURE_SERVER", "http://x").unwrap().is_empty());
        assert_eq!(read("TENURE_COMPAT", "stacyvm").unwrap()[0].key.path, "compat");
        assert!(read("PATH", "/bin").unwrap().is_empty());
        assert_eq!(
            read("TENURE_SERVER__PROT", "1").unwrap_err(),
            "the variable TENURE_SERVER__PROT: unknown key `server.prot`; did you mean `server.port`?"
        );
    }
}
