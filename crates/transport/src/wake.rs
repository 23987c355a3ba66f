//! What is the same in every transport: what a wake-up looks like, and what becomes of one whose receiver is gone.

use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::oneshot;

use crate::{JOBS, OutsideNames};

/// The id of a task as a lower-case UUID, unless the text is none.
pub(crate) fn task_id(text: &str) -> Option<Arc<str>> {
    let fits = text.len() == 36
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    fits.then(|| text.to_ascii_lowercase().into())
}

/// Whether the queue is one of jobs.
pub(crate) fn is_of_jobs(queue: &str) -> bool {
    queue.starts_with(JOBS)
}

/// How a queue is called outside. What has no name of its own is given one by `name`.
pub(crate) fn outside(queue: &str, names: &OutsideNames, prefix: &str, name: impl Fn(&str) -> String) -> String {
    match queue.strip_prefix(JOBS) {
        None => format!("{prefix}{queue}"),
        Some(queue) => names.get(queue).cloned().unwrap_or_else(|| format!("{prefix}{}", name(queue))),
    }
}

/// The body of a wake-up, as the dispatch contract has it.
pub(crate) fn body(task: &str) -> String {
    serde_json::json!({ "task_id": task }).to_string()
}

/// The task that a body names.
pub(crate) fn task_of(body: &str) -> Option<Arc<str>> {
    #[derive(Deserialize)]
    struct Body {
        task_id: String,
    }
    let body: Body = serde_json::from_str(body).ok()?;
    task_id(&body.task_id)
}

/// Runs `work` to its end, also when the caller stops waiting for it. What came of it then goes to `put_back`: a
/// message that was taken from a service and handed to nobody would be lost to everybody for a while.
pub(crate) async fn finish<T, E, P>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
    put_back: impl FnOnce(T) -> P + Send + 'static,
) -> Option<Result<T, E>>
where
    T: Send + 'static,
    E: Send + 'static,
    P: Future<Output = ()> + Send,
{
    let (give, take) = oneshot::channel();
    tokio::spawn(async move {
        if let Err(Ok(unwanted)) = give.send(work.await) {
            put_back(unwanted).await;
        }
    });
    take.await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uuids_are_task_ids() {
        let id = "018C385A-9fb1-9509-0e89-33fe3b7b1aa9";
        assert_eq!(task_id(id).as_deref(), Some("018c385a-9fb1-9509-0e89-33fe3b7b1aa9"));
        for bad in ["", "018c385a", "018c385a-9fb1-9509-0e89-33fe3b7b1aag", "018c385a_9fb1-9509-0e89-33fe3b7b1aa9"] {
            assert_eq!(task_id(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_put_back() {
        let (back, was_put_back) = oneshot::channel();
        let (start, started) = oneshot::channel::<()>();
        let work = async move {
            let _ = started.await;
            Ok::<_, ()>(7)
        };
        {
            let waiting = finish(work, async move |n| back.send(n).unwrap());
            tokio::pin!(waiting);
            // Polled once, so that the work has begun.
            assert!(futures_util::poll!(&mut waiting).is_pending());
        }
        start.send(()).unwrap();
        assert_eq!(was_put_back.await, Ok(7));
    }
}
