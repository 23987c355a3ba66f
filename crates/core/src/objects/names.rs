//! Files that say in their names which range they hold.

use crate::dag::range::{Cursor, Ranges, Span};

const END: &str = ".parquet";

/// `blocks_{start}_{end}.parquet`, with ends as the DAG writes them. `None` if this kind of range cannot express the span.
pub fn file_name(name: &str, ranges: Ranges, span: Span) -> Option<String> {
    let (start, end) = ranges.outside(span)?;
    Some(format!("{name}_{start}_{end}{END}"))
}

/// The name and the range of such a file; other names have none.
pub fn parse_file_name(file: &str, ranges: Ranges) -> Option<(&str, Span)> {
    let (rest, end) = file.strip_suffix(END)?.rsplit_once('_')?;
    let (name, start) = rest.rsplit_once('_')?;
    Some((name, ranges.inside(Cursor::parse(start)?, Cursor::parse(end)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_is_in_the_name() {
        let span = Span::new(1_000, 1_100).unwrap();
        assert_eq!(file_name("blocks", Ranges::Inclusive, span).unwrap(), "blocks_1000_1099.parquet");
        assert_eq!(file_name("blocks", Ranges::HalfOpen, span).unwrap(), "blocks_1000_1100.parquet");
        for ranges in [Ranges::Inclusive, Ranges::HalfOpen] {
            let file = file_name("eth_logs", ranges, span).unwrap();
            assert_eq!(parse_file_name(&file, ranges), Some(("eth_logs", span)));
        }
        for other in [
            "blocks.parquet",
            "blocks_1.parquet",
            "blocks_01_2.parquet",
            "blocks_3_2.parquet",
            "b_1_2.csv",
            "b_1_x.parquet",
        ] {
            assert_eq!(parse_file_name(other, Ranges::Inclusive), None, "{other}");
        }
    }
}
