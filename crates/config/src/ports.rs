use std::ops::RangeInclusive;

/// More entries are not needed, and each is compared with every port.
const ENTRIES: usize = 64;

/// A set of ports, such as `3000,8000-8999`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports(Vec<RangeInclusive<u16>>);

impl Ports {
    /// Ports and ranges, separated by commas.
    pub fn parse(text: &str) -> Option<Self> {
        let entries: Vec<_> = text.split(',').map(range).collect::<Option<_>>()?;
        (entries.len() <= ENTRIES).then_some(Self(entries))
    }

    pub fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }

    pub fn ranges(&self) -> &[RangeInclusive<u16>] {
        &self.0
    }
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_ranges_are_read() {
        let ports = Ports::parse("1024-65535").unwrap();
        assert!(ports.contains(1024) && ports.contains(65_535) && !ports.contains(1023));
        let ports = Ports::parse("80, 8000 - 8002").unwrap();
        let found: Vec<_> = (0..=u16::MAX).filter(|port| ports.contains(*port)).collect();
        assert_eq!(found, [80, 8000, 8001, 8002]);
        for text in ["", "0", "80,", "9-8", "1-65536", "-1", "a", "1-2-3", &vec!["1"; 65].join(",")] {
            assert_eq!(Ports::parse(text), None, "{text}");
        }
    }
}
