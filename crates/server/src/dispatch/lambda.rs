//! Tasks of `runtime: lambda`: functions on AWS Lambda are invoked with them.
//!
//! The grant is committed before the invocation, which then has the ids and the token of the attempt. A control plane that
//! dies in between leaves the delivery, which is repeated with the same ids while the lease lives. Done is what the
//! function reports, so that an invocation that happens twice is harmless: one report counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tenure_core::queue::{Push, QueueSettings};
use tenure_core::time::DurationMs;
use tenure_engine::dags::LAMBDA_URL;
use tenure_engine::delivery::{Courier, Handover, Outcome, Parcel};
use tenure_engine::transport::lambda::{InvokeError, Lambda, PAYLOAD_BYTES};

use super::Part;
use super::render::{AttemptNumber, work_payload};
use crate::contracts::dispatch::{issue_with, lease_token};
use crate::error::Fault;
use crate::identity::task_keys::SharedTaskKeys;

/// When an invocation that Lambda has no room for is tried again, and how long that may be put off.
const ROOM_AFTER: Duration = Duration::from_secs(2);
const ROOM_AFTER_MAX: Duration = Duration::from_secs(300);

/// Where functions are, and which one runs an operator.
#[derive(Debug, Clone)]
pub struct LambdaTarget {
    pub client: Lambda,
    /// By operator, by operator and language, or `*`.
    pub functions: BTreeMap<String, String>,
}

impl LambdaTarget {
    fn function(&self, operator: &str, language: Option<&str>) -> Option<&str> {
        function_of(&self.functions, operator, language)
    }
}

/// The function that runs an operator. `language` is that of its bundle.
fn function_of<'a>(functions: &'a BTreeMap<String, String>, operator: &str, language: Option<&str>) -> Option<&'a str> {
    let of_language = |name: &str| language.map(|language| format!("{name}.{language}"));
    let names = [of_language(operator), Some(operator.to_owned()), of_language("udf"), Some("*".to_owned())];
    names.into_iter().flatten().find_map(|name| functions.get(&name)).map(String::as_str)
}

/// Invokes functions with tasks.
#[derive(Debug)]
pub struct LambdaCourier {
    part: Arc<Part>,
    keys: Option<Arc<SharedTaskKeys>>,
}

impl LambdaCourier {
    pub fn new(part: Arc<Part>, keys: Option<Arc<SharedTaskKeys>>) -> Self {
        Self { part, keys }
    }

    fn target(&self) -> Result<&LambdaTarget, String> {
        self.part.config.lambda.as_ref().ok_or_else(|| {
            "functions cannot be invoked: set dispatch.lambda.region, or dispatch.lambda.endpoint_url".to_owned()
        })
    }

    async fn invoke(&self, parcel: &Parcel) -> Result<Outcome, Fault> {
        let (Ok(target), Some(keys)) = (self.target(), &self.keys) else { return Ok(Outcome::Withheld) };
        let grant = &parcel.grant;
        let task = self.part.job_task(&parcel.body).await?.ok_or(Fault::Internal)?;
        let operator = &task.job.definition.operator;
        let wire = self.part.wire(&task, AttemptNumber { attempt: grant.attempt, fence: grant.fence }).await?;
        let language = super::bundles::language(&wire);
        let Some(function) = target.function(operator, language.as_deref()) else {
            let message = format!("dispatch.lambda.functions has no entry for the operator '{operator}', and no '*'");
            return Ok(Outcome::Rejected { message });
        };
        let token = issue_with(&self.part, &keys.get(), &task, &wire)?;
        let mut payload = serde_json::to_value(&wire).map_err(|_| Fault::Internal)?;
        let work = serde_json::to_value(work_payload(&task, &wire)).map_err(|_| Fault::Internal)?;
        let fields = payload.as_object_mut().ok_or(Fault::Internal)?;
        fields.insert("lease_token".to_owned(), Value::String(lease_token(grant)));
        fields.insert("lease_expires_at".to_owned(), Value::String(grant.expires_at.to_string()));
        fields.insert("capability_token".to_owned(), Value::String(token));
        fields.insert("work_payload".to_owned(), work);
        let payload = payload.to_string();
        if payload.len() > PAYLOAD_BYTES {
            let message = format!("the payload has {} bytes, and Lambda takes {PAYLOAD_BYTES}", payload.len());
            return Ok(Outcome::Rejected { message });
        }
        Ok(match target.client.invoke(function, payload.as_bytes()).await {
            Ok(()) => Outcome::Accepted,
            Err(InvokeError::Throttled { after }) => Outcome::NoRoom {
                why: "Lambda has no room for another invocation".into(),
                after_ms: millis(after.unwrap_or(ROOM_AFTER).clamp(ROOM_AFTER, ROOM_AFTER_MAX)),
            },
            Err(error @ InvokeError::Unreachable(_)) => {
                tracing::warn!(task.id = %grant.task, function, %error, "cannot invoke a function");
                Outcome::Unreachable { why: error.to_string().into() }
            }
            Err(error @ InvokeError::Unavailable(_)) => {
                tracing::warn!(task.id = %grant.task, function, %error, "cannot invoke a function");
                Outcome::Failed
            }
            Err(error @ InvokeError::Refused { .. }) => {
                Outcome::Rejected { message: format!("function '{function}': {error}") }
            }
        })
    }
}

impl Courier for LambdaCourier {
    fn serves(&self, settings: &QueueSettings) -> bool {
        settings.push.as_ref().is_some_and(|push| &*push.url == LAMBDA_URL)
    }

    fn check(&self, _: &Push) -> Result<(), String> {
        if self.keys.is_none() {
            return Err("functions cannot be invoked: this server has no key for capability tokens".to_owned());
        }
        self.target().map(drop)
    }

    fn deliver(&self, parcel: Parcel) -> BoxFuture<'_, Handover> {
        async move {
            let outcome = self.invoke(&parcel).await.unwrap_or_else(|fault| {
                tracing::warn!(task.id = %parcel.grant.task, ?fault, "a task cannot be sent to its function now");
                Outcome::Withheld
            });
            outcome.into()
        }
        .boxed()
    }
}

fn millis(time: Duration) -> DurationMs {
    DurationMs::try_from(time.as_millis()).unwrap_or(DurationMs::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_looked_up_from_the_most_specific_name_on() {
        let mut names = vec!["score.python", "score", "udf.python", "*"];
        while let Some(first) = names.first() {
            let functions = names.iter().map(|name| ((*name).to_owned(), (*name).to_owned())).collect();
            assert_eq!(function_of(&functions, "score", Some("python")), Some(*first));
            // Another language, and code that is not of a bundle, look past the names with a language.
            let plain = names.iter().find(|name| !name.contains('.')).copied();
            assert_eq!(function_of(&functions, "score", Some("node")), plain);
            assert_eq!(function_of(&functions, "score", None), plain);
            names.remove(0);
        }
        assert_eq!(function_of(&BTreeMap::new(), "score", Some("python")), None);
    }
}
