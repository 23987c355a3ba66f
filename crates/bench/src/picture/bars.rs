//! Horizontal bars: the label at the left, the value at the end of the bar.

use super::text::{BOLD, MARGIN, RIGHT, Sheet, is_short, line_height, number_with_unit, usable, width, wrap};
use super::{Bar, BarKind, Bars};

const LABEL: f64 = 13.0;
const NOTE: f64 = 11.5;
const THICKNESS: f64 = 18.0;
const GAP: f64 = 10.0;
const LABEL_ROOM: f64 = 270.0;

/// One bar with its texts broken into lines.
struct Row<'a> {
    bar: &'a Bar,
    label: Vec<String>,
    note: Vec<String>,
    value: String,
}

/// From values to places on the sheet.
struct Scale {
    labels_end: f64,
    zero: f64,
    pixels_per_unit: f64,
}

/// Draws the panel from `top` and returns where it ends.
pub(super) fn draw(sheet: &mut Sheet, panel: &Bars, top: f64) -> f64 {
    let unit = if is_short(&panel.unit) { "" } else { &panel.unit };
    let mut y = sheet.heading(&panel.title, unit, top);
    if panel.bars.is_empty() {
        return sheet.no_data(y);
    }
    if panel.bars.iter().any(|bar| bar.kind == BarKind::Limit) {
        draw_legend(sheet, top);
    }
    let rows: Vec<Row> = panel.bars.iter().map(|bar| Row::new(bar, &panel.unit)).collect();
    let scale = Scale::new(&rows);
    let first = y;
    for row in &rows {
        row.draw(sheet, &scale, y);
        y += row.height();
    }
    sheet.line("axis", (scale.zero, first), (scale.zero, y));
    y
}

/// Says in the corner what a hatched bar means.
fn draw_legend(sheet: &mut Sheet, top: f64) {
    let y = top + line_height(15.0) / 2.0;
    sheet.rect("limit", (RIGHT - 50.0, y - 5.0), 16.0, 10.0);
    sheet.text("muted end", 12.0, RIGHT, y, "limit");
}

/// The size to measure a bar's label and value with: ours are bold.
fn label_size(bar: &Bar) -> f64 {
    if bar.kind == BarKind::Ours { LABEL * BOLD } else { LABEL }
}

impl<'a> Row<'a> {
    fn new(bar: &'a Bar, unit: &str) -> Self {
        let value = if usable(bar.value) { number_with_unit(bar.value, unit) } else { "no data".to_owned() };
        let label = wrap(&bar.label, label_size(bar), LABEL_ROOM, 2);
        let note = wrap(bar.note.as_deref().unwrap_or_default(), NOTE, LABEL_ROOM, 2);
        Row { bar, label, note, value }
    }

    fn text_height(&self) -> f64 {
        self.label.len() as f64 * line_height(LABEL) + self.note.len() as f64 * line_height(NOTE)
    }

    fn height(&self) -> f64 {
        self.text_height().max(THICKNESS) + GAP
    }

    fn label_width(&self) -> f64 {
        let labels = self.label.iter().map(|line| width(line, label_size(self.bar)));
        labels.chain(self.note.iter().map(|line| width(line, NOTE))).fold(0.0, f64::max)
    }

    fn draw(&self, sheet: &mut Sheet, scale: &Scale, top: f64) {
        let middle = top + self.height() / 2.0;
        let (fill, weight) = match self.bar.kind {
            BarKind::Ours => ("ours", " bold"),
            BarKind::Limit => ("limit", ""),
            BarKind::Other => ("other", ""),
        };
        let x = scale.labels_end;
        let y = sheet.lines(&format!("ink end{weight}"), LABEL, x, middle - self.text_height() / 2.0, &self.label);
        sheet.lines("muted end", NOTE, x, y, &self.note);
        if !usable(self.bar.value) {
            return sheet.text("muted", LABEL, scale.zero + 8.0, middle, &self.value);
        }
        let length = self.bar.value * scale.pixels_per_unit;
        let left = scale.zero + length.min(0.0);
        sheet.rect(fill, (left, middle - THICKNESS / 2.0), length.abs(), THICKNESS);
        sheet.text(&format!("ink{weight}"), LABEL, scale.zero + length.max(0.0) + 8.0, middle, &self.value);
    }
}

impl Scale {
    /// Gives the bars all the room that labels and values leave.
    fn new(rows: &[Row]) -> Self {
        let widest = |of: fn(&Row) -> f64| rows.iter().map(of).fold(0.0, f64::max);
        let values = || rows.iter().map(|row| row.bar.value).filter(|value| usable(*value));
        let (low, high) = (values().fold(0.0, f64::min), values().fold(0.0, f64::max));
        let labels_end = MARGIN + widest(|row| row.label_width()).max(40.0);
        let room = RIGHT - labels_end - widest(|row| width(&row.value, label_size(row.bar))) - 24.0;
        let pixels_per_unit = if high > low { room / (high - low) } else { 0.0 };
        Scale { labels_end, zero: labels_end + 12.0 - low * pixels_per_unit, pixels_per_unit }
    }
}
