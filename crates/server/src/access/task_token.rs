//! Tokens that name their task.
//!
//! The guard verifies such a token before the body is read, but the task that a request is about may be named only in
//! the body. So a token becomes a principal in two steps: [`Presented`] is a valid token of some task, which nothing can
//! be done with, and [`Presented::for_task`] makes a [`TaskBearer`] of it, which handlers act for. A rule whose
//! task is in the path takes both steps in the guard; one whose task is in the body leaves the second to the handler.
//! Only a request that names no task takes it from the token: [`Presented::bearer`].

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use axum::http::HeaderMap;
use tenure_core::TaskId;

use super::guard::bearer;
use crate::error::{Credential, Fault, Unavailable};
use crate::identity::task_keys::{SharedTaskKeys, Unverified};

/// The token of one attempt of one task. Each contract has a kind of its own, with its own audience and claims.
pub trait TaskToken: Sized {
    const CREDENTIAL: Credential;

    /// The token in the headers of a request.
    fn sent(headers: &HeaderMap) -> Result<&str, Fault> {
        bearer(headers).ok_or(Fault::MissingCredential(Self::CREDENTIAL))
    }

    /// Checks signature, audience and dates.
    fn verify(keys: &SharedTaskKeys, sent: &str) -> impl Future<Output = Result<Self, Unverified>> + Send;

    /// The task that the token is for.
    fn task(&self) -> TaskId;
}

/// A valid token, not yet compared with the task that the request names.
#[derive(Debug)]
pub struct Presented<T>(Arc<T>);

impl<T> Clone for Presented<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: TaskToken> Presented<T> {
    pub async fn verify(keys: Option<&SharedTaskKeys>, headers: &HeaderMap) -> Result<Self, Fault> {
        let sent = T::sent(headers)?;
        let keys = keys.ok_or(Fault::InvalidCredential(T::CREDENTIAL))?;
        let verified = T::verify(keys, sent).await.map_err(|reason| {
            tracing::debug!(%reason, "task token refused");
            match reason {
                Unverified::Refused(_) => Fault::InvalidCredential(T::CREDENTIAL),
                Unverified::KeysUnavailable => Unavailable::STORE.into(),
            }
        })?;
        Ok(Self(Arc::new(verified)))
    }

    /// The task of the token, for a request that may leave it out.
    pub fn named(&self) -> TaskId {
        self.0.task()
    }

    /// The bearer, for a request that names no task but that of its token.
    pub fn bearer(&self) -> TaskBearer<T> {
        TaskBearer(Arc::clone(&self.0))
    }

    /// The bearer, unless the token is for another task than the one that the request names.
    pub fn for_task(&self, named: TaskId) -> Option<TaskBearer<T>> {
        (self.0.task() == named).then(|| TaskBearer(Arc::clone(&self.0)))
    }
}

/// A principal: the holder of a valid token of the task that the request names.
#[derive(Debug)]
pub struct TaskBearer<T>(Arc<T>);

