//! Which worker is called, and what every call carries.

use tenure_contract::worker_rpc::LeaseToken;

/// A worker as its heartbeats describe it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Target {
    pub worker_id: String,
    /// `http` or `https`: the scheme decides about TLS.
    pub rpc_url: String,
    pub capabilities: Capabilities,
}

/// What a worker knows beyond the contract.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities(u16);

/// Those that make a difference to calls.
const KNOWN: [&str; 10] = [
    "rpc_replay",
    "stream_terminal",
    "stream_files",
    "lease_renewal",
    "undrain",
    "stats",
    "snapshots",
    "interactive",
    "proxy",
    "token_ed25519",
];

impl Capabilities {
    /// From the list in a heartbeat. Words that mean nothing to calls are left out.
    pub fn of<T: AsRef<str>>(words: impl IntoIterator<Item = T>) -> Self {
        Self(words.into_iter().fold(0, |bits, word| bits | bit(word.as_ref())))
    }

    /// Everything that this client can make use of: a worker of the same version.
    pub fn all() -> Self {
        Self::of(KNOWN)
    }

    pub fn has(self, word: &str) -> bool {
        self.0 & bit(word) != 0
    }
}

fn bit(word: &str) -> u16 {
    KNOWN.iter().position(|known| *known == word).map_or(0, |index| 1 << index)
}

/// What every call carries.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// One for each logical call; a repeated call repeats it. `req-<uuid>`.
    pub request_id: &'a str,
    /// Sent with the methods that take one.
    pub lease: Option<&'a LeaseToken>,
}

impl<'a> Call<'a> {
    pub fn new(request_id: &'a str) -> Self {
        Self { request_id, lease: None }
    }

    #[must_use]
    pub fn with_lease(self, lease: &'a LeaseToken) -> Self {
        Self { lease: Some(lease), ..self }
    }
}

/// A new id of a request.
pub fn new_request_id() -> String {
    format!("req-{}", uuid::Uuid::new_v4())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_that_were_listed() {
        let some = Capabilities::of(["heartbeat", "stream_files", "proxy", "news"]);
        assert!(some.has("stream_files") && some.has("proxy"));
        assert!(!some.has("stats") && !some.has("news") && !some.has(""));
        assert!(KNOWN.iter().all(|word| Capabilities::all().has(word)));
        assert_eq!(Capabilities::of::<&str>([]), Capabilities::default());
    }

    #[test]
    fn request_ids_are_uuids_and_differ() {
        let (a, b) = (new_request_id(), new_request_id());
        assert_ne!(a, b);
        assert!(a.strip_prefix("req-").is_some_and(|id| id.parse::<uuid::Uuid>().is_ok()), "{a}");
    }
}
