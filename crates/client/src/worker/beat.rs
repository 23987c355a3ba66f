//! When a lease wants a heartbeat, what the heartbeat brings, and when the lease has run out.
//!
//! Pure: the local monotonic time comes in as `now`. Times of the server do not come in at all.

use std::time::{Duration, Instant};

use tenure_contract::Json;
use tenure_contract::pull::Job;

/// News of a handler are sent with a heartbeat no sooner than this after the one before.
const NEWS_EVERY: Duration = Duration::from_millis(500);
/// Before a heartbeat is tried again; doubles with each failure.
const AGAIN_FIRST: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Beat {
    ttl: Duration,
    every: Duration,
    /// How long the handler may go on after the lease ran out by our clock.
    tolerance: Duration,
    /// When the request was sent whose answer last said that the lease is ours. The server cannot have started the
    /// lease's time before that, so the lease lasts at least from then on for its length.
    renewed_at: Instant,
    /// False while only the moment is known in which the claim's answer came.
    confirmed: bool,
    next_at: Instant,
    /// How much sooner than `next_at` is as good: it lets leases with nearby times share a request.
    slack: Duration,
    last_at: Instant,
    sending: bool,
    failures: u32,
    /// What the next heartbeat brings.
    news: News,
    /// What the heartbeat under way brings: told again if that fails.
    sent_news: News,
    /// Somebody waits until the news are told.
    flushing: bool,
    /// Another heartbeat is to follow the one under way at once.
    hurried: bool,
}

/// What a handler wants the server to know.
#[derive(Debug, Default, Clone)]
pub(crate) struct News {
    pub(crate) progress: Option<(u8, String)>,
    pub(crate) checkpoint: Option<Json>,
}

/// What the supervisor has to do about a lease.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing before this time.
    At(Instant),
    /// A heartbeat now, and a look at this time whether it was answered.
    Beat(Instant),
    /// It has run out.
    Expired,
}

impl Beat {
    /// Of a job in the answer, read at `now`, to a claim first sent at `sent_at`.
    ///
    /// A claim may wait at the server, or be sent again, so the grant lies anywhere between the two. As long as that is
    /// a small part of the lease, its time is counted from `sent_at`. Otherwise a heartbeat has to confirm first that
    /// the lease is still ours.
    pub(crate) fn new(job: &Job, sent_at: Instant, now: Instant, tolerance: Duration) -> Self {
        let ttl = Duration::from_secs(job.lease_ttl_seconds.max(1));
        Self::of(ttl, Duration::from_secs(job.heartbeat_interval_seconds), sent_at, now, tolerance)
    }

    /// Of any lease that began between `sent_at` and `now`, lasts for `ttl` and asks for a heartbeat each `asked`.
    pub(crate) fn of(ttl: Duration, asked: Duration, sent_at: Instant, now: Instant, tolerance: Duration) -> Self {
        // Whole seconds are too coarse for the shortest leases, and two chances per lease are the least.
        let every = if asked.is_zero() || asked * 2 > ttl { ttl / 3 } else { asked };
        let confirmed = now.saturating_duration_since(sent_at) <= ttl / 2;
        Self {
            ttl,
            every,
            tolerance,
            renewed_at: if confirmed { sent_at } else { now },
            confirmed,
            next_at: if confirmed { sent_at + every } else { now },
            slack: every / 10,
            last_at: sent_at,
            sending: false,
            failures: 0,
            news: News::default(),
            sent_news: News::default(),
            flushing: false,
            hurried: false,
        }
    }

    fn deadline(&self) -> Instant {
        self.lease_end() + self.tolerance
    }

    /// Until then the lease is certain to be ours, by the local clock.
    pub(crate) fn lease_end(&self) -> Instant {
        self.renewed_at + self.ttl
    }

