//! Benchmark results as a picture: SVG text for a report, on a light or a dark page.
//!
//! Two kinds of charts do not justify a library for charts in the binary that people install.

mod bars;
mod curves;
mod text;

use serde::{Deserialize, Serialize};
use text::{BOLD, MARGIN, RIGHT, Sheet, WIDTH, compact, escape, number_with_unit, usable, wrap};

/// A page of charts below each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picture {
    pub title: String,
    #[serde(default)]
    pub subtitle: String,
    pub panels: Vec<Panel>,
    /// Small print below the charts.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// One chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Panel {
    Bars(Bars),
    Curves(Curves),
}

/// Horizontal bars that share one scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bars {
    pub title: String,
    /// A unit of up to four characters is repeated after each value.
    pub unit: String,
    pub bars: Vec<Bar>,
}

/// One bar; a value that is no number is shown as missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    pub label: String,
    pub value: f64,
    #[serde(default)]
    pub kind: BarKind,
    /// A remark in small print below the label.
    #[serde(default)]
    pub note: Option<String>,
}

/// What a bar represents, which decides how it looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BarKind {
    /// Our own result.
    Ours,
    /// What the machine could do at best.
    Limit,
    #[default]
    Other,
}

/// Lines that share two axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curves {
    pub title: String,
    pub unit: String,
    pub x_label: String,
    #[serde(default)]
    pub log_x: bool,
    #[serde(default)]
    pub log_y: bool,
    pub curves: Vec<Curve>,
}

/// One line through its points in the given order; a point that is no number leaves a gap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

/// Classes and their property, with the colour on a light page and on a dark one.
const COLOURS: [(&str, &str, &str, &str); 10] = [
    ("paper", "fill", "#ffffff", "#0d1117"),
    ("ink", "fill", "#1f2328", "#e6edf3"),
    ("muted", "fill", "#59636e", "#9198a1"),
    ("grid", "stroke", "#e4e8ec", "#262d36"),
    ("axis", "stroke", "#818b98", "#6e7681"),
    ("ours", "fill", "#0072b2", "#56b4e9"),
    ("other", "fill", "#b4bdc7", "#4d5662"),
    ("limit", "stroke", "#818b98", "#8b949e"),
    ("hatch", "fill", "#c3cad2", "#4d5662"),
    ("marker", "stroke", "#ffffff", "#0d1117"),
];

/// The colours of the curves, on a light page and on a dark one: Okabe and Ito's set for colour-blind readers.
const SERIES_COLOURS: [(&str, &str); curves::SERIES] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#f0803c"),
    ("#009e73", "#2fc79a"),
    ("#e69f00", "#f2c14e"),
    ("#cc79a7", "#e4a0c8"),
    ("#6e7781", "#9da7b3"),
];

