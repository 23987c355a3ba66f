//! What people and scripts read: tables, cards, JSON.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Context;
use comfy_table::{Attribute, Cell, Color, ColumnConstraint, ContentArrangement, Row, Table, presets};
use console::{Style, StyledObject, style};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tenure_contract::user::Page;
use tenure_core::text::is_unseen;

/// The reader of stdout, such as `head`, has closed it.
#[derive(Debug, thiserror::Error)]
#[error("the output is closed")]
pub struct ReaderGone;

/// Writes a line to stdout.
pub fn line(text: impl AsRef<str>) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let text = text.as_ref();
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    match write!(stdout, "{text}{newline}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("standard output could not be written"),
    }
}

/// Writes the JSON of the API, one value on one line.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string(value)?)
}

/// Writes a page of a list: the JSON of the API, or a table and whether there is more.
pub fn page<T: Serialize>(
    page: &Page<T>,
    as_json: bool,
    none: &str,
    table: impl FnOnce(&[T]) -> String,
) -> anyhow::Result<()> {
    if as_json {
        return json(page);
    }
    if page.items.is_empty() {
        return line(none);
    }
    line(table(&page.items))?;
    if page.next_cursor.is_some() {
        eprintln!("There are more: use --all or a larger --limit.");
    }
    Ok(())
}

pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes a line about what is going on: not for scripts, which read stdout.
pub fn progress_line(bar: Option<&ProgressBar>, text: &str) {
    match bar {
        Some(bar) => bar.suspend(|| eprintln!("{text}")),
        None => eprintln!("{text}"),
    }
}

/// A bar on stderr if somebody looks there. The template says what follows the bar.
pub fn progress_bar(length: u64, after: &str) -> Option<ProgressBar> {
    if !io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::new(length).with_style(bar_style(&format!("{{spinner:.cyan}} {{bar:30.cyan/dim}} {after}")));
    bar.enable_steady_tick(TICK);
    Some(bar)
}

/// The look of every bar.
pub fn bar_style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("━╸━")
}

/// The same in a text that does not move.
pub fn meter(percent: u8) -> String {
    let filled = usize::from(percent.min(100)) * METER / 100;
    format!("{}{} {percent} %", "━".repeat(filled), dim("─".repeat(METER - filled)))
}

/// Text of others, safe for a terminal: control characters could move the cursor or recolour what follows, and marks of
/// direction could show it in another order.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\r' | '\t' => ' ',
            c if is_unseen(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// At most `length` characters of it.
pub fn shortened(text: &str, length: usize) -> String {
    let text = clean(text);
    match text.char_indices().nth(length) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Breaks a text between words into lines of this width; those after the first are indented. Colours have no width.
pub fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let (mut lines, mut column) = (String::new(), 0);
    for (index, word) in text.split(' ').enumerate() {
        let length = console::measure_text_width(word);
        if index > 0 && column + 1 + length > width && column > indent {
            lines += &format!("\n{}", " ".repeat(indent));
            column = indent;
        } else if index > 0 {
            lines.push(' ');
            column += 1;
        }
        lines += word;
        column += length;
    }
    lines
}

/// The width of the terminal that a text is for, if it is for one.
pub fn width_of(terminal: &console::Term) -> Option<usize> {
    terminal.is_term().then(|| usize::from(terminal.size().1))
}

/// Between two pictures of a bar.
const TICK: Duration = Duration::from_millis(100);
/// Characters of a meter.
const METER: usize = 24;
/// What the last column must have at least for its lines to be broken.
const LAST_COLUMN_MIN: u16 = 16;
/// Between columns.
const GAP: u16 = 2;
/// A name of this length, such as an id, can have a line of its own. The last column then has at least so much.
const LONG_NAME: usize = 24;
const REST_MIN: usize = 12;

/// A table without lines, as narrow as it can be. On a terminal the last column is broken where it does not fit. Rows whose
/// long name leaves no room for the rest have it in a line of its own.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<Cell>>) -> String {
    let rows: Vec<_> = rows.into_iter().collect();
    let below = if is_terminal() { stacked(header, &rows, console::Term::stdout().size().1) } else { None };
    below.unwrap_or_else(|| {
        let mut table = plain(header, rows);
        fit(&mut table);
        table.trim_fmt()
    })
}

fn plain(header: &[&str], rows: Vec<Vec<Cell>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let header = header.iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold));
    table.set_header(Row::from(header.collect::<Vec<_>>()));
    table.add_rows(rows);
    table
}

