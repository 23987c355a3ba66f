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
//! `now`: until it is over no lease expires, and so nothing is granted to a second holder either.

use crate::id::{Fence, LeaseToken, WorkerId};
use crate::time::{DurationMs, Timestamp};

/// `H` names the holder: a worker, or whatever the resource is leased to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease<H = WorkerId> {
    pub holder: H,
    pub token: LeaseToken,
    pub generation: Fence,
    pub expires_at: Timestamp,
}

/// Until when leases are judged leniently, because nobody could have renewed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace(Timestamp);

impl Grace {
    pub const NONE: Self = Self(Timestamp::MIN);

    pub const fn until(point: Timestamp) -> Self {
        Self(point)
    }

    /// What holds at `now`, from the marks in the store. A gap that nobody has written down yet counts as one: whoever
    /// sees it first must not expire anything before the grace is written.
    pub fn from_marks(now: Timestamp, silent_for_ms: DurationMs, grace_until: Timestamp) -> Self {
        if silent_for_ms > crate::limits::OUTAGE_GAP_MS {
            Self(grace_until.max(now.plus(1)))
        } else {
            Self(grace_until)
        }
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
    Lease { holder, token, generation: last.next(), expires_at: now.plus(ttl_ms) }
}

/// Sets the end to now + `ttl_ms`, not beyond `not_after`.
pub fn renew<H: Clone>(
    lease: &Lease<H>,
    token: LeaseToken,
    ttl_ms: DurationMs,
    not_after: Timestamp,
    renewal: Renewal,
    now: Timestamp,
    grace: Grace,
) -> Result<Lease<H>, LeaseError> {
    if lease.token != token {
        return Err(LeaseError::WrongToken);
    }
    if is_expired(lease, now, grace) {
        return Err(LeaseError::Expired);
    }
    let generation = match renewal {
        Renewal::KeepsGeneration => lease.generation,
        Renewal::NextGeneration => lease.generation.next(),
    };
    Ok(Lease { generation, expires_at: now.plus(ttl_ms).min(not_after), ..lease.clone() })
}

/// Ends a lease for its holder and gives the generation that the next grant must exceed.
pub fn release<H>(lease: &Lease<H>, token: LeaseToken) -> Result<Fence, LeaseError> {
    if lease.token == token { Ok(lease.generation) } else { Err(LeaseError::WrongToken) }
}

/// Ends a lease whose time has come and gives the generation that the next grant must exceed; `None` while it lives.
pub fn expire<H>(lease: &Lease<H>, now: Timestamp, grace: Grace) -> Option<Fence> {
    is_expired(lease, now, grace).then_some(lease.generation)
}

pub fn is_expired<H>(lease: &Lease<H>, now: Timestamp, grace: Grace) -> bool {
    now >= lease.expires_at.max(grace.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: LeaseToken = LeaseToken::from_u128(1);
    const OTHER: LeaseToken = LeaseToken::from_u128(2);

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
        super::renew(lease, token, 60, not_after, Renewal::KeepsGeneration, now, grace)
    }

    fn lease() -> Lease {
        acquire(Fence(6), "w".into(), TOKEN, 60, at(100))
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
            let renewed = super::renew(&lease(), TOKEN, 60, Timestamp::MAX, renewal, at(150), Grace::NONE).unwrap();
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
    fn nothing_expires_within_the_grace() {
        let grace = Grace::until(at(500));
        assert_eq!(expire(&lease(), at(499), grace), None);
        assert!(renew(&lease(), TOKEN, Timestamp::MAX, at(499), grace).is_ok());
        assert_eq!(expire(&lease(), at(500), grace), Some(Fence(7)));
    }

    #[test]
    fn a_gap_that_nobody_wrote_down_yet_is_a_grace_too() {
        let now = at(100_000);
        let silent = Grace::from_marks(now, 5_001, Timestamp::MIN);
        assert_eq!(expire(&lease(), now, silent), None);
        let alive = Grace::from_marks(now, 5_000, Timestamp::MIN);
        assert_eq!(expire(&lease(), now, alive), Some(Fence(7)));
    }
}
