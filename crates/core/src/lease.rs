//! One lease, for any resource.
//!
//! A lease names who may change a resource until when. Its token is a secret that proves possession; its generation is
//! a number per resource that grows with every grant and, where the resource's contract says so, with every renewal. The
//! protocol:
//!
//! 1. [`acquire`] makes a lease of a generation above all before it. The caller has checked, in the transaction that
//!    writes the lease, that no other is live.
//! 2. [`renew`] moves the end, for the bearer of the token, while the lease is live. An expired lease is never extended.
//! 3. [`release`] ends it for the bearer of the token.
//! 4. [`expire`] ends it when its time has come.
//!
//! A lease is a hint of who is alive. It is no lock: the holder may be slow and believe in a lease that is gone. Safety
//! comes from comparing token and generation inside the transaction that writes.
//!
//! Time in which no control plane could answer does not count against a holder. That is [`Grace`], an argument like
//! `now`: until it is over no lease expires that was granted or renewed before the outage ended, and so nothing is granted
//! to a second holder either. A lease from after the outage expires in its own time.

use crate::id::{Fence, LeaseToken, WorkerId};
use crate::mutant;
use crate::time::{DurationMs, Timestamp};

/// `H` names the holder: a worker, or whatever the resource is leased to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease<H = WorkerId> {
    pub holder: H,
    pub token: LeaseToken,
    pub generation: Fence,
    pub expires_at: Timestamp,
}

/// Which leases are judged leniently because nobody could have renewed them, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// What is from later is not covered.
    gap_ended_at: Timestamp,
    until: Timestamp,
}

impl Grace {
    pub const NONE: Self = Self { gap_ended_at: Timestamp::MIN, until: Timestamp::MIN };
    /// Nobody has written the outage down yet, so it has not ended. Whoever sees it first must not expire anything.
    pub const OPEN: Self = Self { gap_ended_at: Timestamp::MAX, until: Timestamp::MAX };

    /// After an outage that ended at `gap_ended_at`.
    pub const fn new(gap_ended_at: Timestamp, until: Timestamp) -> Self {
        Self { gap_ended_at, until }
    }

    /// The end of something that began, or was last extended, at `since`. Within the millisecond in which the outage
    /// ended, nobody knows which came first: that counts as before.
    #[must_use]
    pub fn hold(self, end: Timestamp, since: Timestamp) -> Timestamp {
        if since <= self.gap_ended_at && !mutant!("outage-grace-ignored") { end.max(self.until) } else { end }
    }
}

/// What a renewal does to the generation. The contract of the resource decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Tasks and duties: the fence names the attempt, however often it is renewed.
    KeepsGeneration,
    /// Sandboxes: the holder proves with each renewal that it has seen the last one.
    NextGeneration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    #[error("the token is not that of the lease")]
    WrongToken,
    #[error("the lease has expired")]
    Expired,
}

/// Grants a lease of the next generation.
pub fn acquire<H>(last: Fence, holder: H, token: LeaseToken, ttl_ms: DurationMs, now: Timestamp) -> Lease<H> {
    let generation = if mutant!("fence-not-raised") { Fence(1) } else { last.next() };
    Lease { holder, token, generation, expires_at: now.plus(ttl_ms) }
}

/// What a renewal asks for: an end `ttl_ms` from now, not beyond `not_after`.
#[derive(Debug, Clone, Copy)]
pub struct Extension {
    pub ttl_ms: DurationMs,
    pub not_after: Timestamp,
    pub renewal: Renewal,
}

/// Moves the end of a lease that was last granted or renewed at `extended_at`.
pub fn renew<H: Clone>(
    lease: &Lease<H>,
    extended_at: Timestamp,
    token: LeaseToken,
    extension: Extension,
    now: Timestamp,
    grace: Grace,
) -> Result<Lease<H>, LeaseError> {
    if lease.token != token {
        return Err(LeaseError::WrongToken);
    }
    if is_expired(lease, extended_at, now, grace) && !mutant!("expired-lease-renewed") {
        return Err(LeaseError::Expired);
    }
    let generation = match extension.renewal {
        Renewal::KeepsGeneration => lease.generation,
        Renewal::NextGeneration => lease.generation.next(),
    };
    Ok(Lease { generation, expires_at: now.plus(extension.ttl_ms).min(extension.not_after), ..lease.clone() })
}

/// Ends a lease for its holder and gives the generation that the next grant must exceed.
pub fn release<H>(lease: &Lease<H>, token: LeaseToken) -> Result<Fence, LeaseError> {
    if lease.token == token { Ok(lease.generation) } else { Err(LeaseError::WrongToken) }
}

