//! Rows as a table that fits the terminal.

use std::borrow::Cow;

use console::{Alignment, measure_text_width, pad_str, style, truncate_str};
use serde_json::value::RawValue;
use tenure_client::query::{QueryRows, ResultColumn};

use crate::output::clean;

/// Between columns.
const GAP: usize = 2;
/// A column of text has at least this much; with less, rows are shown one below the other.
const LEAST: usize = 8;

pub struct Drawn {
    pub text: String,
    /// Whether values are cut.
    pub cut: bool,
}

/// A value as it is shown.
enum Value {
    Null,
    Text(String),
}

impl Value {
    fn of(raw: &RawValue) -> Self {
        let raw = raw.get();
        match serde_json::from_str::<Option<String>>(raw) {
            Ok(None) => Self::Null,
            // Told apart from what stands for no value.
            Ok(Some(text)) if text == "NULL" => Self::Text("'NULL'".to_owned()),
            Ok(Some(text)) => Self::Text(clean(&text)),
            Err(_) => Self::Text(clean(raw)),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Null => "NULL",
            Self::Text(text) => text,
        }
    }
}

/// Draws rows for a terminal of this width, or with as much as they need.
pub fn draw(rows: &QueryRows, width: Option<usize>) -> Result<Drawn, serde_json::Error> {
    let cells: Vec<Vec<&RawValue>> = rows.rows.decode()?;
    let cells: Vec<Vec<Value>> = cells.iter().map(|row| row.iter().map(|raw| Value::of(raw)).collect()).collect();
    let names: Vec<String> = rows.columns.iter().map(|column| clean(&column.name)).collect();
    if names.is_empty() {
        return Ok(Drawn { text: String::new(), cut: false });
    }
    let natural = widths(&names, &cells);
    let fitting = match width {
        None => Some(natural.clone()),
        Some(width) => fit(&natural, &rows.columns, width),
    };
    Ok(match fitting {
        Some(widths) => {
            let cut = widths.iter().zip(&natural).any(|(width, natural)| width < natural);
            Drawn { text: side_by_side(&names, &rows.columns, &cells, &widths), cut }
        }
        None => below_each_other(&names, &cells, width.unwrap_or(usize::MAX)),
    })
}

fn widths(names: &[String], cells: &[Vec<Value>]) -> Vec<usize> {
    let mut widths: Vec<usize> = names.iter().map(|name| measure_text_width(name)).collect();
    for row in cells {
        for (width, value) in widths.iter_mut().zip(row) {
            *width = (*width).max(measure_text_width(value.text()));
        }
    }
    widths
}

fn is_number(column: &ResultColumn) -> bool {
    ["int", "uint", "float", "decimal"].iter().any(|kind| column.kind.starts_with(kind)) && column.kind != "interval"
}

/// The wide columns of text become narrower, all to the same width. None: that is not enough.
fn fit(natural: &[usize], columns: &[ResultColumn], width: usize) -> Option<Vec<usize>> {
    let room = width.checked_sub(GAP * (natural.len() - 1))?;
    let cut_to = |least: usize| {
        let one = |(natural, column): (&usize, &ResultColumn)| {
            if is_number(column) { *natural } else { (*natural).min(least) }
        };
        natural.iter().zip(columns).map(one).collect::<Vec<_>>()
    };
    let fits = |least: &usize| cut_to(*least).iter().sum::<usize>() <= room;
    (LEAST..=room.max(LEAST)).rev().find(fits).map(cut_to)
}

fn side_by_side(names: &[String], columns: &[ResultColumn], cells: &[Vec<Value>], widths: &[usize]) -> String {
    let padded = |text: &str, column: &ResultColumn, width: usize| {
        let alignment = if is_number(column) { Alignment::Right } else { Alignment::Left };
        pad_str(&cut(text, width), width, alignment, None).into_owned()
    };
    let places = || columns.iter().zip(widths);
    let header = names.iter().zip(places()).map(|(name, (column, width))| bold(&padded(name, column, *width)));
    let mut lines = vec![line(header)];
    for row in cells {
        lines.push(line(row.iter().zip(places()).map(|(value, (column, width))| {
            let text = padded(value.text(), column, *width);
            if matches!(value, Value::Null) { dim(&text) } else { text }
        })));
    }
    lines.concat()
}

/// Cells beside each other, without blanks at the end.
fn line(cells: impl Iterator<Item = String>) -> String {
    format!("{}\n", cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end())
}

