//! Line charts: thin gridlines, round ticks, and a label at the end of every line.

use super::Curves;
use super::text::{MARGIN, RIGHT, Sheet, compact, line_height, usable, width, wrap};

const TICK: f64 = 11.5;
const LABEL: f64 = 12.5;
const LABEL_ROOM: f64 = 190.0;
const PLOT_HEIGHT: f64 = 250.0;
/// More points than this are drawn without markers.
const MOST_MARKERS: usize = 24;
/// How many colours and marker shapes there are.
pub(super) const SERIES: usize = 6;
/// Marker outlines relative to their point: disc, square, triangle, diamond, triangle on its tip, cross.
const MARKERS: [&str; SERIES] = [
    "m-3.8 0a3.8 3.8 0 1 0 7.6 0a3.8 3.8 0 1 0-7.6 0z",
    "m-3.4-3.4h6.8v6.8h-6.8z",
    "m0-4.8l4.5 7.8h-9z",
    "m0-4.9l4.9 4.9l-4.9 4.9l-4.9-4.9z",
    "m0 4.8l4.5-7.8h-9z",
    "m-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
];

/// One direction of the chart; `low` and `high` are logarithms on a log axis.
pub(super) struct Axis {
    log: bool,
    low: f64,
    high: f64,
    pub ticks: Vec<f64>,
}

/// The rectangle that the lines are drawn in.
struct Plot {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Axis,
    y: Axis,
}

/// The text at the end of a line; `end` is missing for a curve without points.
struct EndLabel {
    series: usize,
    lines: Vec<String>,
    end: Option<(f64, f64)>,
    y: f64,
}

/// Draws the panel from `top` and returns where it ends.
pub(super) fn draw(sheet: &mut Sheet, panel: &Curves, top: f64) -> f64 {
    let top = sheet.heading(&panel.title, &panel.unit, top);
    let points: Vec<_> =
        panel.curves.iter().flat_map(|curve| &curve.points).filter_map(|p| drawable(panel, *p)).collect();
    if points.is_empty() {
        return sheet.no_data(top);
    }
    let mut labels = end_labels(panel);
    let plot = Plot::new(panel, &points, &labels, top + 8.0);
    plot.draw_grid(sheet, &panel.x_label);
    // The first curve comes last, to lie on top.
    for (series, curve) in panel.curves.iter().enumerate().rev() {
        let places: Vec<_> = curve.points.iter().map(|p| drawable(panel, *p).map(|p| plot.place(p))).collect();
        draw_line(sheet, series, &places);
        if let Some(label) = labels.get_mut(series) {
            label.end = places.into_iter().flatten().next_back();
        }
    }
    draw_end_labels(sheet, &plot, labels);
    plot.bottom + if panel.x_label.is_empty() { 26.0 } else { 46.0 }
}

/// The point, unless one of its numbers has no place on its axis.
pub(super) fn drawable(panel: &Curves, (x, y): (f64, f64)) -> Option<(f64, f64)> {
    let fits = |value: f64, log: bool| usable(value) && (!log || value > 0.0);
    (fits(x, panel.log_x) && fits(y, panel.log_y)).then_some((x, y))
}

fn end_labels(panel: &Curves) -> Vec<EndLabel> {
    let label = |(series, curve): (usize, &super::Curve)| {
        let empty = !curve.points.iter().any(|p| drawable(panel, *p).is_some());
        let text = if empty { format!("{} (no data)", curve.label) } else { curve.label.clone() };
        EndLabel { series, lines: wrap(&text, LABEL, LABEL_ROOM, 2), end: None, y: 0.0 }
    };
    panel.curves.iter().enumerate().map(label).collect()
}

impl EndLabel {
    fn height(&self) -> f64 {
        self.lines.len() as f64 * line_height(LABEL) + 2.0
    }

    fn width(&self) -> f64 {
        self.lines.iter().map(|line| width(line, LABEL)).fold(0.0, f64::max)
    }
}

impl Plot {
    fn new(panel: &Curves, points: &[(f64, f64)], labels: &[EndLabel], top: f64) -> Self {
        let (xs, ys): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
        let x = Axis::new(&xs, panel.log_x, false, 7.0);
        let y = Axis::new(&ys, panel.log_y, true, 5.0);
        let tick_room = y.ticks.iter().map(|tick| width(&compact(*tick), TICK)).fold(0.0, f64::max);
        let label_room = labels.iter().map(EndLabel::width).fold(0.0, f64::max);
        let height = labels.iter().map(EndLabel::height).sum::<f64>().max(PLOT_HEIGHT);
        let (left, right) = (MARGIN + tick_room + 8.0, RIGHT - label_room - 36.0);
        Plot { left, right, top, bottom: top + height, x, y }
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let across = self.left + (self.right - self.left) * self.x.share(x);
        (across, self.bottom - (self.bottom - self.top) * self.y.share(y))
    }

    fn draw_grid(&self, sheet: &mut Sheet, x_label: &str) {
        for tick in &self.y.ticks {
            let y = self.bottom - (self.bottom - self.top) * self.y.share(*tick);
            sheet.line("grid", (self.left, y), (self.right, y));
            sheet.text("muted end", TICK, self.left - 8.0, y, &compact(*tick));
        }
        for tick in &self.x.ticks {
            let x = self.left + (self.right - self.left) * self.x.share(*tick);
            sheet.line("grid", (x, self.top), (x, self.bottom));
            sheet.line("axis", (x, self.bottom), (x, self.bottom + 4.0));
            sheet.text("muted middle", TICK, x, self.bottom + 15.0, &compact(*tick));
        }
        sheet.line("axis", (self.left, self.bottom), (self.right, self.bottom));
        for line in wrap(x_label, 12.0, self.right - self.left, 1) {
            sheet.text("muted middle", 12.0, (self.left + self.right) / 2.0, self.bottom + 36.0, &line);
        }
    }
}

