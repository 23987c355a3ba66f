//! A configuration file to begin with.

use super::keys::{self, Key, Kind, Shape};

const HEAD: &str = "\
# Configuration of Tenure. Every key is listed with its default; remove the `#` from those that you set.
# It is looked for at --config, TENURE_CONFIG, ./tenure.yaml, ~/.tenure/config.yaml, /etc/tenure/tenure.yaml.
# `tenure config lint --production` reports what a production system should change.
";
const WIDTH: usize = 110;

/// A file with every key, its meaning and its default. It loads as it is, and changes nothing.
pub fn example() -> String {
    let mut text = HEAD.to_owned();
    let mut open: Vec<&str> = Vec::new();
    for key in keys::all() {
        let mut path: Vec<&str> = key.path.split('.').collect();
        let name = path.pop().unwrap_or_default();
        let shared = open.iter().zip(&path).take_while(|(a, b)| a == b).count();
        let opened = path.len() > shared;
        for (depth, section) in path.iter().enumerate().skip(shared) {
            text += &section_head(section, depth);
        }
        // Air between keys, none below the name of their section.
        if !opened {
            text.push('\n');
        }
        open = path;
        text += &entry(key, name, &"  ".repeat(open.len()));
    }
    text
}

fn section_head(section: &str, depth: usize) -> String {
    let meaning = keys::sections().into_iter().find(|(name, _)| *name == section).map(|(_, meaning)| meaning);
    match meaning {
        Some(meaning) if depth == 0 => format!("\n# {meaning}\n{section}:\n"),
        _ => format!("\n{}{section}:\n", "  ".repeat(depth)),
    }
}

fn entry(key: &Key, name: &str, indent: &str) -> String {
    let mut text: String = wrapped(key.doc).iter().map(|line| format!("{indent}# {line}\n")).collect();
    text += &format!("{indent}# Type: {}.\n", key.kind.name());
    text + format!("{indent}# {name}: {}", written(key)).trim_end() + "\n"
}

/// The default as YAML.
pub(crate) fn written(key: &Key) -> String {
    match (key.kind.shape(), key.kind) {
        (Shape::List, _) => "[]".to_owned(),
        (Shape::Map, _) => "{}".to_owned(),
        (Shape::Text, Kind::Text) if key.default.contains(':') => format!("\"{}\"", key.default),
        _ => key.default.to_owned(),
    }
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
