//! The envelope of a push.

use tenure_auth::{Secret, TaskClaims, TaskKeys};
use tenure_contract::Json;
use tenure_contract::callback::{Resources, TaskEnvelope};
use tenure_core::command::claim::Grant;
use tenure_core::id::dispatch_id;
use tenure_core::limits;
use tenure_core::queue::Push;
use tenure_core::task::Body;
use tenure_core::time::{DurationMs, Timestamp};

/// What a token of this attempt is for.
pub fn claims(grant: &Grant, body: &Body) -> TaskClaims {
    TaskClaims {
        task_id: grant.task.to_ulid_text(),
        tenant_id: body.tenant.to_string(),
        workspace_id: body.workspace.to_string(),
        run_id: body.run_id().to_string(),
        attempt: grant.attempt,
        attempt_id: grant.attempt_id.to_string(),
    }
}

/// How long the tokens of an attempt live: as long as was asked for, else an hour, or more where its longest run needs
/// more.
pub fn token_ttl_s(body: &Body, push: &Push, granted_at: Timestamp) -> u32 {
    let asked = body.envelope.as_ref().and_then(|envelope| envelope.token_ttl_ms);
    let needed = || limits::TOKEN_TTL_MS_DEFAULT.max(body.spec.token_need_ms(push, granted_at));
    let ms = asked.unwrap_or_else(needed).clamp(1_000, limits::TOKEN_TTL_MS_MAX);
    // Rounded up: a token that falls short by a fraction of a second falls short.
    u32::try_from((ms + 999) / 1_000).unwrap_or(u32::MAX)
}

/// Signs a token for one delivery, good from `now_s` on. Gives it with the second at which it expires.
pub fn token(
    keys: &TaskKeys,
    grant: &Grant,
    body: &Body,
    push: &Push,
    now_s: i64,
) -> Result<(Secret, i64), tenure_auth::IssueError> {
    let ttl_s = token_ttl_s(body, push, grant.granted_at);
    let token = keys.issue_task(&claims(grant, body), now_s, ttl_s)?;
    Ok((token, now_s + i64::from(ttl_s)))
}

/// What stands in an envelope beside the attempt.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    pub queue: &'a str,
    pub base_url: &'a str,
    pub token: &'a Secret,
    pub token_expires_at: Timestamp,
}

pub fn envelope(grant: &Grant, body: &Body, around: &Around<'_>) -> TaskEnvelope {
    let run = body.run_id();
    let asked = body.envelope.as_deref();
    let usual = Resources::default();
    let ready_at = grant.delivery.as_ref().map_or(grant.granted_at, |delivery| delivery.ready_at);
    TaskEnvelope {
        task_id: grant.task.to_ulid_text(),
        run_id: run.to_string(),
        asset_id: asked.and_then(|asked| asked.asset_id.as_deref()).unwrap_or(&body.operator).to_owned(),
        task_key: body.task_key().to_string(),
        tenant_id: body.tenant.to_string(),
        workspace_id: body.workspace.to_string(),
        attempt: grant.attempt,
        attempt_id: grant.attempt_id.to_string(),
        dispatch_id: dispatch_id(run.as_u128(), grant.task.as_u128(), grant.attempt),
        fence: grant.fence.0,
        partition_key: asked.and_then(|asked| asked.partition_key.as_deref()).map(ToOwned::to_owned),
        execution_location_id: asked.and_then(|asked| asked.execution_location_id.as_deref()).map(ToOwned::to_owned),
        resources: Resources {
            memory_bytes: asked.and_then(|asked| asked.memory_bytes).unwrap_or(usual.memory_bytes),
            cpu_millicores: asked.and_then(|asked| asked.cpu_millicores).unwrap_or(usual.cpu_millicores),
            timeout_ms: u64::try_from(body.spec.timeout_ms()).unwrap_or(usual.timeout_ms),
        },
        payload: Json::from_trusted(std::sync::Arc::clone(&body.payload)),
        enqueued_at: ready_at.to_string(),
        deadline: grant.deadline.map(|at| at.to_string()),
        callback_base_url: around.base_url.to_owned(),
        task_token: around.token.reveal().to_owned(),
        token_expires_at: around.token_expires_at.to_string(),
        lease_expires_at: grant.expires_at.to_string(),
        heartbeat_interval_ms: small(grant.heartbeat_ms),
        heartbeat_timeout_ms: small(grant.lease_ttl_ms),
        cancel_grace_period_ms: small(body.spec.cancel_grace_ms()),
        traceparent: body.traceparent.as_deref().map(ToOwned::to_owned),
        worker_queue: Some(around.queue.to_owned()),
        heartbeat_timeout_sec: Some(small(grant.lease_ttl_ms / 1_000)),
        previous_progress: grant.checkpoint.clone().map(Json::from_trusted),
    }
}

