//! Targets that do not answer are left alone for a while.
//!
//! While a circuit is open nothing new is granted for its target, so no attempt is spent on it. After a pause one
//! delivery goes through as a probe: it closes the circuit, or the pause gets longer. A circuit belongs to a queue and
//! the address of its target: an open one costs other queues nothing, not even those behind the same gateway. Each
//! control plane has its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use tenure_core::queue::Push;

use super::courier::Health;

/// The name of a circuit. The address can hold a secret, so it is never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name {
    queue: Arc<str>,
    url: Arc<str>,
}

impl Name {
    pub fn of(queue: &Arc<str>, push: &Push) -> Self {
        Self { queue: Arc::clone(queue), url: Arc::clone(&push.url) }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Name").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// This many failures in a row open a circuit, or one delivery to a target that cannot be reached.
const FAILURES: u32 = 5;
/// The pause before the first probe; it doubles with every probe that fails.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub struct Circuits {
    /// Only targets that have failed.
    troubled: Mutex<HashMap<Name, Circuit>>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Circuit {
    failures: u32,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    probe_at: Instant,
    pause: Duration,
    probing: bool,
}

/// What may be delivered to a target now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    Free,
    /// One delivery, to see whether it answers again.
    Probe,
    /// Nothing before this time, or before the outcome of the probe is known.
    Shut {
        until: Instant,
    },
}

impl Circuits {
    pub fn gate(&self, name: &Name, now: Instant) -> Gate {
        match self.troubled().get(name).and_then(|circuit| circuit.open.as_ref()) {
            None => Gate::Free,
            Some(open) if open.probing => Gate::Shut { until: now + PAUSE },
            Some(open) if open.probe_at <= now => Gate::Probe,
            Some(open) => Gate::Shut { until: open.probe_at },
        }
    }

    /// Takes the one delivery that is allowed. Dropping it without a report gives it back.
    pub fn probe(self: &Arc<Self>, name: &Name, now: Instant) -> Option<Probe> {
        let mut troubled = self.troubled();
        let open = troubled.get_mut(name)?.open.as_mut().filter(|open| !open.probing && open.probe_at <= now)?;
        open.probing = true;
        Some(Probe { circuits: Arc::clone(self), name: name.clone() })
    }

    /// Takes note of what a delivery that was not a probe says about its target.
    pub fn report(&self, name: &Name, health: Health, now: Instant) {
        let mut troubled = self.troubled();
        match health {
            Health::Alive => self.close(&mut troubled, name),
            Health::Down | Health::Gone => {
                let circuit = troubled.entry(name.clone()).or_default();
                let failures = if health == Health::Gone { FAILURES } else { 1 };
                circuit.failures = circuit.failures.saturating_add(failures);
                // What was on its way when the circuit opened says nothing new.
                if circuit.failures >= FAILURES && circuit.open.is_none() {
                    circuit.open = Some(Open { since: now, probe_at: now + PAUSE, pause: PAUSE, probing: false });
                    tracing::warn!(queue.name = %name.queue, "push target does not answer: granting no tasks for it");
                    metrics::counter!("tenure_push_circuits_opened_total").increment(1);
                    self.tell(&troubled);
                }
            }
        }
    }

    fn close(&self, troubled: &mut HashMap<Name, Circuit>, name: &Name) {
        if let Some(Circuit { open: Some(open), .. }) = troubled.remove(name) {
            tracing::info!(queue.name = %name.queue, down_seconds = open.since.elapsed().as_secs(), "push target answers again");
            self.tell(troubled);
        }
    }

    /// How long nothing has been granted for a target.
    pub fn open_for(&self, name: &Name, now: Instant) -> Option<Duration> {
        let troubled = self.troubled();
        troubled.get(name)?.open.as_ref().map(|open| now.saturating_duration_since(open.since))
    }

    /// Ends when some circuit opens or closes.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Forgets targets that no queue has any more.
    pub fn keep(&self, wanted: impl Fn(&Name) -> bool) {
        let mut troubled = self.troubled();
        let before = troubled.len();
        troubled.retain(|name, _| wanted(name));
        if troubled.len() < before {
            self.tell(&troubled);
        }
    }

    fn tell(&self, troubled: &HashMap<Name, Circuit>) {
        let open = troubled.values().filter(|circuit| circuit.open.is_some()).count();
        metrics::gauge!("tenure_push_circuits_open").set(open as f64);
        self.changed.notify_waiters();
    }