/// The names in lines of their own, if they are long and there is no room for the rest beside them.
fn stacked(header: &[&str], rows: &[Vec<Cell>], terminal: u16) -> Option<String> {
    let (terminal, gap) = (usize::from(terminal), usize::from(GAP));
    let mut widths: Vec<usize> = header.iter().map(|name| name.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.content().chars().count());
        }
    }
    let (first, others) = widths.split_first()?;
    let (last, middle) = others.split_last()?;
    let fixed: usize = middle.iter().map(|width| width + gap).sum();
    let fits = first + gap + fixed + (*last).min(LAST_COLUMN_MIN.into()) <= terminal;
    let rest = terminal.checked_sub(gap + fixed + 1).filter(|rest| *rest >= REST_MIN)?;
    if fits || *first < LONG_NAME {
        return None;
    }
    let below = rows.iter().map(|row| {
        let mut cells: Vec<Cell> = row.iter().skip(1).cloned().collect();
        if let Some(cell) = cells.last_mut().filter(|cell| cell.content().chars().count() > rest) {
            *cell = Cell::new(shortened(&cell.content(), rest - 1));
        }
        cells
    });
    let mut table = plain(&header[1..], below.collect());
    gaps(&mut table);
    let text = trimmed(&table);
    let names = std::iter::once(style(header[0].to_owned()).bold().to_string());
    let names = names.chain(rows.iter().filter_map(|row| row.first()).map(Cell::content));
    let lines: Vec<String> = names.zip(text.lines()).map(|(name, line)| format!("{name}\n  {line}")).collect();
    Some(lines.join("\n"))
}

