//! The `push` block of a queue, checked.

use std::sync::Arc;
use std::time::Duration;

use tenure_contract::user::{PushSettings, QueuePush};
use tenure_core::command::Reach;
use tenure_core::limits;
use tenure_core::queue::Push;
use tenure_core::sandbox::template::check_name;
use tenure_outbound::OutboundError;
use tenure_outbound::header::HeaderName;

use super::courier::is_taken;
use super::targets::PushTargets;
use crate::error::Fault;
use crate::validate::{text_of, within};

/// A resolver that is slow says nothing here: the name is judged again with every push.
const LOOKUP: Duration = Duration::from_secs(2);
/// Whose a name without a tenant is.
const DEFAULT_TENANT: &str = "default";

/// Checks a block against the limits and against what the configuration has.
pub async fn block(wire: &PushSettings, targets: Option<&PushTargets>, reach: &Reach) -> Result<Push, Fault> {
    if wire.url.starts_with("sandbox:") {
        return in_sandboxes(wire);
    }
    let Some(targets) = targets else {
        return Err(Fault::invalid("push", "this control plane does not push tasks"));
    };
    if targets.base_url.is_none() {
        let message = "workers need an address to report to: set callback.base_url in the configuration";
        return Err(Fault::invalid("push", message));
    }
    let push = plain(wire)?;
    if let Some(name) = &push.secret_ref {
        named(name, targets.secrets.contains_key(&**name), reach, "push.secret_ref", "push.secrets")?;
    }
    if let Some(name) = &push.mtls_ref {
        named(name, targets.mtls.contains_key(&**name), reach, "push.mtls_ref", "push.mtls")?;
    }
    guard(&push.url, targets).await?;
    Ok(push)
}

/// Of a queue whose tasks this control plane runs in sandboxes.
fn in_sandboxes(wire: &PushSettings) -> Result<Push, Fault> {
    for (is_given, field) in [
        (wire.secret_ref.is_some(), "push.secret_ref"),
        (wire.secret_header.is_some(), "push.secret_header"),
        (wire.mtls_ref.is_some(), "push.mtls_ref"),
    ] {
        if is_given {
            return Err(Fault::invalid(field, "has no meaning for a queue that runs its tasks in sandboxes"));
        }
    }
    let push = plain(wire)?;
    let template = push.sandbox_template().unwrap_or_default();
    if !template.is_empty() && check_name(template).is_err() {
        return Err(Fault::invalid("push.url", "must be sandbox: or sandbox: and the name of a template"));
    }
    Ok(push)
}

/// What can be told without the configuration.
fn plain(wire: &PushSettings) -> Result<Push, Fault> {
    let url = text_of(&wire.url, "push.url", limits::PUSH_URL_BYTES)?;
    let reference = |text: &Option<String>, field: &str| {
        text.as_deref().map(|text| text_of(text, field, limits::NAME_BYTES)).transpose()
    };
    let number = |given: Option<i64>, default: i64, min: i64, max: i64, field: &str| {
        given.map_or(Ok(default), |value| within(value, min, max, field))
    };
    if wire.rate_per_second.is_some_and(|rate| !(1e-3..=1e6).contains(&rate)) {
        return Err(Fault::invalid("push.rate_per_second", "must be from 0.001 to 1000000"));
    }
    let concurrency = number(
        wire.concurrency,
        limits::PUSH_CONCURRENCY_DEFAULT.into(),
        1,
        limits::PUSH_CONCURRENCY_MAX.into(),
        "push.concurrency",
    )?;
    Ok(Push {
        url,
        secret_ref: reference(&wire.secret_ref, "push.secret_ref")?,
        secret_header: secret_headers(wire)?,
        mtls_ref: reference(&wire.mtls_ref, "push.mtls_ref")?,
        concurrency: u32::try_from(concurrency).unwrap_or(limits::PUSH_CONCURRENCY_MAX),
        rate_per_second: wire.rate_per_second,
        ack_timeout_ms: number(
            wire.ack_timeout_ms,
            limits::PUSH_ACK_MS_DEFAULT,
            limits::PUSH_ACK_MS_MIN,
            limits::PUSH_ACK_MS_MAX,
            "push.ack_timeout_ms",
        )?,
        start_timeout_ms: number(
            wire.start_timeout_ms,
            limits::PUSH_START_MS_DEFAULT,
            limits::PUSH_START_MS_MIN,
            limits::PUSH_DISPATCH_MS_MAX,
            "push.start_timeout_ms",
        )?,
        dispatch_timeout_ms: number(
            wire.dispatch_timeout_ms,
            limits::PUSH_DISPATCH_MS_DEFAULT,
            limits::PUSH_DISPATCH_MS_MIN,
            limits::PUSH_DISPATCH_MS_MAX,
            "push.dispatch_timeout_ms",
        )?,
    })
}

