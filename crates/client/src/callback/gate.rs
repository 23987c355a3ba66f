//! What a worker takes from whom.

use std::collections::HashSet;

use reqwest::Url;
use subtle::{Choice, ConstantTimeEq};

use crate::http;

/// Everything that an envelope is held against before a word of it is acted on.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    /// Any of these. `None` accepts pushes without a secret.
    pub(crate) secrets: Option<Vec<Vec<u8>>>,
    pub(crate) scopes: HashSet<(String, String)>,
    /// Where tokens may be sent to, without the slash at the end.
    pub(crate) callback_urls: HashSet<String>,
}

impl Gate {
    /// Compares with all secrets, in a time that does not tell which one came close.
    pub(crate) fn admits_secret(&self, given: Option<&[u8]>) -> bool {
        let Some(secrets) = &self.secrets else { return true };
        let given = given.unwrap_or_default();
        secrets.iter().fold(Choice::from(0), |found, secret| found | secret.ct_eq(given)).into()
    }

    pub(crate) fn admits_scope(&self, tenant: &str, workspace: &str) -> bool {
        // Sets of pairs of owned texts cannot be asked with borrowed ones; there are few scopes.
        self.scopes.iter().any(|(t, w)| t == tenant && w == workspace)
    }

    /// The address, if tokens may be sent there.
    pub(crate) fn callback_url(&self, given: &str) -> Option<Url> {
        let url = http::parse_server(given).ok()?;
        self.callback_urls.contains(&plain(&url)?).then_some(url)
    }
}

/// An address in the one spelling in which two of them are compared. One with a user, a query or a fragment has none.
pub(crate) fn plain(url: &Url) -> Option<String> {
    let bare = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.has_host();
    bare.then(|| url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        let urls = ["https://tenure.example", "http://127.0.0.1:7423/base/"];
        Gate {
            secrets: Some(vec![b"one".to_vec(), b"two".to_vec()]),
            scopes: HashSet::from([("acme".to_owned(), "prod".to_owned())]),
            callback_urls: urls.iter().filter_map(|url| plain(&Url::parse(url).unwrap())).collect(),
        }
    }

    #[test]
    fn a_token_is_sent_to_listed_addresses_only() {
        for good in [
            "https://tenure.example",
            "https://TENURE.example/",
            "https://tenure.example:443",
            "http://127.0.0.1:7423/base",
        ] {
            assert!(gate().callback_url(good).is_some(), "{good}");
        }
        for bad in [
            "http://tenure.example",
            "https://tenure.example.evil.test",
            "https://tenure.example:444",
            "https://tenure.example/other",
            "https://user@tenure.example",
            "https://tenure.example?x=1",
            "https://tenure.example@evil.test",
            "http://127.0.0.1:7423",
            "tenure.example",
            "",
        ] {
            assert!(gate().callback_url(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn any_of_the_secrets_opens_and_nothing_else_does() {
        let gate = gate();
        assert!(gate.admits_secret(Some(b"one")) && gate.admits_secret(Some(b"two")));
        for wrong in [None, Some(&b""[..]), Some(b"on"), Some(b"onee"), Some(b"three")] {
            assert!(!gate.admits_secret(wrong), "{wrong:?}");
        }
        assert!(Gate::default().admits_secret(None));
    }

    #[test]
    fn tenant_and_workspace_count_together() {
        let gate = gate();
        assert!(gate.admits_scope("acme", "prod"));
        assert!(!gate.admits_scope("acme", "dev") && !gate.admits_scope("other", "prod"));
        assert!(!gate.admits_scope("prod", "acme"));
    }
}
