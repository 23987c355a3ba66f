//! Words and numbers in a picture: escaping, measuring, shortening, and the sheet they are written on.

/// The width of every picture, in pixels.
pub(super) const WIDTH: f64 = 860.0;
/// The empty border at the left and the right.
pub(super) const MARGIN: f64 = 32.0;
/// How much wider bold text is.
pub(super) const BOLD: f64 = 1.12;
/// The right end of the drawing area.
pub(super) const RIGHT: f64 = WIDTH - MARGIN;

/// SVG elements, collected in drawing order.
#[derive(Default)]
pub(super) struct Sheet {
    pub body: String,
}

impl Sheet {
    /// Writes one line of text; `y` is the middle of the line.
    pub fn text(&mut self, class: &str, size: f64, x: f64, y: f64, text: &str) {
        let baseline = y + size * 0.35;
        let text = escape(text);
        self.element(&format!(
            r#"<text class="{class}" font-size="{size}" x="{x:.1}" y="{baseline:.1}">{text}</text>"#
        ));
    }

    /// Writes lines below each other from `top` and returns where they end.
    pub fn lines(&mut self, class: &str, size: f64, x: f64, top: f64, lines: &[String]) -> f64 {
        let step = line_height(size);
        let mut y = top;
        for line in lines {
            self.text(class, size, x, y + step / 2.0, line);
            y += step;
        }
        y
    }

    /// Writes a panel's title with its unit below and returns where they end.
    pub fn heading(&mut self, title: &str, unit: &str, top: f64) -> f64 {
        let room = RIGHT - MARGIN - 80.0;
        let y = self.lines("ink bold", 15.0, MARGIN, top, &wrap(title, 15.0 * BOLD, room, 2));
        self.lines("muted", 12.0, MARGIN, y, &wrap(unit, 12.0, room, 1)) + 8.0
    }

    /// Says that a panel has nothing to show and returns where that ends.
    pub fn no_data(&mut self, top: f64) -> f64 {
        self.lines("muted", 13.0, MARGIN, top, &["No data".to_owned()])
    }

    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.element(&format!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), width: f64, height: f64) {
        self.element(&format!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.2}" height="{height:.1}" rx="2"/>"#
        ));
    }

    pub fn path(&mut self, class: &str, commands: &str) {
        self.element(&format!(r#"<path class="{class}" d="{commands}"/>"#));
    }

    fn element(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

/// The distance between two lines of text.
pub(super) fn line_height(size: f64) -> f64 {
    (size * 1.32).round()
}

/// Text that is safe inside an XML element or attribute; characters XML forbids are dropped.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(' '),
            '\u{fffe}' | '\u{ffff}' => {}
            other if other.is_control() => {}
            other => safe.push(other),
        }
    }
    safe
}

/// A careful guess of how wide a text is; the reader's font is not known.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * size
}

fn advance(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | 'I' | '|' | '!' | '.' | ',' | ':' | ';' | '\'' => 0.3,
        ' ' | '\u{a0}' | 'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' => 0.38,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '—' | '…' => 0.95,
        'A'..='Z' => 0.7,
        '\u{1100}'..='\u{1fff}' | '\u{2e00}'.. => 1.05,
        _ => 0.6,
    }
}

/// The text itself if it fits, or its beginning and an ellipsis.
pub(super) fn shorten(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut used = advance('…') * size;
    let kept: String = text
        .chars()
        .take_while(|character| {
            used += advance(*character) * size;
            used <= room
        })
        .collect();
    format!("{}…", kept.trim_end())
}

/// Breaks a text into at most `most` lines; what does not fit ends in an ellipsis.
pub(super) fn wrap(text: &str, size: f64, room: f64, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let full = lines.len() >= most;
        match lines.last_mut() {
            Some(line) if full || width(line, size) + width(word, size) + size * 0.38 <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| shorten(line, size, room)).collect()
}

/// Whether a value can be drawn at all.
pub(super) fn usable(value: f64) -> bool {
    value == 0.0 || (1e-100..1e100).contains(&value.abs())
}

/// A value to read: 41,200 or 1.25 or 0.084.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e15).contains(&size) {
        return scientific(value);
    }
    let decimals = match size {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        0.01.. => 4,
        _ => 6,
    };
    grouped(&trimmed(format!("{value:.decimals$}")))
}

/// Whether a unit is short enough to repeat after each value.
pub(super) fn is_short(unit: &str) -> bool {
    (1..=4).contains(&unit.chars().count())
}

/// A value with its unit where the unit is short enough to repeat: 0.84 ms.
pub(super) fn number_with_unit(value: f64, unit: &str) -> String {
    let number = number(value);
    match unit {
        unit if !is_short(unit) => number,
        unit if unit.starts_with(['%', '/', '×']) || unit == "x" => format!("{number}{unit}"),
        unit => format!("{number}\u{a0}{unit}"),
    }
}

/// A value for an axis: 500, 1k, 2.5M.
pub(super) fn compact(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e12).contains(&size) {
        return scientific(value);
    }
    let (unit, suffix) = match size {
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e3.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{}{suffix}", trimmed(format!("{:.6}", value / unit)))
}

fn scientific(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((digits, power)) => format!("{}e{}", trimmed(digits.to_owned()), trimmed(power.to_owned())),
        None => text,
    }
}

/// Without zeros at the end of a fraction.
fn trimmed(digits: String) -> String {
    let short = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    if short == "-0" { "0".to_owned() } else { short.replace('-', "\u{2212}") }
}

/// With a comma between thousands.
fn grouped(digits: &str) -> String {
    let whole = digits.find('.').unwrap_or(digits.len());
    let mut text = String::new();
    for (at, character) in digits.char_indices() {
        let after_digit = text.ends_with(|last: char| last.is_ascii_digit());
        if at < whole && after_digit && (whole - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(character);
    }
    text
}