/// One line for each value.
fn below_each_other(names: &[String], cells: &[Vec<Value>], width: usize) -> Drawn {
    let name_width = names.iter().map(|name| measure_text_width(name)).max().unwrap_or_default().min(width / 2);
    let room = width.saturating_sub(name_width + GAP).max(LEAST);
    let (mut text, mut is_cut) = (String::new(), false);
    for (number, row) in cells.iter().enumerate() {
        text.push_str(&format!("{}\n", dim(&format!("row {}", number + 1))));
        for (name, value) in names.iter().zip(row) {
            is_cut |= measure_text_width(value.text()) > room;
            let name = pad_str(&cut(name, name_width), name_width, Alignment::Left, None).into_owned();
            let shown = cut(value.text(), room);
            let shown = if matches!(value, Value::Null) { dim(&shown) } else { shown.into_owned() };
            text.push_str(&format!("{}{}{shown}\n", bold(&name), " ".repeat(GAP)));
        }
    }
    Drawn { text, cut: is_cut }
}

/// At most this much of a text. A terminal may have no width at all.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if width == 0 { Cow::Borrowed("") } else { truncate_str(text, width, "…") }
}

fn bold(text: &str) -> String {
    style(text).bold().to_string()
}

fn dim(text: &str) -> String {
    style(text).dim().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(columns: &[(&str, &str)], rows: serde_json::Value) -> QueryRows {
        console::set_colors_enabled(false);
        let columns: Vec<_> = columns.iter().map(|(name, kind)| json!({"name": name, "type": kind})).collect();
        let answer = json!({"mode": "inline", "delivery": "inline", "query_id": "q", "truncated": false,
            "row_count": rows.as_array().unwrap().len(), "duration_ms": 1, "columns": columns, "rows": rows});
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn numbers_are_on_the_right_and_null_is_told_apart() {
        let rows = rows(
            &[("name", "text"), ("n", "int64"), ("d", "decimal(10,2)"), ("j", "list<int64>")],
            json!([["a\tb\u{1b}[1m", 1, "12.50", [1, 2]], [null, null, null, null], ["NULL", 100, "-1.00", []]]),
        );
        let drawn = draw(&rows, None).unwrap();
        let expected = [
            "name        n      d  j",
            "a b\u{fffd}[1m     1  12.50  [1,2]",
            "NULL     NULL   NULL  NULL",
            "'NULL'    100  -1.00  []",
            "",
        ]
        .join("\n");
        assert_eq!(drawn.text, expected);
        assert!(!drawn.cut);
    }

    #[test]
    fn a_table_fits_the_terminal_and_keeps_its_numbers() {
        let long = "x".repeat(100);
        let rows =
            rows(&[("a", "text"), ("n", "int64"), ("b", "text")], json!([[long, 1_234_567_890_123_i64, "short"]]));
        let drawn = draw(&rows, Some(40)).unwrap();
        assert!(drawn.cut && drawn.text.lines().all(|line| measure_text_width(line) <= 40), "{}", drawn.text);
        assert!(drawn.text.contains("1234567890123") && drawn.text.contains("short"), "{}", drawn.text);
        assert!(!draw(&rows, Some(140)).unwrap().cut);
        let wide = rows_of_wide_text();
        let drawn = draw(&wide, Some(20)).unwrap();
        assert!(drawn.text.lines().all(|line| measure_text_width(line) <= 20), "{}", drawn.text);
    }

    fn rows_of_wide_text() -> QueryRows {
        rows(&[("名前", "text"), ("n", "int8")], json!([["日本語日本語日本語", 1]]))
    }

    #[test]
    fn many_columns_are_shown_one_below_the_other() {
        let names: Vec<String> = (0..20).map(|n| format!("column_{n}")).collect();
        let columns: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "text")).collect();
        let row: Vec<_> = (0..20).map(|n| if n == 3 { json!(null) } else { json!("value ".repeat(n)) }).collect();
        let drawn = draw(&rows(&columns, json!([row])), Some(60)).unwrap();
        assert!(
            drawn.text.starts_with("row 1\ncolumn_0   \n") || drawn.text.starts_with("row 1\ncolumn_0 "),
            "{}",
            drawn.text
        );
        assert!(drawn.text.contains("column_3   NULL\n") && drawn.cut, "{}", drawn.text);
        assert!(drawn.text.lines().all(|line| measure_text_width(line) <= 60), "{}", drawn.text);
    }

    #[test]
    fn no_rows_have_a_header_and_a_width_of_nothing_is_survived() {
        assert_eq!(draw(&rows(&[("a", "text")], json!([])), Some(80)).unwrap().text, "a\n");
        for width in [0, 1, 2, 5] {
            draw(&rows(&[("a", "text"), ("b", "int64")], json!([["x", 1]])), Some(width)).unwrap();
        }
    }
}