    pub(crate) fn next_at(&self) -> Instant {
        self.next_at
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// What is due. [`Due::Beat`] is said once, until [`Beat::answered`] or [`Beat::failed`].
    pub(crate) fn due(&mut self, now: Instant) -> Due {
        let deadline = self.deadline();
        if now >= deadline {
            return Due::Expired;
        }
        if self.sending {
            return Due::At(deadline);
        }
        if self.next_at <= now + self.slack {
            self.sending = true;
            return Due::Beat(deadline);
        }
        Due::At(self.next_at.min(deadline))
    }

    /// How long an answer is worth waiting for: there must be time for another heartbeat.
    pub(crate) fn patience(&self, now: Instant) -> Duration {
        (self.deadline().saturating_duration_since(now) / 2).min(self.every)
    }

    /// The heartbeat leaves; the answer is what it brings.
    pub(crate) fn sent(&mut self, now: Instant) -> News {
        self.last_at = now;
        self.sent_news = std::mem::take(&mut self.news);
        self.sent_news.clone()
    }

    /// The heartbeat sent at `sent_at` renewed the lease.
    pub(crate) fn answered(&mut self, sent_at: Instant) {
        self.sending = false;
        self.failures = 0;
        self.confirmed = true;
        self.renewed_at = self.renewed_at.max(sent_at);
        self.sent_news = News::default();
        (self.next_at, self.slack) = match (&self.news, self.flushing) {
            (News { progress: None, checkpoint: None }, _) => (sent_at + self.every, self.every / 10),
            (_, true) => (sent_at, Duration::ZERO),
            (_, false) => (sent_at + NEWS_EVERY.min(self.every), Duration::ZERO),
        };
        if std::mem::take(&mut self.hurried) {
            self.next_at = sent_at;
        }
    }

    /// The heartbeat had no answer that decides: another one follows, sooner than usual and well before the end.
    pub(crate) fn failed(&mut self, now: Instant, asked: Option<Duration>) {
        let wait = AGAIN_FIRST * (1 << self.failures.min(6));
        let left = self.deadline().saturating_duration_since(now);
        let wait = wait.max(asked.unwrap_or_default()).min(self.every).min(left / 2).max(AGAIN_FIRST);
        self.sending = false;
        self.failures += 1;
        (self.next_at, self.slack) = (now + crate::http::jittered(wait), Duration::ZERO);
        let untold = std::mem::take(&mut self.sent_news);
        self.news.progress = self.news.progress.take().or(untold.progress);
        self.news.checkpoint = self.news.checkpoint.take().or(untold.checkpoint);
    }

    /// The heartbeat was refused for what it brought: that is not told again.
    pub(crate) fn refused(&mut self, now: Instant) {
        self.sent_news = News::default();
        self.failed(now, None);
    }

    /// Something to tell with the next heartbeat, which comes a little sooner for it. Returns when.
    pub(crate) fn tell(&mut self, news: News) -> Instant {
        self.news.progress = news.progress.or(self.news.progress.take());
        self.news.checkpoint = news.checkpoint.or(self.news.checkpoint.take());
        let soon = self.last_at + NEWS_EVERY;
        if self.failures == 0 && soon < self.next_at {
            (self.next_at, self.slack) = (soon, Duration::ZERO);
        }
        self.next_at
    }

    /// From now on news go out at once.
    pub(crate) fn flush(&mut self, now: Instant) {
        self.flushing = true;
        self.next_at = now;
    }

    /// The server has something to say about the lease: asks at once. A heartbeat under way may have left too early for it.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.hurried = self.sending;
        if !self.sending {
            self.next_at = now;
        }
    }

    pub(crate) fn has_untold_checkpoint(&self) -> bool {
        self.news.checkpoint.is_some() || self.sent_news.checkpoint.is_some()
    }

    /// Whether the server does not know all that the handler said.
    pub(crate) fn has_untold_news(&self) -> bool {
        let is_news = |news: &News| news.progress.is_some() || news.checkpoint.is_some();
        is_news(&self.news) || is_news(&self.sent_news)
    }

