//! Secrets that webhooks are signed with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_auth::Secret;
use tenure_engine::dags::Secrets;

use crate::live::Live;

/// Secrets by name: `NAME` for all organisations, `ORG/NAME` for one of them. What is set later holds from the next
/// delivery on.
#[derive(Debug, Clone, Default)]
pub struct DispatchSecrets(pub Live<BTreeMap<String, Secret>>);

impl DispatchSecrets {
    /// The secret that a source of an organisation means: its own before the one for all.
    pub fn get(&self, org: &str, name: &str) -> Option<Secret> {
        let secrets = self.0.get();
        let for_all = || secrets.get(name).filter(|_| !name.contains('/'));
        secrets.get(&format!("{org}/{name}")).or_else(for_all).cloned()
    }
}

impl Secrets for DispatchSecrets {
    fn names(&self, org: &str) -> BTreeSet<Arc<str>> {
        let secrets = self.0.get();
        let names = secrets.keys().filter_map(|name| match name.split_once('/') {
            None => Some(&**name),
            Some((owner, name)) => (owner == org).then_some(name),
        });
        names.map(Into::into).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_organisation_has_its_own_secrets_and_those_of_all() {
        let secret = |text: &str| Secret::new(text).unwrap();
        let map = [("hook", "all"), ("acme/hook", "acme"), ("acme/own", "own")];
        let map = map.map(|(name, text)| (name.to_owned(), secret(text))).into();
        let secrets = DispatchSecrets(Live::new(map));
        let reveal = |org, name| secrets.get(org, name).map(|secret| secret.reveal().to_owned());
        assert_eq!(reveal("acme", "hook").as_deref(), Some("acme"));
        assert_eq!(reveal("other", "hook").as_deref(), Some("all"));
        assert_eq!((reveal("other", "own"), reveal("other", "acme/hook")), (None, None));
        assert_eq!(secrets.names("other"), ["hook".into()].into());
        assert_eq!(secrets.names("acme"), ["hook".into(), "own".into()].into());
    }
}
