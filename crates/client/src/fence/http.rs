//! The fence in a header.
//!
//! A worker sends [`headers`] with each call that changes something. The service that is called reads them with
//! [`from_headers`], and compares the fence with the highest that it has seen of the task, where it keeps its data and in
//! the same transaction ([`sql`](super::sql) has the statement). A stale one is answered with 412.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::Fence;
use crate::{FENCE_HEADER, IDEMPOTENCY_HEADER};

/// The headers that carry a fence: `Tenure-Fence`, and `Idempotency-Key` with the task's id.
pub fn headers(fence: &Fence) -> HeaderMap {
    let key = HeaderValue::from_str(fence.task_id());
    let pairs = [(FENCE_HEADER, Some(HeaderValue::from(fence.value()))), (IDEMPOTENCY_HEADER, key.ok())];
    let named = |(name, value): (&str, Option<HeaderValue>)| Some((HeaderName::try_from(name).ok()?, value?));
    pairs.into_iter().filter_map(named).collect()
}

/// The fence of a request, for the service that is called. `None` if it has none, or one that is not a number.
pub fn from_headers(headers: &HeaderMap) -> Option<Fence> {
    let text = |name| headers.get(name)?.to_str().ok();
    Some(Fence::new(text(IDEMPOTENCY_HEADER)?, text(FENCE_HEADER)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_survives_its_headers() {
        let fence = Fence::new("task_01HGW5N7XHJM4GX29KZRXQP6N9", (1 << 53) - 1);
        assert_eq!(from_headers(&headers(&fence)), Some(fence));
    }

    #[test]
    fn what_is_no_fence_is_none() {
        assert_eq!(from_headers(&HeaderMap::new()), None);
        let mut bad = headers(&Fence::new("t", 1));
        bad.insert(FENCE_HEADER, HeaderValue::from_static("-1"));
        assert_eq!(from_headers(&bad), None);
    }
}