    fn troubled(&self) -> MutexGuard<'_, HashMap<Name, Circuit>> {
        self.troubled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one delivery to a target whose circuit is open.
#[derive(Debug)]
pub struct Probe {
    circuits: Arc<Circuits>,
    name: Name,
}

impl Probe {
    pub fn report(self, health: Health, now: Instant) {
        let mut troubled = self.circuits.troubled();
        match health {
            Health::Alive => self.circuits.close(&mut troubled, &self.name),
            Health::Down | Health::Gone => {
                if let Some(open) = troubled.get_mut(&self.name).and_then(|circuit| circuit.open.as_mut()) {
                    open.pause = (open.pause * 2).min(PAUSE_MAX);
                    open.probe_at = now + open.pause;
                }
            }
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let mut troubled = self.circuits.troubled();
        if let Some(open) = troubled.get_mut(&self.name).and_then(|circuit| circuit.open.as_mut()) {
            open.probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(url: &str) -> Name {
        Name { queue: "q".into(), url: url.into() }
    }

    fn opened() -> (Arc<Circuits>, Name, Instant) {
        let (circuits, dead, now) = (Arc::new(Circuits::default()), name("https://dead:443"), Instant::now());
        for _ in 0..FAILURES {
            assert_eq!(circuits.gate(&dead, now), Gate::Free);
            circuits.report(&dead, Health::Down, now);
        }
        (circuits, dead, now)
    }

    #[test]
    fn an_address_is_not_shown() {
        assert!(!format!("{:?}", name("https://w.example/hook?token=hunter2")).contains("hunter2"));
    }

    #[test]
    fn a_few_failures_in_a_row_open_it_and_other_targets_are_untouched() {
        let (circuits, dead, now) = opened();
        assert_eq!(circuits.gate(&dead, now), Gate::Shut { until: now + PAUSE });
        assert_eq!(circuits.gate(&name("https://well:443"), now), Gate::Free);
        assert!(circuits.open_for(&dead, now).is_some());
    }

    #[test]
    fn a_target_that_cannot_be_reached_opens_it_at_once() {
        let (circuits, gone, now) = (Circuits::default(), name("https://gone:443"), Instant::now());
        circuits.report(&gone, Health::Gone, now);
        assert_eq!(circuits.gate(&gone, now), Gate::Shut { until: now + PAUSE });
    }

    #[test]
    fn a_success_in_between_starts_the_count_again() {
        let (circuits, target, now) = (Circuits::default(), name("https://h:443"), Instant::now());
        for _ in 0..3 {
            (1..FAILURES).for_each(|_| circuits.report(&target, Health::Down, now));
            circuits.report(&target, Health::Alive, now);
        }
        assert_eq!(circuits.gate(&target, now), Gate::Free);
    }

    #[test]
    fn one_probe_goes_through_after_the_pause() {
        let (circuits, dead, now) = opened();
        assert!(circuits.probe(&dead, now).is_none(), "too early");
        let later = now + PAUSE;
        assert_eq!(circuits.gate(&dead, later), Gate::Probe);
        let probe = circuits.probe(&dead, later).unwrap();
        assert!(circuits.probe(&dead, later).is_none());
        assert!(matches!(circuits.gate(&dead, later), Gate::Shut { .. }));
        drop(probe);
        assert_eq!(circuits.gate(&dead, later), Gate::Probe, "a probe that was not used is there for another");
    }

    #[test]
    fn a_probe_that_fails_makes_the_pause_longer_up_to_a_bound() {
        let (circuits, dead, mut now) = opened();
        now += PAUSE;
        for pause in [2, 4, 8, 16, 30, 30] {
            circuits.probe(&dead, now).unwrap().report(Health::Down, now);
            let until = now + Duration::from_secs(pause);
            assert_eq!(circuits.gate(&dead, now), Gate::Shut { until });
            // What was on its way before changes nothing.
            circuits.report(&dead, Health::Down, now);
            assert_eq!(circuits.gate(&dead, now), Gate::Shut { until });
            now = until;
        }
        circuits.probe(&dead, now).unwrap().report(Health::Alive, now);
        assert_eq!(circuits.gate(&dead, now), Gate::Free);
        assert!(circuits.open_for(&dead, now).is_none());
    }

    #[test]
    fn a_target_that_no_queue_has_is_forgotten() {
        let (circuits, dead, now) = opened();
        circuits.keep(|known| *known != dead);
        assert_eq!(circuits.gate(&dead, now), Gate::Free);
    }
}
