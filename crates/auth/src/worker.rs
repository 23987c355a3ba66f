use std::collections::HashMap;

use crate::{AuthError, Secret};

/// What a worker sent to say who it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkerCredential<'a> {
    /// `X-Worker-ID`.
    pub id: Option<&'a str>,
    /// `X-Worker-Token`, or the bearer token.
    pub token: Option<&'a str>,
    /// `X-Trace-Worker-Token`: good for the shared token only.
    pub shared_token: Option<&'a str>,
}

/// A worker that was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// The id that the credential or the header names. Without one, the id in the body is taken as given.
    pub id: Option<String>,
    /// Let in by the shared token, or without any.
    shared: bool,
}

/// Which workers are let in.
#[derive(Debug, Clone, Default)]
pub struct WorkerAuth {
    /// `auth.worker_token`.
    pub shared: Option<Secret>,
    /// `auth.worker_tokens`: an entry here is the only token of that worker.
    pub per_worker: HashMap<String, Secret>,
    /// `auth.anonymous_workers`: everybody, without a token. Only for a loopback listener.
    pub anonymous: bool,
}

impl WorkerAuth {
    pub fn is_configured(&self) -> bool {
        self.anonymous || self.shared.is_some() || !self.per_worker.is_empty()
    }

    pub fn authenticate(&self, sent: WorkerCredential<'_>) -> Result<Worker, AuthError> {
        if !self.is_configured() {
            return Err(AuthError::NotConfigured);
        }
        let id = sent.id.map(str::trim).filter(|id| !id.is_empty());
        match (sent.token, sent.shared_token) {
            (None, None) if self.anonymous => Ok(Worker { id: id.map(ToOwned::to_owned), shared: true }),
            (None, None) => Err(AuthError::Missing),
            (Some(token), shared) => {
                // Two tokens that disagree leave open who is meant.
                if shared.is_some_and(|shared| shared != token) {
                    return Err(AuthError::Invalid);
                }
                self.by_token(id, token)
            }
            (None, Some(token)) => self.by_shared_token(id, token),
        }
    }

    fn by_token(&self, id: Option<&str>, token: &str) -> Result<Worker, AuthError> {
        if let Some(id) = id {
            return match self.per_worker.get(id) {
                Some(own) if own.matches(token) => Ok(Worker { id: Some(id.to_owned()), shared: false }),
                Some(_) => Err(AuthError::Invalid),
                None => self.by_shared_token(Some(id), token),
            };
        }
        // Without a header the token names its worker. All are compared, so that time does not tell which.
        let mut named = None;
        for (id, own) in &self.per_worker {
            if own.matches(token) {
                named = Some(id.clone());
            }
        }
        match named {
            Some(id) => Ok(Worker { id: Some(id), shared: false }),
            None => self.by_shared_token(None, token),
        }
    }

    fn by_shared_token(&self, id: Option<&str>, token: &str) -> Result<Worker, AuthError> {
        let matches = self.shared.as_ref().is_some_and(|shared| shared.matches(token));
        if !matches || id.is_some_and(|id| self.per_worker.contains_key(id)) {
            return Err(AuthError::Invalid);
        }
        Ok(Worker { id: id.map(ToOwned::to_owned), shared: true })
    }

    /// Whether this worker may speak as `body_id`. An id that has a token of its own needs that token.
    pub fn speaks_as(&self, worker: &Worker, body_id: &str) -> Result<bool, AuthError> {
        if worker.shared && self.per_worker.contains_key(body_id) {
            return Err(AuthError::Invalid);
        }
        Ok(worker.id.as_deref().is_none_or(|id| id == body_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth() -> WorkerAuth {
        WorkerAuth {
            shared: Secret::new("shared"),
            per_worker: HashMap::from([("w-1".to_owned(), Secret::new("own").unwrap())]),
            anonymous: false,
        }
    }

    fn sent<'a>(id: Option<&'a str>, token: Option<&'a str>) -> WorkerCredential<'a> {
        WorkerCredential { id, token, shared_token: None }
    }

    #[test]
    fn each_row_of_the_table() {
        let auth = auth();
        for (id, token, expected) in [
            (Some("w-1"), Some("own"), Ok(Some("w-1"))),
            (Some("w-1"), Some("shared"), Err(AuthError::Invalid)),
            (Some("w-2"), Some("shared"), Ok(Some("w-2"))),
            (Some("w-2"), Some("own"), Err(AuthError::Invalid)),
            (None, Some("own"), Ok(Some("w-1"))),
            (None, Some("shared"), Ok(None)),
            (None, Some("wrong"), Err(AuthError::Invalid)),
            (Some("w-2"), None, Err(AuthError::Missing)),
            (None, None, Err(AuthError::Missing)),
        ] {
            let found = auth.authenticate(sent(id, token)).map(|worker| worker.id);
            assert_eq!(found, expected.map(|id| id.map(ToOwned::to_owned)), "{id:?} {token:?}");
        }
    }

    #[test]
    fn the_header_of_the_dispatch_contract_takes_the_shared_token_only() {
        let auth = auth();
        let by = |token| auth.authenticate(WorkerCredential { shared_token: Some(token), ..Default::default() });
        assert!(by("shared").is_ok());
        assert_eq!(by("own"), Err(AuthError::Invalid));
        let both = WorkerCredential { token: Some("shared"), shared_token: Some("other"), id: None };
        assert_eq!(auth.authenticate(both), Err(AuthError::Invalid));
    }

    #[test]
    fn a_body_cannot_borrow_the_name_of_a_worker_with_its_own_token() {
        let auth = auth();
        let anybody = auth.authenticate(sent(None, Some("shared"))).unwrap();
        assert_eq!(auth.speaks_as(&anybody, "w-2"), Ok(true));
        assert_eq!(auth.speaks_as(&anybody, "w-1"), Err(AuthError::Invalid));
        let w1 = auth.authenticate(sent(None, Some("own"))).unwrap();
        assert_eq!(auth.speaks_as(&w1, "w-1"), Ok(true));
        assert_eq!(auth.speaks_as(&w1, "w-2"), Ok(false));
    }

    #[test]
    fn without_any_credential_nobody_is_let_in() {
        let none = WorkerAuth::default();
        assert_eq!(none.authenticate(sent(None, Some(""))), Err(AuthError::NotConfigured));
        let anonymous = WorkerAuth { anonymous: true, ..Default::default() };
        assert!(anonymous.authenticate(sent(None, None)).is_ok());
        assert_eq!(anonymous.authenticate(sent(None, Some("x"))), Err(AuthError::Invalid));
    }
}