    pub(crate) fn untold(&self) -> &News {
        &self.news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestLease;

    const S: Duration = Duration::from_secs(1);

    /// A lease of 60 s with a heartbeat every 20 s, claimed at `start` and answered `waited` later.
    fn beat(start: Instant, waited: Duration) -> Beat {
        let mut job = TestLease::new("test", &()).into_lease().job.clone();
        (job.lease_ttl_seconds, job.heartbeat_interval_seconds) = (60, 20);
        Beat::new(&job, start, start + waited, Duration::ZERO)
    }

    #[test]
    fn time_counts_from_when_the_claim_was_sent() {
        let start = Instant::now();
        let mut beat = beat(start, 5 * S);
        assert!(beat.is_confirmed());
        assert_eq!(beat.due(start + 5 * S), Due::At(start + 20 * S));
        assert_eq!(beat.due(start + 60 * S), Due::Expired);
    }

    #[test]
    fn an_answer_renews_from_when_its_request_was_sent() {
        let start = Instant::now();
        let mut beat = beat(start, S);
        assert_eq!(beat.due(start + 20 * S), Due::Beat(start + 60 * S));
        beat.sent(start + 20 * S);
        // While the answer is awaited nothing else is sent, but the end is watched.
        assert_eq!(beat.due(start + 25 * S), Due::At(start + 60 * S));
        beat.answered(start + 20 * S);
        assert_eq!(beat.due(start + 30 * S), Due::At(start + 40 * S));
        assert_eq!(beat.due(start + 79 * S), Due::Beat(start + 80 * S));
        assert_eq!(beat.due(start + 80 * S), Due::Expired);
    }

    #[test]
    fn a_claim_answered_late_is_confirmed_first() {
        let start = Instant::now();
        let mut beat = beat(start, 100 * S);
        assert!(!beat.is_confirmed());
        assert_eq!(beat.due(start + 100 * S), Due::Beat(start + 160 * S));
        beat.answered(start + 100 * S);
        assert!(beat.is_confirmed());
    }

    #[test]
    fn failures_are_tried_again_soon_and_before_the_end() {
        let start = Instant::now();
        let mut beat = beat(start, S);
        let mut now = start + 20 * S;
        let mut tries = 0;
        loop {
            match beat.due(now) {
                Due::Expired => break,
                Due::At(at) => now = at,
                Due::Beat(_) => {
                    tries += 1;
                    beat.failed(now, Some(3600 * S));
                    assert!(beat.next_at() > now, "no hot loop");
                }
            }
        }
        assert!((4..20).contains(&tries), "{tries} tries in the last 40 s of a lease");
        assert_eq!(now, start + 60 * S);
    }

    #[test]
    fn news_hasten_the_heartbeat_and_survive_its_failure() {
        let start = Instant::now();
        let mut beat = beat(start, Duration::ZERO);
        let old = News { progress: Some((10, "old".into())), checkpoint: Some(Json::empty_object()) };
        assert_eq!(beat.tell(old), start + NEWS_EVERY);
        assert_eq!(beat.due(start), Due::At(start + NEWS_EVERY));
        beat.sent(start + S);
        beat.tell(News { progress: Some((20, "new".into())), checkpoint: None });
        beat.failed(start + S, None);
        assert_eq!(beat.untold().progress, Some((20, "new".into())));
        assert!(beat.has_untold_checkpoint());
        beat.sent(start + 2 * S);
        beat.answered(start + 2 * S);
        assert!(!beat.has_untold_checkpoint());
        assert_eq!(beat.next_at(), start + 22 * S);
    }

    #[test]
    fn a_flush_also_follows_the_heartbeat_under_way() {
        let start = Instant::now();
        let mut beat = beat(start, Duration::ZERO);
        beat.sent(start);
        beat.tell(News { progress: None, checkpoint: Some(Json::null()) });
        beat.flush(start);
        beat.answered(start);
        assert_eq!(beat.due(start), Due::Beat(start + 60 * S));
    }

    #[test]
    fn a_hint_hastens_the_heartbeat_and_follows_the_one_under_way() {
        let start = Instant::now();
        let mut beat = beat(start, Duration::ZERO);
        beat.hurry(start + S);
        assert_eq!(beat.due(start + S), Due::Beat(start + 60 * S));
        beat.sent(start + S);
        beat.hurry(start + S);
        beat.answered(start + S);
        assert_eq!(beat.due(start + S), Due::Beat(start + 61 * S));
        beat.answered(start + 2 * S);
        assert_eq!(beat.due(start + 2 * S), Due::At(start + 22 * S), "once");
    }

    #[test]
    fn intervals_too_long_for_the_lease_become_a_third_of_it() {
        let mut job = TestLease::new("test", &()).into_lease().job.clone();
        (job.lease_ttl_seconds, job.heartbeat_interval_seconds) = (1, 1);
        let start = Instant::now();
        let beat = Beat::new(&job, start, start, Duration::ZERO);
        assert_eq!(beat.next_at(), start + S / 3);
    }
}