/// Ends a lease whose time has come and gives the generation that the next grant must exceed; `None` while it lives.
pub fn expire<H>(lease: &Lease<H>, extended_at: Timestamp, now: Timestamp, grace: Grace) -> Option<Fence> {
    is_expired(lease, extended_at, now, grace).then_some(lease.generation)
}

/// Whether a lease that was last granted or renewed at `extended_at` is over.
pub fn is_expired<H>(lease: &Lease<H>, extended_at: Timestamp, now: Timestamp, grace: Grace) -> bool {
    now >= grace.hold(lease.expires_at, extended_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: LeaseToken = LeaseToken::from_u128(1);
    const OTHER: LeaseToken = LeaseToken::from_u128(2);
    const GRANTED: Timestamp = Timestamp::from_millis(100);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// As a task's lease is renewed.
    fn renew(
        lease: &Lease,
        token: LeaseToken,
        not_after: Timestamp,
        now: Timestamp,
        grace: Grace,
    ) -> Result<Lease, LeaseError> {
        let extension = Extension { ttl_ms: 60, not_after, renewal: Renewal::KeepsGeneration };
        super::renew(lease, GRANTED, token, extension, now, grace)
    }

    fn expire(lease: &Lease, now: Timestamp, grace: Grace) -> Option<Fence> {
        super::expire(lease, GRANTED, now, grace)
    }

    fn lease() -> Lease {
        acquire(Fence(6), "w".into(), TOKEN, 60, GRANTED)
    }

    #[test]
    fn every_grant_has_a_higher_generation() {
        let first = lease();
        assert_eq!((first.generation, first.expires_at), (Fence(7), at(160)));
        let after_release = acquire(release(&first, TOKEN).unwrap(), "w", OTHER, 60, at(100));
        assert_eq!(after_release.generation, Fence(8));
        let after_expiry = acquire(expire(&first, at(160), Grace::NONE).unwrap(), "w", OTHER, 60, at(160));
        assert_eq!(after_expiry.generation, Fence(8));
    }

    #[test]
    fn renewal_moves_the_end_and_the_contract_decides_on_the_generation() {
        for (renewal, generation) in [(Renewal::KeepsGeneration, Fence(7)), (Renewal::NextGeneration, Fence(8))] {
            let extension = Extension { ttl_ms: 60, not_after: Timestamp::MAX, renewal };
            let renewed = super::renew(&lease(), GRANTED, TOKEN, extension, at(150), Grace::NONE).unwrap();
            assert_eq!((renewed.expires_at, renewed.generation), (at(210), generation));
        }
    }

    #[test]
    fn renewal_never_goes_beyond_the_bound() {
        assert_eq!(renew(&lease(), TOKEN, at(170), at(150), Grace::NONE).unwrap().expires_at, at(170));
    }

    #[test]
    fn an_expired_lease_is_never_extended() {
        assert_eq!(renew(&lease(), TOKEN, Timestamp::MAX, at(160), Grace::NONE), Err(LeaseError::Expired));
        assert!(renew(&lease(), TOKEN, Timestamp::MAX, at(159), Grace::NONE).is_ok());
    }

    #[test]
    fn only_the_bearer_of_the_token_renews_and_releases() {
        assert_eq!(renew(&lease(), OTHER, Timestamp::MAX, at(110), Grace::NONE), Err(LeaseError::WrongToken));
        assert_eq!(release(&lease(), OTHER), Err(LeaseError::WrongToken));
    }

    #[test]
    fn nothing_from_before_the_end_of_the_outage_expires_within_the_grace() {
        let grace = Grace::new(at(200), at(500));
        assert_eq!(expire(&lease(), at(499), grace), None);
        assert!(renew(&lease(), TOKEN, Timestamp::MAX, at(499), grace).is_ok());
        assert_eq!(expire(&lease(), at(500), grace), Some(Fence(7)));
    }

    #[test]
    fn a_lease_from_after_the_outage_expires_in_its_own_time() {
        for (gap_ended_at, expires) in [(at(99), true), (at(100), false), (at(101), false)] {
            let grace = Grace::new(gap_ended_at, at(500));
            assert_eq!(expire(&lease(), at(160), grace).is_some(), expires, "{gap_ended_at}");
            assert_eq!(renew(&lease(), TOKEN, Timestamp::MAX, at(160), grace).is_err(), expires, "{gap_ended_at}");
            assert_eq!(expire(&lease(), at(159), grace), None);
        }
    }

    #[test]
    fn an_outage_that_has_not_ended_holds_back_everything() {
        assert_eq!(expire(&lease(), at(100_000), Grace::OPEN), None);
    }
}