/// The look, apart from colours.
const SHAPES: &str = r#".tenure-picture{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
.tenure-picture .bold{font-weight:600}
.tenure-picture .end{text-anchor:end}
.tenure-picture .middle{text-anchor:middle}
.tenure-picture .limit{fill:url(#tenure-hatch)}
.tenure-picture .line{fill:none;stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
.tenure-picture .leader{fill:none;stroke-dasharray:1.5 3;opacity:.8}
"#;

const HATCH: &str = r#"<defs><pattern id="tenure-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch" width="2.5" height="6"/></pattern></defs>"#;

impl Picture {
    /// The picture as one SVG element, the same text for the same picture.
    pub fn svg(&self) -> String {
        let mut sheet = Sheet::default();
        let height = self.draw(&mut sheet).ceil();
        let (title, about, style, body) = (escape(&self.title), escape(&self.description()), style(), sheet.body);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" class="tenure-picture" role="img" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">
<title>{title}</title>
<desc>{about}</desc>
<style>{style}</style>
{HATCH}
<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>
{body}</svg>
"#
        )
    }

    /// Draws everything and returns the height it takes.
    fn draw(&self, sheet: &mut Sheet) -> f64 {
        let room = RIGHT - MARGIN;
        let mut y = sheet.lines("ink bold", 20.0, MARGIN, 26.0, &wrap(&self.title, 20.0 * BOLD, room, 2));
        y = sheet.lines("muted", 13.0, MARGIN, y + 2.0, &wrap(&self.subtitle, 13.0, room, 3));
        for panel in &self.panels {
            y = match panel {
                Panel::Bars(panel) => bars::draw(sheet, panel, y + 24.0),
                Panel::Curves(panel) => curves::draw(sheet, panel, y + 24.0),
            };
        }
        if !self.notes.is_empty() {
            y += 22.0;
            sheet.line("grid", (MARGIN, y), (RIGHT, y));
            y += 8.0;
        }
        for note in &self.notes {
            y = sheet.lines("muted", 11.5, MARGIN, y + 3.0, &wrap(note, 11.5, room, 4));
        }
        y + 24.0
    }

    /// All results in words, for readers who cannot see the picture.
    fn description(&self) -> String {
        let panels = self.panels.iter().map(|panel| match panel {
            Panel::Bars(panel) => describe(&panel.title, &panel.unit, panel.bars.iter().map(|bar| bar.words(panel))),
            Panel::Curves(panel) => {
                describe(&panel.title, &panel.unit, panel.curves.iter().map(|curve| curve.words(panel)))
            }
        });
        std::iter::once(self.subtitle.clone())
            .filter(|text| !text.is_empty())
            .chain(panels)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn describe(title: &str, unit: &str, results: impl Iterator<Item = String>) -> String {
    let results = results.collect::<Vec<_>>().join("; ");
    let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
    format!("{title}{unit}: {}.", if results.is_empty() { "no data" } else { &results })
}

impl Bar {
    fn words(&self, panel: &Bars) -> String {
        let value = if usable(self.value) { number_with_unit(self.value, &panel.unit) } else { "no data".to_owned() };
        let note = self.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        format!("{} {value}{note}", self.label)
    }
}

impl Curve {
    fn words(&self, panel: &Curves) -> String {
        let mut points = self.points.iter().filter_map(|point| curves::drawable(panel, *point));
        let told = |(x, y): (f64, f64)| format!("{} at {}", number_with_unit(y, &panel.unit), compact(x));
        match (points.next(), points.next_back()) {
            (Some(first), Some(last)) => format!("{} from {} to {}", self.label, told(first), told(last)),
            (Some(only), None) => format!("{} {}", self.label, told(only)),
            _ => format!("{} no data", self.label),
        }
    }
}

/// The style sheet, with a second set of colours for dark pages.
fn style() -> String {
    let (mut light, mut dark) = (String::new(), String::new());
    let mut rule = |class: &str, property: &str, on_light: &str, on_dark: &str| {
        light += &format!(".tenure-picture .{class}{{{property}:{on_light}}}\n");
        dark += &format!(".tenure-picture .{class}{{{property}:{on_dark}}}\n");
    };
    for (class, property, on_light, on_dark) in COLOURS {
        rule(class, property, on_light, on_dark);
    }
    for (series, (on_light, on_dark)) in SERIES_COLOURS.into_iter().enumerate() {
        rule(&format!("stroke{series}"), "stroke", on_light, on_dark);
        rule(&format!("fill{series}"), "fill", on_light, on_dark);
    }
    format!("{light}{SHAPES}@media (prefers-color-scheme:dark){{\n{dark}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, value: f64) -> Bar {
        Bar { label: label.into(), value, kind: BarKind::Other, note: None }
    }

    fn bars(bars: Vec<Bar>) -> Picture {
        picture(Panel::Bars(Bars { title: "Throughput".into(), unit: "tasks/s".into(), bars }))
    }

    fn curves(log: bool, curves: &[(&str, &[(f64, f64)])]) -> Picture {
        let curve = |(label, points): &(&str, &[(f64, f64)])| Curve { label: (*label).into(), points: points.to_vec() };
        let (title, unit, x_label) = ("Latency".into(), "ms".into(), "tasks stored".into());
        let curves = curves.iter().map(curve).collect();
        picture(Panel::Curves(Curves { title, unit, x_label, log_x: log, log_y: log, curves }))
    }

    fn picture(panel: Panel) -> Picture {
        Picture { title: "Results".into(), subtitle: String::new(), panels: vec![panel], notes: vec![] }
    }

    /// The SVG text, after checking that its tags balance and that no bad number got into it.
    fn checked(picture: &Picture) -> String {
        let svg = picture.svg();
        let mut open = Vec::new();
        for part in svg.split('<').skip(1) {
            let (tag, _) = part.split_once('>').expect("a tag ends");
            let name = tag.split([' ', '\n']).next().unwrap_or_default();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name)),
                None if tag.ends_with('/') => assert_eq!(tag.matches('"').count() % 2, 0, "{tag}"),
                None => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
        svg
    }

    fn rect_widths(svg: &str, class: &str) -> Vec<f64> {
        let start = format!(r#"<rect class="{class}" x"#);
        svg.split(&start).skip(1).filter_map(|rect| rect.split('"').nth(5)?.parse().ok()).collect()
    }

    #[test]
    fn texts_are_escaped() {
        let mut picture = bars(vec![bar("<a> & \"b\"\u{1}", 1.0)]);
        picture.title = "</title><script>".into();
        let svg = checked(&picture);
        assert!(svg.contains("&lt;a&gt; &amp; &quot;b&quot;<") && svg.contains("&lt;/title&gt;&lt;script&gt;"));
        assert!(!svg.contains("<script") && !svg.contains('\u{1}'));
    }

    #[test]
    fn bad_numbers_leave_no_trace() {
        let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE];
        let svg = checked(&bars(bad.iter().map(|value| bar("bad", *value)).chain([bar("good", 2.0)]).collect()));
        assert_eq!(rect_widths(&svg, "other").len(), 1);
        let points: Vec<_> = bad.iter().flat_map(|value| [(*value, 1.0), (1.0, *value)]).collect();
        assert!(checked(&curves(false, &[("bad", &points)])).contains("No data"));
        for log in [false, true] {
            checked(&curves(log, &[("bad", &points), ("signs", &[(0.0, 0.0), (-1.0, -2.0), (3.0, 4.0)])]));
            checked(&curves(log, &[("close", &[(1.0, 1.0), (1.0 + f64::EPSILON, 1.0 + f64::EPSILON)])]));
            checked(&curves(log, &[("wide", &[(1e-99, 1e-99), (1e99, 1e99)])]));
        }
    }

    #[test]
    fn empty_and_tiny_pictures_are_drawn() {
        let nothing = Picture { title: String::new(), subtitle: String::new(), panels: vec![], notes: vec![] };
        checked(&nothing);
        assert!(checked(&bars(vec![])).contains("No data") && checked(&curves(true, &[])).contains("No data"));
        assert_eq!(rect_widths(&checked(&bars(vec![bar("a", 0.0), bar("b", 0.0)])), "other"), [0.0, 0.0]);
        checked(&bars(vec![bar("a", -5.0), bar("b", 10.0)]));
        checked(&curves(false, &[("origin", &[(0.0, 0.0)])]));
        checked(&curves(true, &[("one", &[(5.0, 5.0)])]));
    }

    #[test]
    fn every_label_is_there() {
        let names: Vec<String> = (0..20).map(|at| format!("name-{at}")).collect();
        let svg = checked(&bars(names.iter().map(|name| bar(name, 3.0)).collect()));
        assert!(names.iter().all(|name| svg.contains(&format!(">{name}</text>"))));
        let lines: Vec<_> = names.iter().map(|name| (name.as_str(), [(1.0, 2.0), (10.0, 20.0)])).collect();
        let svg = checked(&curves(true, &lines.iter().map(|(name, points)| (*name, &points[..])).collect::<Vec<_>>()));
        assert!(names.iter().all(|name| svg.contains(&format!(">{name}</text>"))));
        let long = "a very long label ".repeat(20);
        let svg = checked(&bars(vec![bar(&long, 1.0), bar(&"x".repeat(300), 1.0)]));
        assert!(svg.contains("…</text>") && svg.contains(long.trim_end()), "shortened, and whole in the description");
    }

    #[test]
    fn bars_are_in_proportion() {
        let widths = rect_widths(&checked(&bars(vec![bar("a", 400.0), bar("b", 100.0), bar("c", 1.0)])), "other");
        assert!(
            (widths[0] / widths[1] - 4.0).abs() < 0.01 && (widths[0] - 400.0 * widths[2]).abs() < 5.0,
            "{widths:?}"
        );
    }

    #[test]
    fn ticks_are_round() {
        let ticks = |values: &[f64], log| {
            let axis = curves::Axis::new(values, log, !log, 5.0);
            axis.ticks.into_iter().map(compact).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ticks(&[3.0, 8.7], false), "0 2 4 6 8 10");
        assert_eq!(ticks(&[0.27], false), "0 0.1 0.2 0.3");
        assert_eq!(ticks(&[1234.0], false), "0 500 1k 1.5k");
        assert_eq!(ticks(&[1e3, 1e6], true), "1k 10k 100k 1M");
        assert_eq!(ticks(&[1.0, 16.0], true), "1 2 5 10 20");
    }

    #[test]
    fn numbers_are_readable() {
        let texts = [41_200.0, 1.25, 0.84, 0.0, 1_234_567.8, 99.96, -1500.0, 0.000_012].map(text::number);
        assert_eq!(texts, ["41,200", "1.25", "0.84", "0", "1,234,568", "100", "\u{2212}1,500", "1.2e\u{2212}5"]);
        assert_eq!(number_with_unit(0.84, "ms"), "0.84\u{a0}ms");
    }

    #[test]
    fn labels_do_not_overlap() {
        let boxes = [(10.0, 16.0), (11.0, 16.0), (12.0, 32.0), (99.0, 16.0)];
        let middles = curves::spread(&boxes, 0.0, 100.0);
        let edges =
            middles.iter().zip(boxes).map(|(middle, (_, height))| (middle - height / 2.0, middle + height / 2.0));
        edges.fold(0.0, |above, (top, bottom)| {
            assert!(top >= above - 1e-9 && bottom <= 100.0, "{middles:?}");
            bottom
        });
    }

    #[test]
    fn json_is_read_strictly() {
        let json = r#"{"title":"t","panels":[{"kind":"bars","title":"b","unit":"s","bars":[{"label":"l","value":1,"kind":"ours"}]},
            {"kind":"curves","title":"c","unit":"s","x_label":"x","curves":[{"label":"l","points":[[1,2]]}]}]}"#;
        let picture: Picture = serde_json::from_str(json).expect("valid");
        let again = serde_json::to_string(&picture).expect("text");
        assert_eq!(serde_json::from_str::<Picture>(&again).expect("valid"), picture);
        assert!(serde_json::from_str::<Picture>(&json.replace("\"unit\"", "\"units\"")).is_err());
        assert!(serde_json::from_str::<Picture>(&json.replace("\"x_label\"", "\"extra\":1,\"x_label\"")).is_err());
        assert_eq!(picture.svg(), picture.clone().svg());
    }
}
