//! Operators that need no program: to try things out, and to call other systems.

mod http;

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tenure_client::{Json, TaskContext, TaskError};
use tokio::time::Instant;

pub(crate) use http::http;

#[derive(Debug, Deserialize)]
struct Sleep {
    ms: u64,
}

/// Does nothing for a while.
pub(crate) async fn sleep(task: &TaskContext) -> Result<Json, TaskError> {
    let Sleep { ms } = task.payload()?;
    let total = Duration::from_millis(ms);
    // Progress in steps of a tenth, but not so often that it would be dropped unsent.
    let step = (total / 10).max(Duration::from_secs(1));
    let start = Instant::now();
    while start.elapsed() < total {
        let until = (Instant::now() + step).min(start + total);
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            reason = task.cancelled() => return Err(TaskError::cancelled(reason.to_string())),
        }
        let pct = (start.elapsed().as_secs_f64() / total.as_secs_f64() * 100.0).min(100.0);
        task.report_progress(pct as u8, format!("slept {} of {ms} ms", start.elapsed().as_millis()));
    }
    Ok(json!({ "slept_ms": ms }).into())
}

#[derive(Debug, Deserialize)]
struct Fail {
    code: Option<String>,
    message: Option<String>,
    retryable: Option<bool>,
    /// How many attempts fail; absent: all.
    times: Option<u32>,
}

/// Fails as told.
pub(crate) fn fail(task: &TaskContext) -> Result<Json, TaskError> {
    let Fail { code, message, retryable, times } = task.payload()?;
    if times.is_some_and(|times| task.attempt() > times) {
        return Ok(json!({ "attempt": task.attempt() }).into());
    }
    let code = code.unwrap_or_else(|| "USER_CODE".into());
    let message = message.unwrap_or_else(|| "failed as told".into());
    Err(match retryable.unwrap_or(true) {
        true => TaskError::retryable(code, message),
        false => TaskError::permanent(code, message),
    })
}

/// Which part of a text that is too long.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keep {
    Start,
    End,
}

/// A text as JSON of at most `limit` bytes, which must be 2 or more. What is too long after escaping is halved.
pub(crate) fn bounded_text(text: &str, limit: usize, keep: Keep) -> Json {
    let mut kept = text;
    loop {
        let json = Json::from(serde_json::Value::from(kept));
        if json.len() <= limit {
            return json;
        }
        let half = kept.len() / 2;
        kept = match keep {
            Keep::Start => &kept[..kept.floor_char_boundary(half)],
            Keep::End => &kept[kept.ceil_char_boundary(kept.len() - half)..],
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::TestLease;

    #[tokio::test]
    async fn sleep_sleeps_and_says_how_far_it_is() {
        let lease = TestLease::new("sleep", &json!({"ms": 20}));
        let start = Instant::now();
        assert_eq!(sleep(&lease.context()).await.unwrap().as_str(), r#"{"slept_ms":20}"#);
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert_eq!(lease.progress().unwrap().0, 100);
    }

    #[tokio::test]
    async fn sleep_ends_when_it_is_cancelled() {
        let lease = TestLease::new("sleep", &json!({"ms": 3_600_000}));
        let task = lease.context();
        let (slept, ()) = tokio::join!(sleep(&task), async { lease.cancel("enough") });
        assert_eq!(slept.unwrap_err().code(), "CANCELLED");
    }

    #[test]
    fn fail_fails_as_often_as_told() {
        let payload = json!({"code": "HTTP_503", "message": "busy", "retryable": false, "times": 2});
        let lease = TestLease::new("fail", &payload);
        let error = fail(&lease.context()).unwrap_err();
        assert_eq!((error.code(), error.message(), error.is_retryable()), ("HTTP_503", "busy", false));
        assert!(fail(&lease.attempt(2, None).context()).is_err());
        assert!(fail(&lease.attempt(3, None).context()).is_ok());
        let always = TestLease::new("fail", &json!({})).attempt(1000, None);
        assert!(fail(&always.context()).unwrap_err().is_retryable());
    }

    #[test]
    fn a_text_is_cut_until_it_fits_also_when_escaping_makes_it_longer() {
        let json = bounded_text(&"\u{1}ä".repeat(100), 100, Keep::End);
        assert!(json.len() <= 100 && json.len() > 20, "{}", json.len());
        assert_eq!(bounded_text("abc", 5, Keep::End).as_str(), "\"abc\"");
        assert_eq!(bounded_text("abcd", 4, Keep::Start).as_str(), "\"ab\"");
        assert_eq!(bounded_text("abcd", 4, Keep::End).as_str(), "\"cd\"");
        assert_eq!(bounded_text("abcd", 2, Keep::End).as_str(), "\"\"");
    }
}