fn small(ms: DurationMs) -> u32 {
    u32::try_from(ms).unwrap_or(if ms < 0 { 0 } else { u32::MAX })
}

#[cfg(test)]
pub mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tenure_core::id::{AttemptId, Fence, LeaseToken, RunId, TaskId, ulid};
    use tenure_core::queue::{QueueId, Transport};
    use tenure_core::run::InRun;
    use tenure_core::task::{EnvelopeSpec, PushProgress, Spec};

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_736_935_200_000 + ms)
    }

    fn push() -> Push {
        Push::to("https://worker.example/dispatch".into())
    }

    fn body(spec: Spec, envelope: Option<EnvelopeSpec>) -> Body {
        Body {
            id: TaskId::parse("task_01HGW5N7XHJM4GX29KZRXQP6N9").unwrap(),
            queue: QueueId(1),
            operator: "extract".into(),
            tenant: "acme".into(),
            owner: None,
            workspace: "prod".into(),
            priority: 5,
            payload: r#"{"day": "2025-01-15", "n": 1.0}"#.into(),
            spec,
            tags: Default::default(),
            idempotency: None,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            submitted_by: None,
            envelope: envelope.map(Arc::new),
            created_at: at(-5_000),
            run_at: at(-5_000),
            run: None,
        }
    }

    fn grant(body: &Body) -> Grant {
        Grant {
            task: body.id,
            queue: body.queue,
            attempt: 2,
            attempt_id: AttemptId::parse("att_01HGW5N7XHJM4GX29KZRXQP6NA").unwrap(),
            token: LeaseToken::from_u128(1),
            fence: Fence(7),
            message: 1,
            lease_ttl_ms: 90_500,
            heartbeat_ms: 30_000,
            deadline: body.spec.deadline,
            checkpoint: Some(r#"{"rows":5}"#.into()),
            transport: Transport::Embedded,
            receipt: None,
            repeatable: false,
            granted_at: at(0),
            expires_at: at(300_000),
            delivery: Some(Box::new(PushProgress::granted(at(-1_500), &push(), at(0)))),
            body: None,
        }
    }

    fn keys() -> TaskKeys {
        TaskKeys::new("tenure", &TaskKeys::generate().unwrap()).unwrap()
    }

    fn made(body: &Body) -> (Value, TaskKeys, String) {
        let (keys, grant) = (keys(), grant(body));
        let now_s = at(0).as_millis() / 1000;
        let (token, expires_s) = token(&keys, &grant, body, &push(), now_s).unwrap();
        let token_expires_at = Timestamp::from_millis(expires_s * 1000);
        let around = Around { queue: "etl", base_url: "https://api.arco.dev", token: &token, token_expires_at };
        let text = serde_json::to_value(envelope(&grant, body, &around)).unwrap();
        (text, keys, token.reveal().to_owned())
    }

    #[test]
    fn every_field_of_the_contract_is_there_and_no_null() {
        let spec = Spec { deadline: Some(at(7_200_000)), timeout_ms: Some(600_000), ..Spec::default() };
        let asked = EnvelopeSpec {
            asset_id: Some("raw.events".into()),
            partition_key: Some("day=2025-01-15, hour=7".into()),
            execution_location_id: Some("eu-west-1/etl".into()),
            memory_bytes: Some(1 << 30),
            ..EnvelopeSpec::default()
        };
        let (found, _, token) = made(&body(spec, Some(asked)));
        let expected = json!({
            "taskId": "task_01HGW5N7XHJM4GX29KZRXQP6N9", "runId": "run_01HGW5N7XHJM4GX29KZRXQP6N9",
            "assetId": "raw.events", "taskKey": "extract", "tenantId": "acme", "workspaceId": "prod",
            "attempt": 2, "attemptId": "att_01HGW5N7XHJM4GX29KZRXQP6NA",
            "dispatchId": dispatch_id(body(spec, None).id.as_u128(), body(spec, None).id.as_u128(), 2),
            "fence": 7, "partitionKey": "day=2025-01-15, hour=7", "executionLocationId": "eu-west-1/etl",
            "resources": {"memoryBytes": 1_073_741_824, "cpuMillicores": 1000, "timeoutMs": 600_000},
            "payload": {"day": "2025-01-15", "n": 1.0},
            "enqueuedAt": "2025-01-15T09:59:58.500Z", "deadline": "2025-01-15T12:00:00Z",
            "callbackBaseUrl": "https://api.arco.dev", "taskToken": token,
            "tokenExpiresAt": "2025-01-15T11:00:00Z", "leaseExpiresAt": "2025-01-15T10:05:00Z",
            "heartbeatIntervalMs": 30_000, "heartbeatTimeoutMs": 90_500, "cancelGracePeriodMs": 30_000,
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "workerQueue": "etl", "heartbeatTimeoutSec": 90, "previousProgress": {"rows": 5},
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn what_was_not_asked_for_has_the_defaults_or_is_left_out() {
        let body = Body { payload: "{}".into(), traceparent: None, ..body(Spec::default(), None) };
        let (found, ..) = made(&body);
        assert_eq!((&found["assetId"], &found["payload"]), (&json!("extract"), &json!({})));
        let usual = json!({"memoryBytes": 536_870_912, "cpuMillicores": 1000, "timeoutMs": 3_600_000});
        assert_eq!(found["resources"], usual);
        for absent in ["deadline", "traceparent", "partitionKey", "executionLocationId"] {
            assert!(found.get(absent).is_none(), "{absent}");
        }
    }

    #[test]
    fn a_task_of_a_run_names_its_run_and_its_key() {
        let run = RunId::from_u128(ulid::decode("01HGW5N7XHJM4GX29KZRXQP6N8").unwrap());
        let body = Body { run: Some(InRun { run, key: "load".into() }), ..body(Spec::default(), None) };
        let (found, keys, token) = made(&body);
        assert_eq!((&found["runId"], &found["taskKey"]), (&json!("run_01HGW5N7XHJM4GX29KZRXQP6N8"), &json!("load")));
        assert_eq!(found["dispatchId"], dispatch_id(run.as_u128(), body.id.as_u128(), 2));
        let claims = keys.verify_task(&token, at(0).as_millis() / 1000).unwrap().claims;
        assert_eq!(claims.run_id, "run_01HGW5N7XHJM4GX29KZRXQP6N8");
    }

    #[test]
    fn the_token_is_for_this_attempt_alone() {
        let body = body(Spec::default(), None);
        let (_, keys, token) = made(&body);
        let found = keys.verify_task(&token, at(0).as_millis() / 1000).unwrap();
        assert_eq!(found.claims, claims(&grant(&body), &body));
        assert_eq!(found.claims.attempt, 2);
    }

    #[test]
    fn a_token_lives_as_long_as_the_attempt_can_need_it() {
        let hour = Spec { timeout_ms: Some(3_600_000), ..Spec::default() };
        let short = Spec { timeout_ms: Some(60_000), ..Spec::default() };
        let ends = Spec { deadline: Some(at(60_000)), ..hour };
        let odd = Spec { timeout_ms: Some(3_600_001), ..Spec::default() };
        let asked = |ms| Some(EnvelopeSpec { token_ttl_ms: Some(ms), ..EnvelopeSpec::default() });
        for (what, spec, envelope, expected) in [
            ("time-out, dispatch and cancel grace", hour, None, 3_600 + 300 + 30),
            ("an hour at the least", short, None, 3_600),
            ("no longer than its deadline needs", ends, None, 3_600),
            ("rounded up", odd, None, 3_931),
            ("what was asked for", short, asked(600_000), 600),
            ("never above the maximum", short, asked(99_999_000), 7_200),
        ] {
            assert_eq!(token_ttl_s(&body(spec, envelope), &push(), at(0)), expected, "{what}");
        }
    }
}
