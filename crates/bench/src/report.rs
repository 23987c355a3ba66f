//! What a measurement leaves: a table for people, JSON for programs, a picture.

use serde::{Deserialize, Serialize};

use crate::picture::Picture;
use crate::stand::Place;
use crate::{process, samples::Percentiles};

/// A finished measurement.
pub trait Report: erased::Json {
    fn table(&self) -> Table;
    fn picture(&self) -> Picture;
}

mod erased {
    /// Serialization that can stand behind a `dyn`.
    pub trait Json {
        fn json(&self) -> serde_json::Result<String>;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> serde_json::Result<String> {
            serde_json::to_string_pretty(self)
        }
    }
}

/// Rows for a terminal.
#[derive(Debug, Default)]
pub struct Table {
    pub header: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// What has to be said beside it.
    pub notes: Vec<String>,
}

/// What the figures depend on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    pub processor: Option<String>,
    pub system: String,
    /// Absent when the control plane was given and its store is not known.
    pub store_version: Option<String>,
    pub tenure_version: String,
}

impl Machine {
    pub async fn look(place: Option<&Place>) -> anyhow::Result<Self> {
        let store_version = match place {
            Some(place) => Some(place.store_version().await?),
            None => None,
        };
        Ok(Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: process::processor_name(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            store_version,
            tenure_version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    /// One line below a picture.
    pub fn line(&self) -> String {
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        let store = self.store_version.as_deref().unwrap_or("store unknown");
        format!("{store}; {} cores, {processor}, {}; tenure {}", self.cores, self.system, self.tenure_version)
    }
}

/// `12,345`
pub fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `0.84 ms`, `12.3 ms`, `1,204 ms`
pub fn milliseconds(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2} ms"),
        value if value < 100.0 => format!("{value:.1} ms"),
        value => format!("{} ms", count(value)),
    }
}

/// `84 %`
pub fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

/// `31.4 MB`
pub fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// The cells of percentiles in the order of [`PERCENTILES`].
pub fn cells(found: &Percentiles) -> Vec<String> {
    [found.p50, found.p90, found.p99, found.max].map(milliseconds).into()
}

pub const PERCENTILES: [&str; 4] = ["p50", "p90", "p99", "max"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([0.0, 999.4, 1000.0, 1_234_567.0, -1234.0].map(count), ["0", "999", "1,000", "1,234,567", "-1,234"]);
        assert_eq!([0.844, 12.34, 1204.0].map(milliseconds), ["0.84 ms", "12.3 ms", "1,204 ms"]);
        assert_eq!(percent(0.756), "76 %");
    }
}