/// Without blanks at the ends of lines, also where a colour ends after them: they would not fit the terminal.
fn trimmed(table: &Table) -> String {
    const RESET: &str = "\u{1b}[0m";
    let lines = table.lines().map(|line| match line.strip_suffix(RESET) {
        Some(line) => format!("{}{RESET}", line.trim_end()),
        None => line.trim_end().to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Gaps and colours as wanted, lines broken only for somebody who looks.
pub fn fit(table: &mut Table) {
    let widths = gaps(table);
    if is_terminal() {
        arrange(table, &widths, console::Term::stdout().size().1);
    }
}

fn gaps(table: &mut Table) -> Vec<u16> {
    if console::colors_enabled() {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    let widths = table.column_max_content_widths();
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    widths
}

/// Makes a table as wide as the terminal at most. The last column is broken first; where that is not enough, all but the
/// first are.
fn arrange(table: &mut Table, widths: &[u16], terminal: u16) {
    let Some((_, others)) = widths.split_last() else { return };
    let fixed: u16 = others.iter().map(|width| width + GAP).sum();
    let whole = if fixed + LAST_COLUMN_MIN <= terminal { others.len() } else { 1 };
    table.set_width(terminal);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    for column in table.column_iter_mut().take(whole) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
}

pub fn cell(text: impl AsRef<str>) -> Cell {
    Cell::new(clean(text.as_ref()))
}

/// Stands for what is not there.
pub fn cell_or_dash(text: Option<impl AsRef<str>>) -> Cell {
    text.map_or_else(|| Cell::new("-").fg(Color::DarkGrey), cell)
}

pub fn number(number: impl ToString) -> Cell {
    Cell::new(number.to_string()).set_alignment(comfy_table::CellAlignment::Right)
}

pub fn state_cell(state: &str) -> Cell {
    let cell = cell(state);
    match state {
        "Succeeded" => cell.fg(Color::Green),
        "Failed" | "error" => cell.fg(Color::Red),
        "Running" | "running" => cell.fg(Color::Cyan),
        "Canceled" | "Canceling" | "Skipped" | "unhealthy" | "expired" => cell.fg(Color::Yellow),
        _ => cell,
    }
}

pub fn state_styled(state: &str) -> StyledObject<String> {
    let colours = match state {
        "Succeeded" => Style::new().green(),
        "Failed" | "error" => Style::new().red(),
        "Running" | "running" => Style::new().cyan(),
        "Canceled" | "Canceling" | "Skipped" | "unhealthy" | "expired" => Style::new().yellow(),
        _ => Style::new(),
    };
    colours.bold().apply_to(clean(state))
}

pub fn dim(text: impl Into<String>) -> StyledObject<String> {
    style(text.into()).dim()
}

/// Names and values below each other.
#[derive(Debug, Default)]
pub struct Card(Vec<(&'static str, String)>);

impl Card {
    pub fn row(&mut self, name: &'static str, value: impl Into<String>) -> &mut Self {
        self.0.push((name, value.into()));
        self
    }

    pub fn row_if(&mut self, name: &'static str, value: Option<impl Into<String>>) -> &mut Self {
        if let Some(value) = value {
            self.row(name, value);
        }
        self
    }

    pub fn render(&self) -> String {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        self.0.iter().map(|(name, value)| format!("  {}  {value}\n", dim(format!("{name:width$}")))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_colours_and_no_blanks_at_the_end_of_lines_off_a_terminal() {
        console::set_colors_enabled(false);
        let text = table(
            &["TASK", "STATE"],
            [vec![cell("a"), state_cell("Succeeded")], vec![cell("bcdefg"), state_cell("Ready")]],
        );
        assert_eq!(text, "TASK    STATE\na       Succeeded\nbcdefg  Ready");
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let id = "01a1e166-ad02-78c0-8000-000000000019";
        for (width, note) in [(200, "short"), (80, "a note that has some words more than fit"), (60, "w-1 40 %")] {
            let mut table = Table::new();
            table.load_style(presets::NOTHING).force_no_tty();
            table.add_row([id, "reports-nightly", "extract-and-load", "Running", "1/3", "12m", note]);
            let widths = table.column_max_content_widths();
            for column in table.column_iter_mut() {
                column.set_padding((0, GAP));
            }
            arrange(&mut table, &widths, width);
            let text = table.to_string();
            let longest = text.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
            assert!(longest <= usize::from(width), "{width}: {longest}\n{text}");
            assert!(text.contains(id), "the first column can be copied: {text}");
        }
    }

    #[test]
    fn a_long_name_has_a_line_of_its_own_where_there_is_no_room() {
        console::set_colors_enabled(false);
        let id = "01a1e166-ad02-78c0-8000-000000000019";
        let header = ["TASK", "QUEUE", "STATE", "NOTE"];
        let rows = [
            vec![cell(id), cell("reports-nightly"), state_cell("Canceled"), cell("a reason of many words")],
            vec![cell(id), cell("q"), state_cell("Ready"), cell("-")],
        ];
        assert_eq!(stacked(&header, &rows, 120), None);
        let text = stacked(&header, &rows, 50).unwrap();
        let expected = "TASK\n  QUEUE            STATE     NOTE\n\
            01a1e166-ad02-78c0-8000-000000000019\n  reports-nightly  Canceled  a reason of many wo…\n\
            01a1e166-ad02-78c0-8000-000000000019\n  q                Ready     -";
        assert_eq!(text, expected);
        assert_eq!(stacked(&header, &rows, 30), None, "no room at all: lines are broken");
    }

    #[test]
    fn a_bold_header_is_not_longer_than_its_words() {
        let mut table = plain(&["QUEUE", "NOTE"], vec![vec![cell("q"), cell("a reason of many words")]]);
        table.enforce_styling();
        let text = trimmed(&table);
        assert!(text.contains("\u{1b}[1m"), "{text:?}");
        let header = text.lines().next().unwrap();
        assert_eq!(console::strip_ansi_codes(header).trim_start(), "QUEUE  NOTE", "{header:?}");
    }

    #[test]
    fn a_text_is_broken_between_words() {
        let text = "  - running on w-1; last heartbeat 5 s ago (running)";
        assert_eq!(wrapped(text, 4, None), text);
        assert_eq!(wrapped(text, 4, Some(80)), text);
        assert_eq!(wrapped(text, 4, Some(24)), "  - running on w-1; last\n    heartbeat 5 s ago\n    (running)");
        assert_eq!(wrapped("a \u{1b}[2mbcd\u{1b}[0m e", 0, Some(7)), "a \u{1b}[2mbcd\u{1b}[0m e");
        assert_eq!(wrapped("01a1e166-ad02-78c0 is long", 2, Some(8)), "01a1e166-ad02-78c0\n  is\n  long");
    }

    #[test]
    fn control_characters_of_others_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\nc\td\u{9b}"), "a\u{fffd}[31mb c d\u{fffd}");
        assert_eq!(shortened("äöüß", 3), "äöü…");
        assert_eq!(shortened("äöü", 3), "äöü");
    }

    #[test]
    fn a_card_aligns_its_values() {
        console::set_colors_enabled(false);
        let mut card = Card::default();
        card.row("state", "Ready").row_if("worker", None::<String>).row("attempts", "1 of 3");
        assert_eq!(card.render(), "  state     Ready\n  attempts  1 of 3\n");
    }
}