/// The headers that carry the secret. What a push sends there already cannot be replaced by it.
fn secret_headers(wire: &PushSettings) -> Result<Vec<Arc<str>>, Fault> {
    let refuse = |message: &str| Err(Fault::invalid("push.secret_header", message));
    let Some(names) = &wire.secret_header else { return Ok(Vec::new()) };
    if wire.secret_ref.is_none() {
        return refuse("has no meaning without push.secret_ref");
    }
    if names.is_empty() || names.len() > limits::SECRET_HEADERS {
        return refuse(&format!("must have 1 to {} names", limits::SECRET_HEADERS));
    }
    let mut seen = Vec::new();
    for name in names {
        let valid = HeaderName::from_bytes(name.as_bytes()).ok().filter(|_| name.len() <= limits::NAME_BYTES);
        let Some(header) = valid else { return refuse("must be a list of names of headers") };
        if is_taken(&header) {
            return refuse(&format!("cannot be {header}: a push needs this header for itself"));
        }
        if seen.contains(&header) {
            return refuse(&format!("names {header} twice"));
        }
        seen.push(header);
    }
    Ok(names.iter().map(|name| name.as_str().into()).collect())
}

/// A tenant that could name the secret of another would have it sent to an address of its own. What it may not name is
/// as if it did not exist.
fn named(name: &Arc<str>, exists: bool, reach: &Reach, field: &str, setting: &str) -> Result<(), Fault> {
    let owner = name.split_once('/').map_or(DEFAULT_TENANT, |(tenant, _)| tenant);
    let may = reach.tenant().is_none_or(|tenant| tenant == owner);
    if exists && may {
        return Ok(());
    }
    Err(Fault::invalid(field, &format!("{setting} has no such name for your tenant")))
}

async fn guard(url: &str, targets: &PushTargets) -> Result<(), Fault> {
    let refuse = |message: String| Err(Fault::invalid("push.url", &message));
    if url.contains('#') {
        return refuse("must not contain #: workers would not see what follows".to_owned());
    }
    if let Err(refused) = targets.client.check_url(url) {
        return refuse(refused.to_string());
    }
    match tokio::time::timeout(LOOKUP, targets.client.resolve(url)).await {
        Ok(Err(OutboundError::Refused(refused))) => refuse(refused.to_string()),
        // A name without an address is no danger, and may have one by the time of the first push.
        _ => Ok(()),
    }
}

/// As the API shows it: every default filled in.
pub fn shown(push: &Push) -> QueuePush {
    QueuePush {
        url: push.url.to_string(),
        secret_ref: push.secret_ref.as_deref().map(ToOwned::to_owned),
        secret_header: match push.secret_ref {
            Some(_) => push.secret_headers().map(ToOwned::to_owned).collect(),
            None => Vec::new(),
        },
        mtls_ref: push.mtls_ref.as_deref().map(ToOwned::to_owned),
        concurrency: push.concurrency,
        rate_per_second: push.rate_per_second,
        ack_timeout_ms: push.ack_timeout_ms,
        start_timeout_ms: push.start_timeout_ms,
        dispatch_timeout_ms: push.dispatch_timeout_ms,
    }
}

#[cfg(test)]
mod tests {
    use tenure_auth::Secret;
    use tenure_outbound::{Outbound, Policy, Trust};

    use super::*;
    use crate::error::BadRequest;

    fn targets(base_url: Option<&str>) -> PushTargets {
        let names = ["etl", "acme/etl"];
        PushTargets {
            base_url: base_url.map(ToOwned::to_owned),
            secrets: names.map(|name| (name.to_owned(), Secret::new("hunter2").unwrap())).into(),
            client: Outbound::new(Policy::default(), &Trust::System).unwrap(),
            mtls: [("etl".to_owned(), Outbound::new(Policy::default(), &Trust::System).unwrap())].into(),
        }
    }

    fn to(url: &str) -> PushSettings {
        PushSettings { url: url.to_owned(), ..PushSettings::default() }
    }

    async fn fault(wire: &PushSettings, reach: &Reach) -> (String, String) {
        match block(wire, Some(&targets(Some("https://t.example"))), reach).await {
            Err(Fault::Request(BadRequest::Invalid { field, message })) => (field, message),
            other => panic!("{wire:?}: {other:?}"),
        }
    }

    #[tokio::test]
    async fn defaults_are_those_of_the_contract() {
        let found = block(&to("https://1.1.1.1/d"), Some(&targets(Some("https://t"))), &Reach::All).await.unwrap();
        let expected = r#"{"url":"https://1.1.1.1/d","concurrency":32,"ack_timeout_ms":10000,"start_timeout_ms":60000,"dispatch_timeout_ms":300000}"#;
        assert_eq!(serde_json::to_string(&shown(&found)).unwrap(), expected);
    }

