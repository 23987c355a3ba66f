use crate::dag::range::Span;

/// A set of values as spans that neither overlap nor touch, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spans(Vec<Span>);

impl Spans {
    /// `None` if these spans are not such a set.
    pub fn read(pairs: &[(u64, u64)]) -> Option<Self> {
        let mut spans = Self::default();
        for (start, end) in pairs {
            let span = Span::new(*start, *end).filter(|span| !span.is_empty())?;
            if spans.0.last().is_some_and(|last| last.end() >= span.start()) {
                return None;
            }
            spans.0.push(span);
        }
        Some(spans)
    }

    pub fn pairs(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|span| (span.start(), span.end())).collect()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn insert(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let first = self.0.partition_point(|known| known.end() < span.start());
        let after = self.0.partition_point(|known| known.start() <= span.end());
        let joined = &self.0[first..after];
        let start = joined.first().map_or(span.start(), |known| known.start().min(span.start()));
        let end = joined.last().map_or(span.end(), |known| known.end().max(span.end()));
        self.0.splice(first..after, Span::new(start, end));
    }

    pub fn contains(&self, span: Span) -> bool {
        span.is_empty() || self.around(span.start()).is_some_and(|known| known.end() >= span.end())
    }

    /// The first value from `value` on that is not in the set.
    pub fn gap_from(&self, value: u64) -> u64 {
        self.around(value).map_or(value, |known| known.end())
    }

    /// The span that contains a value.
    fn around(&self, value: u64) -> Option<Span> {
        let after = self.0.partition_point(|known| known.start() <= value);
        self.0[..after].last().copied().filter(|known| known.end() > value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_the_values_of_every_span(inserted in proptest::collection::vec((0_u64..60, 0_u64..12), 0..20)) {
            let (mut spans, mut values) = (Spans::default(), BTreeSet::new());
            for (start, len) in inserted {
                spans.insert(Span::new(start, start + len).unwrap());
                values.extend(start..start + len);
                let held: Vec<u64> = spans.pairs().into_iter().flat_map(|(start, end)| start..end).collect();
                prop_assert_eq!(&held, &values.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(Spans::read(&spans.pairs()), Some(spans.clone()), "in order, and nothing touches");
            }
            for start in 0..72 {
                prop_assert_eq!(spans.gap_from(start), (start..).find(|value| !values.contains(value)).unwrap());
                for end in start..72 {
                    let all = (start..end).all(|value| values.contains(&value));
                    prop_assert_eq!(spans.contains(Span::new(start, end).unwrap()), all);
                }
            }
        }
    }
}
