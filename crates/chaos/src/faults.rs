//! What was broken, as it happened: the plan says when a fault is due, this says when it was there.

use super::plan::{Fault, Link};

/// A gap in the marks of life from which on the control plane counts as having been out.
const OUTAGE_NS: u64 = 5_000_000_000;

/// By how much an outage must be longer than that to be certain.
const MARGIN_NS: u64 = 300_000_000;

/// One fault, by [`now`](super::history::now).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spell {
    pub fault: Fault,
    /// Just before it began.
    pub from: u64,
    /// It was there for certain from then on,
    pub on: u64,
    /// until then.
    pub off: u64,
    /// It was over.
    pub to: u64,
}

/// A stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub from: u64,
    pub to: u64,
}

/// What the checker makes allowance for, and what it demands because of it. Each list is in order of `from`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// No control plane lived, for longer than the gap that counts as an outage: leases must outlive these.
    pub outages: Vec<Span>,
    /// Marks of life may be missing, so that leases may outlive these.
    pub silences: Vec<Span>,
    /// Requests and workers may have been held up.
    pub troubles: Vec<Span>,
    /// How long a task that can run may wait, in nanoseconds, on a machine that does other work too.
    pub late_ns: Option<u64>,
}

impl Faults {
    pub fn new(spells: &[Spell], servers: usize) -> Self {
        let mut faults = Self { outages: outages(spells, servers), ..Self::default() };
        for spell in spells {
            let span = Span { from: spell.from, to: spell.to };
            faults.troubles.push(span);
            let silences = matches!(
                spell.fault,
                Fault::KillServer(_)
                    | Fault::StopServer(_)
                    | Fault::LosePower(_)
                    | Fault::KillPostgres
                    | Fault::Link { link: Link::ToPostgres(_), .. }
            );
            if silences {
                faults.silences.push(span);
            }
        }
        faults.silences.sort_unstable();
        faults.troubles.sort_unstable();
        faults
    }

    /// Until when a lease can last that ends then by itself: each silence before its end may lengthen it.
    pub fn lengthened(&self, mut end: u64, ttl_ns: u64, recovery_ns: u64) -> u64 {
        for silence in &self.silences {
            if silence.from <= end && silence.to + recovery_ns > end {
                end = silence.to + recovery_ns + ttl_ns;
            }
        }
        end
    }

    /// The time between two points in which nothing was wrong, nor had been just before.
    pub fn calm(&self, from: u64, to: u64, recovery_ns: u64) -> u64 {
        let (mut calm, mut at) = (0, from);
        for trouble in &self.troubles {
            calm += trouble.from.min(to).saturating_sub(at);
            at = at.max(trouble.to + recovery_ns);
        }
        calm + to.saturating_sub(at)
    }
}

/// When all control planes were dead or stopped at the same time.
fn outages(spells: &[Spell], servers: usize) -> Vec<Span> {
    let mut edges: Vec<(u64, bool)> = Vec::new();
    let ends = |fault: Fault| matches!(fault, Fault::KillServer(_) | Fault::StopServer(_) | Fault::LosePower(_));
    for spell in spells.iter().filter(|spell| ends(spell.fault)) {
        edges.extend([(spell.on, true), (spell.off, false)]);
    }
    edges.sort_unstable();
    let (mut down, mut since, mut outages) = (0_usize, None, Vec::new());
    for (at, begins) in edges {
        down = if begins { down + 1 } else { down.saturating_sub(1) };
        if down == servers {
            since = Some(at);
        } else if let Some(from) = since.take()
            && at - from > OUTAGE_NS + MARGIN_NS
        {
            outages.push(Span { from, to: at });
        }
    }
    outages
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn spell(fault: Fault, from: u64, to: u64) -> Spell {
        Spell { fault, from: from * S, on: from * S, off: to * S, to: to * S }
    }

    #[test]
    fn an_outage_is_when_all_control_planes_are_down_for_long_enough() {
        let one = [spell(Fault::KillServer(0), 10, 16), spell(Fault::StopServer(0), 20, 25)];
        assert_eq!(Faults::new(&one, 1).outages, [Span { from: 10 * S, to: 16 * S }], "5 s are not enough");
        assert_eq!(Faults::new(&one, 2).outages, [], "the other one lived");
        let two = [spell(Fault::KillServer(0), 10, 20), spell(Fault::StopServer(1), 12, 18)];
        assert_eq!(Faults::new(&two, 2).outages, [Span { from: 12 * S, to: 18 * S }]);
        assert_eq!(Faults::new(&[spell(Fault::KillWorker(0), 1, 20)], 1).outages, []);
    }

    #[test]
    fn each_silence_before_the_end_of_a_lease_may_lengthen_it() {
        let spells = [spell(Fault::KillServer(0), 10, 16), spell(Fault::KillServer(0), 18, 20)];
        let faults = Faults::new(&spells, 1);
        assert_eq!(faults.lengthened(9 * S, 2 * S, S), 9 * S, "it ended before");
        assert_eq!(faults.lengthened(11 * S, 2 * S, S), 23 * S, "by both");
        assert_eq!(faults.lengthened(30 * S, 2 * S, S), 30 * S);
    }

    #[test]
    fn calm_is_what_no_trouble_covers() {
        let spells = [spell(Fault::KillWorker(0), 10, 16), spell(Fault::KillServer(0), 12, 18)];
        let faults = Faults::new(&spells, 1);
        assert_eq!(faults.calm(0, 30 * S, S), (10 + 11) * S);
        assert_eq!(faults.calm(11 * S, 15 * S, S), 0);
        assert_eq!(Faults::default().calm(5 * S, 8 * S, S), 3 * S);
    }
}
