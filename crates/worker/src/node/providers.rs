use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_sandbox::Provider;

use super::error::NodeError;

/// The providers that this worker has loaded.
#[derive(Debug, Clone, Default)]
pub struct Providers {
    default: String,
    loaded: BTreeMap<&'static str, Arc<dyn Provider>>,
}

impl Providers {
    pub fn new(default: &str, loaded: impl IntoIterator<Item = Arc<dyn Provider>>) -> Self {
        let loaded = loaded.into_iter().map(|provider| (provider.name(), provider)).collect();
        Self { default: canonical(default).to_owned(), loaded }
    }

    pub fn is_empty(&self) -> bool {
        self.loaded.is_empty()
    }

    /// The provider of this name; a blank name means the default one.
    pub fn get(&self, name: &str) -> Result<&Arc<dyn Provider>, NodeError> {
        if self.loaded.is_empty() {
            return Err(NodeError::NoProviders);
        }
        let wanted = match name.trim() {
            "" => self.default.as_str(),
            name => canonical(name),
        };
        self.loaded.get(wanted).ok_or_else(|| NodeError::UnknownProvider(wanted.to_owned()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.loaded.values()
    }
}

/// `mock` is what other implementations of the contract call `process`.
fn canonical(name: &str) -> &str {
    match name {
        "mock" => "process",
        name => name,
    }
}
