//! The DAG of the demo, and what its numbers must come to.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub const NAME: &str = "demo";
/// What the jobs write, in their order.
pub const DATASETS: [&str; 4] = ["asked", "due", "raised", "sums"];
/// The file of a sum.
pub const SUM: &str = "sum.txt";
/// Ranges that the manual source is fired with.
pub const RANGES: [(u64, u64); 4] = [(0, 99), (100, 199), (200, 299), (300, 399)];
/// The range whose first attempt dies with its worker.
pub const HELD: (u64, u64) = (400, 499);
/// Of the two versions.
pub const POWERS: [u32; 2] = [2, 3];

/// A lease of two seconds: what a killed worker held is soon noticed.
pub fn yaml(power: u32) -> String {
    format!(
        r#"name: {NAME}
defaults: {{ max_attempts: 3, heartbeat_timeout_seconds: 2 }}
jobs:
  - name: backfill
    activation: source
    runtime: worker
    operator: read
    outputs: 1
    source: {{ kind: manual }}
  - name: every-minute
    activation: source
    runtime: worker
    operator: read
    outputs: 1
    source: {{ kind: cron, schedule: "* * * * *" }}
  - name: power
    activation: reactive
    runtime: worker
    operator: power
    outputs: 1
    inputs: [{{ from: {{ dataset: asked }} }}, {{ from: {{ dataset: due }} }}]
    execution_strategy: PerPartition
    update_strategy: replace
    config: {{ power: {power} }}
  - name: sum
    activation: reactive
    runtime: worker
    operator: sum
    outputs: 1
    inputs: [{{ from: {{ dataset: raised }} }}]
    execution_strategy: PerPartition
    update_strategy: replace
publish:
  asked: {{ from: {{ job: backfill, output: 0 }} }}
  due: {{ from: {{ job: every-minute, output: 0 }} }}
  raised: {{ from: {{ job: power, output: 0 }} }}
  sums: {{ from: {{ job: sum, output: 0 }} }}
"#
    )
}

/// The config of `power`.
#[derive(Debug, Deserialize)]
pub struct Config {
    pub power: u32,
}

/// Why a source runs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Wanted {
    scheduled_at: Option<Timestamp>,
    input: Option<Asked>,
}

/// What the manual source is fired with.
#[derive(Debug, Serialize, Deserialize)]
pub struct Asked {
    start: u64,
    end: u64,
    hold: bool,
}

impl Wanted {
    /// A cron slot is the range of its minute since 1970.
    pub fn range(&self) -> Option<(u64, u64)> {
        let minute = |at: &Timestamp| u64::try_from(at.as_second() / 60).ok();
        let asked = self.input.as_ref().map(|asked| (asked.start, asked.end));
        asked.or_else(|| self.scheduled_at.as_ref().and_then(minute).map(|minute| (minute, minute)))
    }

    pub fn holds(&self) -> bool {
        self.input.as_ref().is_some_and(|asked| asked.hold)
    }
}

pub fn asked((start, end): (u64, u64)) -> Value {
    json!(Asked { start, end, hold: (start, end) == HELD })
}

pub fn key((start, end): (u64, u64)) -> String {
    format!("{start}-{end}")
}

pub fn raised(number: u64, power: u32) -> u128 {
    u128::from(number).saturating_pow(power)
}

/// What the sum of a range must be.
pub fn sum_of(start: u64, end: u64, power: u32) -> u128 {
    (start..=end).map(|number| raised(number, power)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trigger_is_a_range() {
        let of = |trigger: Value| serde_json::from_value::<Wanted>(trigger).unwrap();
        let manual = of(json!({"kind": "manual", "request_id": "r", "input": asked(HELD)}));
        assert_eq!((manual.range(), manual.holds()), (Some(HELD), true));
        let cron = of(json!({"kind": "cron", "scheduled_at": "1970-01-01T01:00:00Z"}));
        assert_eq!((cron.range(), cron.holds()), (Some((60, 60)), false));
        assert_eq!(of(json!({"kind": "always_on"})).range(), None);
    }

    #[test]
    fn sums_are_those_of_the_powers() {
        assert_eq!((sum_of(0, 3, 2), sum_of(2, 3, 3), key((0, 99)).as_str()), (14, 35, "0-99"));
    }
}
