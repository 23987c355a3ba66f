//! Links of the documentation lead somewhere, and logs use the fields that it lists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::evidence::collect;

const LOGGING_CRATES: [&str; 9] =
    ["server", "engine", "store", "transport", "client", "worker", "cli", "tls", "outbound"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn links_lead_to_pages_and_headings_that_exist() {
    let root = root();
    let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "sdk/python/README.md"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    collect(&root.join("docs"), "md", &mut pages);
    let (mut links, mut broken) = (0, Vec::new());
    for page in &pages {
        for link in targets(&prose(&fs::read_to_string(page).unwrap())) {
            let (path, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { page.with_file_name(path) };
            let found = target.exists() && (heading.is_empty() || headings(&target).contains(heading));
            links += 1;
            if !found {
                broken.push(format!("{}: {link}", page.strip_prefix(&root).unwrap().display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    assert!(links > 200, "only {links} links were found");
}

/// The text without blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Links to files and headings, not to other sites.
fn targets(text: &str) -> Vec<String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://") && !link.contains(char::is_whitespace)).map(str::to_owned).collect()
}

/// The names by which the headings of a page are linked.
fn headings(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let lines = prose(&text);
    let headings =
        lines.lines().filter_map(|line| line.strip_prefix('#').map(|rest| rest.trim_start_matches('#').trim()));
    let name = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(name).collect()
}

#[test]
fn logs_use_the_fields_that_the_documentation_lists() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/LOGGING.md")).unwrap();
    let table = page.split("## Fields").nth(1).unwrap().split("## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `")).map(|line| line.split(" | ").next().unwrap());
    let listed: BTreeSet<&str> = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let mut files = Vec::new();
    LOGGING_CRATES.iter().for_each(|name| collect(&root.join("crates").join(name).join("src"), "rs", &mut files));
    let (mut calls, mut unknown) = (0, Vec::new());
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for arguments in log_calls(&text) {
            calls += 1;
            let names = fields(arguments);
            unknown
                .extend(names.filter(|name| !listed.contains(name)).map(|name| format!("{}: {name}", file.display())));
        }
    }
    assert!(unknown.is_empty(), "fields that docs/LOGGING.md does not list:\n{}", unknown.join("\n"));
    assert!(calls > 100, "only {calls} log calls were found");
}

/// What stands before the message in each call.
fn log_calls(text: &str) -> impl Iterator<Item = &str> {
    let levels = ["error!(", "warn!(", "info!(", "debug!("];
    levels.into_iter().flat_map(move |level| {
        let starts = text.match_indices(level).map(move |(at, _)| (at, at + level.len()));
        starts.filter(|(at, _)| text[..*at].ends_with("tracing::")).map(|(_, from)| {
            let rest = &text[from..];
            &rest[..rest.find('"').unwrap_or(0)]
        })
    })
}

/// `queue.name = %queue`, `%error` and `reason` each name a field.
fn fields(arguments: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = arguments.split(move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    let names = parts.map(|part| part.split('=').next().unwrap_or_default().trim().trim_start_matches(['%', '?']));
    names.filter(|name| !name.is_empty())
}

#[test]
fn the_code_map_names_files_that_exist() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/ARCHITECTURE.md")).unwrap();
    let map = page.split("## Code map").nth(1).unwrap().split("\n## ").next().unwrap();
    let (mut named, mut missing) = (0, Vec::new());
    for section in map.split("\n### `").skip(1) {
        let folder = section.split('`').next().unwrap();
        let mut files = Vec::new();
        ["rs", "py", "sql", "json", "c"].iter().for_each(|ending| collect(&root.join(folder), ending, &mut files));
        let cells =
            section.lines().filter(|line| line.starts_with("| `")).map(|line| line.split(" | ").next().unwrap());
        for name in cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(|name| !name.contains('*')) {
            named += 1;
            let is_folder = name.ends_with('/') && files.iter().any(|file| file.display().to_string().contains(name));
            if !is_folder && !files.iter().any(|file| file.ends_with(name)) {
                missing.push(format!("{folder}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "the code map names files that do not exist:\n{}", missing.join("\n"));
    assert!(named > 100, "the code map names only {named} files");
}