impl<T> Clone for TaskBearer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for TaskBearer<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use tenure_auth::{Access, CapabilityClaims, TaskClaims, TaskKeys, TokenError};
    use tenure_engine::Engine;

    use super::*;
    use crate::access::guard::unix_now;
    use crate::contracts::callback::CallbackToken;

    const TASK: &str = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    const OTHER: &str = "018c385a-9fb1-9509-0e89-33fe3b7b1aaa";

    /// A token whose task the body names, as the capability tokens of the dispatch contract are.
    #[derive(Debug)]
    struct Capability {
        task: TaskId,
        fence: u64,
    }

    impl TaskToken for Capability {
        const CREDENTIAL: Credential = Credential::TaskToken;

        async fn verify(keys: &SharedTaskKeys, sent: &str) -> Result<Self, Unverified> {
            let claims = keys.verify_capability(sent).await?.claims;
            let task = TaskId::parse(&claims.task_id).map_err(|_| TokenError::InvalidClaim("task_id"))?;
            Ok(Self { task, fence: claims.fence })
        }

        fn task(&self) -> TaskId {
            self.task
        }
    }

    fn task(text: &str) -> TaskId {
        TaskId::parse(text).unwrap()
    }

    fn capability(keys: &TaskKeys, issued_at_s: i64) -> String {
        let claims = CapabilityClaims {
            org_id: "o".to_owned(),
            task_id: TASK.to_owned(),
            attempt: 1,
            fence: 7,
            access: Access::Stored { capability_id: "c".to_owned() },
        };
        keys.issue_capability(&claims, issued_at_s, 60).unwrap().reveal().to_owned()
    }

    fn task_token(keys: &TaskKeys) -> String {
        let text = |text: &str| text.to_owned();
        let claims = TaskClaims {
            task_id: text(TASK),
            tenant_id: text("default"),
            workspace_id: text("default"),
            run_id: text("r"),
            attempt: 1,
            attempt_id: tenure_core::AttemptId::from_u128(5).to_string(),
        };
        keys.issue_task(&claims, unix_now(), 60).unwrap().reveal().to_owned()
    }

    fn headers(token: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        headers
    }

    struct Keys {
        shared: SharedTaskKeys,
        own: TaskKeys,
        engine: Engine,
        _folder: tempfile::TempDir,
    }

    async fn keys() -> Keys {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(&format!("sqlite:{}", folder.path().join("t.db").display())).await.unwrap();
        let own = TaskKeys::new("tenure", &TaskKeys::generate().unwrap()).unwrap();
        Keys { shared: SharedTaskKeys::new(engine.clone(), own.clone()), own, engine, _folder: folder }
    }

    async fn presented<T: TaskToken>(keys: &Keys, token: &str) -> Result<Presented<T>, Fault> {
        Presented::verify(Some(&keys.shared), &headers(token)).await
    }

    #[tokio::test]
    async fn a_token_makes_a_bearer_of_its_own_task_only() {
        let keys = keys().await;
        let token = capability(&keys.own, unix_now());
        let other = presented::<Capability>(&keys, &token).await.unwrap().for_task(task(OTHER));
        assert!(other.is_none());
        let bearer = presented::<Capability>(&keys, &token).await.unwrap().for_task(task(TASK)).unwrap();
        assert_eq!((bearer.task(), bearer.fence), (task(TASK), 7));
        let token = task_token(&keys.own);
        let other = presented::<CallbackToken>(&keys, &token).await.unwrap().for_task(task(OTHER));
        assert!(other.is_none());
        let bearer = presented::<CallbackToken>(&keys, &token).await.unwrap().for_task(task(TASK)).unwrap();
        assert_eq!(bearer.proof.attempt, 1);
        keys.engine.shutdown().await;
    }

    #[tokio::test]
    async fn signature_audience_and_expiry_are_checked_before_the_task_is_known() {
        let keys = keys().await;
        let invalid = Fault::InvalidCredential(Credential::TaskToken);
        let forger = TaskKeys::new("tenure", &TaskKeys::generate().unwrap()).unwrap();
        for (what, token) in [
            ("another kind of token", task_token(&keys.own)),
            ("a key that nobody registered", capability(&forger, unix_now())),
            ("expired", capability(&keys.own, unix_now() - 3600)),
            ("no token", "x".to_owned()),
        ] {
            assert_eq!(presented::<Capability>(&keys, &token).await.unwrap_err(), invalid, "{what}");
        }
        let token = capability(&keys.own, unix_now());
        assert_eq!(presented::<CallbackToken>(&keys, &token).await.unwrap_err(), invalid);
        let missing = Presented::<Capability>::verify(Some(&keys.shared), &HeaderMap::new()).await;
        assert_eq!(missing.unwrap_err(), Fault::MissingCredential(Credential::TaskToken));
        let without_keys = Presented::<Capability>::verify(None, &headers(&token)).await;
        assert_eq!(without_keys.unwrap_err(), invalid);
        keys.engine.shutdown().await;
    }
}
