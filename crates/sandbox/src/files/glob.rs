use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::failed;
use super::path::SandboxPath;
use super::root::{Names, Root};
use crate::error::{Error, ErrorKind, Result};

const MAX_MATCHES: usize = 10_000;

/// Entries that are compared with a pattern. It bounds the time of a call.
const MAX_STEPS: u64 = 1_000_000;

/// Directories below each other that are searched.
const MAX_DEPTH: usize = 128;

/// Directories that match this contain any number of directories.
const ANY_DEPTH: &str = "**";

impl Root {
    /// Paths that match a pattern, sorted. `*` and `?` match names that begin with a dot too, and never a slash; `**` is
    /// any number of directories. Links in the part of the pattern before the first wildcard are followed, others not.
    pub(crate) fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        let parsed = SandboxPath::parse(pattern)?;
        let mut parts: Vec<&str> = parsed.components().iter().map(String::as_str).collect();
        parts.dedup_by(|a, b| *a == ANY_DEPTH && *b == ANY_DEPTH);
        for part in &parts {
            check(part, pattern)?;
        }
        let literal = parts.iter().take_while(|part| !is_wild(part)).count();
        let (fixed, rest) = parts.split_at(literal);
        if rest.is_empty() {
            let path = format!("/{}", fixed.iter().map(|part| unescaped(part)).collect::<Vec<_>>().join("/"));
            return match self.stat(&path) {
                Ok(info) => Ok(vec![info.path]),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
                Err(error) => Err(error),
            };
        }
        let base =
            SandboxPath::parse(&format!("/{}", fixed.iter().map(|p| unescaped(p)).collect::<Vec<_>>().join("/")))?;
        let directory = match self.resolve(&base.beneath(), OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(error) => return Err(failed("search", &base, error)),
        };
        let mut walk = Walk { matches: BTreeSet::new(), steps: 0, pattern };
        let mut path: Vec<String> = base.components().to_vec();
        walk.search(directory.as_fd(), &mut path, rest)?;
        Ok(walk.matches.into_iter().collect())
    }
}

struct Walk<'a> {
    matches: BTreeSet<String>,
    steps: u64,
    pattern: &'a str,
}

impl Walk<'_> {
    fn search(&mut self, directory: BorrowedFd<'_>, path: &mut Vec<String>, parts: &[&str]) -> Result<()> {
        let Some((part, rest)) = parts.split_first() else { return Ok(()) };
        if path.len() >= MAX_DEPTH {
            return Ok(());
        }
        let any_depth = *part == ANY_DEPTH;
        if any_depth && !rest.is_empty() {
            self.search(directory, path, rest)?;
        }
        let names = match Names::of(directory) {
            Ok(names) => names,
            Err(error) => return Err(failed("search", &format!("/{}", path.join("/")), error)),
        };
        for name in names {
            // A directory that disappears while it is read has no more matches.
            let Ok(name) = name else { break };
            self.step()?;
            let text = name.to_string_lossy().into_owned();
            if !any_depth && !matches(part, &text) {
                continue;
            }
            path.push(text);
            let next = if any_depth { parts } else { rest };
            if any_depth && rest.is_empty() || !any_depth && rest.is_empty() {
                self.found(path)?;
            }
            if !next.is_empty() {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                // What is not a directory, or may not be read, contains no match.
                if let Ok(child) = rustix::fs::openat(directory, &name, flags, Mode::empty()) {
                    self.search(child.as_fd(), path, next)?;
                }
            }
            path.pop();
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        if self.steps > MAX_STEPS { Err(self.too_wide("compares", MAX_STEPS)) } else { Ok(()) }
    }

    fn found(&mut self, path: &[String]) -> Result<()> {
        self.matches.insert(format!("/{}", path.join("/")));
        if self.matches.len() > MAX_MATCHES { Err(self.too_wide("matches", MAX_MATCHES as u64)) } else { Ok(()) }
    }

    fn too_wide(&self, verb: &str, limit: u64) -> Error {
        let message = format!("pattern {:?} {verb} more than {limit} files: use a narrower one", self.pattern);
        Error::new(ErrorKind::ResourceLimit, message)
    }
}

fn is_wild(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

fn unescaped(part: &str) -> String {
    let mut text = String::new();
    let mut chars = part.chars();
    while let Some(c) = chars.next() {
        text.push(if c == '\\' { chars.next().unwrap_or('\\') } else { c });
    }
    text
}

fn check(part: &str, pattern: &str) -> Result<()> {
    let mut rest: Vec<char> = part.chars().collect();
    while let Some(first) = rest.first() {
        let used = match first {
            '\\' => rest.len().min(2),
            '[' => class(&rest, '\0').map(|(_, used)| used).ok_or_else(|| {
                Error::invalid(format!("pattern {pattern:?}: `[` without `]`; write `\\[` for the character"))
            })?,
            _ => 1,
        };
        rest.drain(..used);
    }
    Ok(())
}

/// Whether a name matches one part of a pattern. Takes at most the product of their lengths in steps.
fn matches(part: &str, name: &str) -> bool {
    let (part, name): (Vec<char>, Vec<char>) = (part.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on if the rest does not match: after the last star, with one more character taken by it.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if p < part.len() && part[p] == '*' {
            retry = Some((p + 1, n));
            p += 1;
            continue;
        }
        if n == name.len() {
            return p == part.len();
        }
        match one(&part[p..], name[n]) {
            Some(used) => {
                p += used;
                n += 1;
            }
            None => match retry {
                Some((after, taken)) => {
                    retry = Some((after, taken + 1));
                    p = after;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
}

/// How many characters of the pattern match this one, if they do.
fn one(part: &[char], c: char) -> Option<usize> {
    match part.first()? {
        '?' => Some(1),
        '[' => class(part, c).and_then(|(matched, used)| matched.then_some(used)),
        '\\' if part.len() > 1 => (part[1] == c).then_some(2),
        first => (*first == c).then_some(1),
    }
}

/// Whether a character is in the class at the beginning, and the length of the class. None if it has no end.
fn class(part: &[char], c: char) -> Option<(bool, usize)> {
    let negated = matches!(part.get(1)?, '!' | '^');
    let start = if negated { 2 } else { 1 };
    let mut at = start;
    let mut found = false;
    loop {
        let first = *part.get(at)?;
        if first == ']' && at > start {
            return Some((found != negated, at + 1));
        }
        let last = match (part.get(at + 1), part.get(at + 2)) {
            (Some('-'), Some(last)) if *last != ']' => {
                at += 2;
                *last
            }
            _ => first,
        };
        found |= (first..=last).contains(&c);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_as_in_a_shell() {
        for (part, name, expected) in [
            ("*", "", true),
            ("*", ".hidden", true),
            ("*.rs", "lib.rs", true),
            ("*.rs", "lib.rsx", false),
            ("a*b*c", "a--b--b-c", true),
            ("a*b*c", "a--c", false),
            ("?", "é", true),
            ("??", "é", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a-]", "-", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
        ] {
            assert_eq!(matches(part, name), expected, "{part} {name}");
        }
    }

    #[test]
    fn a_class_without_an_end_is_refused() {
        assert!(check("[ab", "[ab").is_err());
        assert!(check("[", "[").is_err());
        assert!(check("[!]", "[!]").is_err());
        assert!(check("\\[", "\\[").is_ok());
        assert!(check("[ab]*", "[ab]*").is_ok());
    }

    #[test]
    fn many_stars_take_bounded_time() {
        assert!(!matches(&"*a".repeat(60), &"a".repeat(59)));
        assert!(!matches(&format!("{}b", "*a".repeat(100)), &"a".repeat(250)));
    }
}