    #[tokio::test]
    async fn a_queue_of_sandboxes_needs_neither_targets_nor_an_address() {
        for url in ["sandbox:", "sandbox:python", "sandbox:a.b-c_1"] {
            let found = block(&to(url), None, &Reach::All).await.unwrap();
            assert_eq!((shown(&found).url, found.concurrency), (url.to_owned(), 32));
        }
        let named = PushSettings { secret_ref: Some("etl".to_owned()), ..to("sandbox:") };
        for (wire, field) in
            [(to("sandbox:a/b"), "push.url"), (to("sandbox://x"), "push.url"), (named, "push.secret_ref")]
        {
            assert_eq!(fault(&wire, &Reach::All).await.0, field);
        }
    }

    #[tokio::test]
    async fn each_fault_names_its_field() {
        let base = to("https://1.1.1.1/d");
        let in_headers = |names: &[&str]| PushSettings {
            secret_ref: Some("etl".to_owned()),
            secret_header: Some(names.iter().map(ToString::to_string).collect()),
            ..base.clone()
        };
        for (wire, field) in [
            (to(""), "push.url"),
            (to("https://1.1.1.1/a b"), "push.url"),
            (to("https://1.1.1.1/d#x"), "push.url"),
            (to("http://1.1.1.1/d"), "push.url"),
            (to("https://u:p@1.1.1.1/d"), "push.url"),
            (to("https://127.0.0.1/d"), "push.url"),
            (to("https://169.254.169.254/d"), "push.url"),
            (PushSettings { concurrency: Some(0), ..base.clone() }, "push.concurrency"),
            (PushSettings { concurrency: Some(10_001), ..base.clone() }, "push.concurrency"),
            (PushSettings { rate_per_second: Some(0.0), ..base.clone() }, "push.rate_per_second"),
            (PushSettings { rate_per_second: Some(f64::NAN), ..base.clone() }, "push.rate_per_second"),
            (PushSettings { ack_timeout_ms: Some(99), ..base.clone() }, "push.ack_timeout_ms"),
            (PushSettings { ack_timeout_ms: Some(60_001), ..base.clone() }, "push.ack_timeout_ms"),
            (PushSettings { start_timeout_ms: Some(999), ..base.clone() }, "push.start_timeout_ms"),
            (PushSettings { dispatch_timeout_ms: Some(3_600_001), ..base.clone() }, "push.dispatch_timeout_ms"),
            (PushSettings { secret_ref: Some("nope".to_owned()), ..base.clone() }, "push.secret_ref"),
            (PushSettings { mtls_ref: Some("nope".to_owned()), ..base.clone() }, "push.mtls_ref"),
            (in_headers(&[]), "push.secret_header"),
            (in_headers(&["X-Arco Dispatch"]), "push.secret_header"),
            (in_headers(&["Content-Type"]), "push.secret_header"),
            (in_headers(&["Transfer-Encoding"]), "push.secret_header"),
            (in_headers(&["X-Tenure-Dispatch-Id"]), "push.secret_header"),
            (in_headers(&["X-A", "x-a"]), "push.secret_header"),
            (in_headers(&["a", "b", "c", "d", "e", "f", "g", "h", "i"]), "push.secret_header"),
            (PushSettings { secret_ref: None, ..in_headers(&["X-A"]) }, "push.secret_header"),
        ] {
            let (found, message) = fault(&wire, &Reach::All).await;
            assert_eq!(found, field, "{message}");
            assert!(!message.contains("hunter2") && !message.contains("acme"), "{message}");
        }
    }

    #[tokio::test]
    async fn a_tenant_names_its_own_secrets_and_no_others() {
        let naming = |name: &str| PushSettings { secret_ref: Some(name.to_owned()), ..to("https://1.1.1.1/d") };
        let targets = targets(Some("https://t.example"));
        let tenant = |name: &str| Reach::Tenant(name.into());
        for (name, reach, allowed) in [
            ("etl", Reach::All, true),
            ("acme/etl", Reach::All, true),
            ("etl", tenant("default"), true),
            ("acme/etl", tenant("acme"), true),
            ("etl", tenant("acme"), false),
            ("acme/etl", tenant("default"), false),
            ("acme/etl", tenant("other"), false),
        ] {
            assert_eq!(block(&naming(name), Some(&targets), &reach).await.is_ok(), allowed, "{name} {reach:?}");
        }
        let foreign = fault(&naming("acme/etl"), &tenant("other")).await;
        assert_eq!(foreign, fault(&naming("nope"), &tenant("other")).await, "what is not one's own does not exist");
    }

    #[tokio::test]
    async fn without_an_address_to_report_to_nothing_can_be_pushed() {
        let refused = block(&to("https://1.1.1.1/d"), Some(&targets(None)), &Reach::All).await.unwrap_err();
        assert!(
            matches!(&refused, Fault::Request(BadRequest::Invalid { message, .. }) if message.contains("callback.base_url")),
            "{refused:?}"
        );
        assert!(block(&to("https://1.1.1.1/d"), None, &Reach::All).await.is_err());
    }
}