impl Axis {
    /// An axis over all values with about `wanted` ticks; a linear one starts at zero if asked to.
    pub fn new(values: &[f64], log: bool, from_zero: bool, wanted: f64) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match (log, from_zero) {
            (true, _) => Self::logarithmic(low, high),
            (false, true) => Self::linear(low.min(0.0), high.max(0.0), wanted),
            (false, false) => Self::linear(low, high, wanted),
        }
    }

    fn linear(low: f64, high: f64, wanted: f64) -> Self {
        let (low, high) = match high - low {
            span if span > high.abs() * 1e-9 => (low, high),
            _ if low == 0.0 => (0.0, 1.0),
            _ => (low - low.abs() / 2.0, high + high.abs() / 2.0),
        };
        let step = round_step((high - low) / wanted);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        let ticks = (first..=last).map(|count| count as f64 * step).collect();
        Axis { log: false, low: first as f64 * step, high: last as f64 * step, ticks }
    }

    fn logarithmic(low: f64, high: f64) -> Self {
        let decades = low.log10().floor() as i32 - 1..=high.log10().ceil() as i32 + 1;
        let round: Vec<f64> =
            decades.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power))).collect();
        let start = round.iter().copied().rfind(|tick| *tick <= low * 1.000_001).unwrap_or(low);
        let end = round.iter().copied().find(|tick| *tick >= high * 0.999_999 && *tick > start).unwrap_or(high * 10.0);
        let span = (end / start).log10();
        let stride = (span / 10.0).ceil() as i32;
        let shown = |tick: &f64| {
            let power = tick.log10();
            let decade = (power - power.round()).abs() < 1e-6;
            (start..=end).contains(tick) && (span < 2.5 || decade && (power.round() as i32) % stride == 0)
        };
        let ticks = round.iter().copied().filter(shown).collect();
        Axis { log: true, low: start.log10(), high: end.log10(), ticks }
    }

    /// How far along the axis a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }
}

/// The next 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|digit| digit * power);
    steps.into_iter().find(|step| *step >= least * 0.999_999).unwrap_or(power * 10.0)
}

/// Draws a line with a gap at every missing place.
fn draw_line(sheet: &mut Sheet, series: usize, places: &[Option<(f64, f64)>]) {
    let mut commands = String::new();
    let mut drawing = false;
    for place in places {
        if let Some((x, y)) = place {
            commands += &if drawing { format!("L{x:.1} {y:.1}") } else { format!("M{x:.1} {y:.1}h0") };
        }
        drawing = place.is_some();
    }
    sheet.path(&format!("line stroke{}", series % SERIES), &commands);
    if places.len() <= MOST_MARKERS {
        places.iter().flatten().for_each(|place| draw_marker(sheet, series, *place));
    }
}

fn draw_marker(sheet: &mut Sheet, series: usize, (x, y): (f64, f64)) {
    let series = series % SERIES;
    sheet.path(&format!("marker fill{series}"), &format!("M{x:.1} {y:.1}{}", MARKERS[series]));
}

/// Writes the labels right of the plot, each near the end of its line, and ties the two together.
fn draw_end_labels(sheet: &mut Sheet, plot: &Plot, mut labels: Vec<EndLabel>) {
    labels.iter_mut().for_each(|label| label.y = label.end.map_or(plot.bottom, |(_, y)| y));
    labels.sort_by(|a, b| a.y.total_cmp(&b.y));
    let wanted: Vec<(f64, f64)> = labels.iter().map(|label| (label.y, label.height())).collect();
    for (label, y) in labels.iter().zip(spread(&wanted, plot.top - 8.0, plot.bottom + 8.0)) {
        if let Some((end_x, end_y)) = label.end {
            let leader = format!(
                "M{end_x:.1} {end_y:.1}L{:.1} {end_y:.1}L{:.1} {y:.1}",
                plot.right.max(end_x),
                plot.right + 16.0
            );
            sheet.path(&format!("leader stroke{}", label.series % SERIES), &leader);
            draw_marker(sheet, label.series, (plot.right + 20.0, y));
        }
        let top = y - (label.height() - 2.0) / 2.0;
        sheet.lines(if label.end.is_some() { "ink" } else { "muted" }, LABEL, plot.right + 30.0, top, &label.lines);
    }
}

/// Moves the middles of sorted (middle, height) boxes apart until none overlap, as little as needed.
pub(super) fn spread(boxes: &[(f64, f64)], top: f64, bottom: f64) -> Vec<f64> {
    let mut down: Vec<f64> = boxes.iter().map(|(middle, _)| *middle).collect();
    let mut up = down.clone();
    push_down(&mut down, boxes, f64::NEG_INFINITY);
    push_up(&mut up, boxes, f64::INFINITY);
    let mut middles: Vec<f64> = down.iter().zip(&up).map(|(a, b)| (a + b) / 2.0).collect();
    push_up(&mut middles, boxes, bottom);
    push_down(&mut middles, boxes, top);
    middles
}

fn push_down(middles: &mut [f64], boxes: &[(f64, f64)], mut edge: f64) {
    for (middle, (_, height)) in middles.iter_mut().zip(boxes) {
        *middle = middle.max(edge + height / 2.0);
        edge = *middle + height / 2.0;
    }
}

fn push_up(middles: &mut [f64], boxes: &[(f64, f64)], mut edge: f64) {
    for (middle, (_, height)) in middles.iter_mut().zip(boxes).rev() {
        *middle = middle.min(edge - height / 2.0);
        edge = *middle - height / 2.0;
    }
}
