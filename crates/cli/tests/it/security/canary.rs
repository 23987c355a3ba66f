//! Secrets that are planted, and places where none of them may turn up.

use std::path::Path;

use tenure_auth::Secret;
use tenure_testkit::Output;

/// Where a secret may be found after all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Nowhere,
    /// What users hand in is stored: payloads and results.
    Stored,
    /// What is no secret by itself is shown to those who may read the configuration.
    Shown,
}

struct Canary {
    name: String,
    text: String,
    kept: Kept,
}

#[derive(Default)]
pub struct Canaries(Vec<Canary>);

impl Canaries {
    /// A new secret.
    pub fn plant(&mut self, name: &str) -> String {
        let text = format!("canary-{}", &Secret::random().reveal()[..32]);
        self.add(name, &text);
        text
    }

    /// A new secret that is stored.
    pub fn plant_stored(&mut self, name: &str) -> String {
        let text = self.plant(name);
        self.0.last_mut().unwrap().kept = Kept::Stored;
        text
    }

    /// A new text that the configuration is shown with.
    pub fn plant_shown(&mut self, name: &str) -> String {
        let text = self.plant(name);
        self.0.last_mut().unwrap().kept = Kept::Shown;
        text
    }

    /// A secret that others have made.
    pub fn add(&mut self, name: &str, text: &str) {
        assert!(text.len() >= 16, "{name} could be anywhere by chance: {text}");
        self.0.push(Canary { name: name.to_owned(), text: text.to_owned(), kept: Kept::Nowhere });
    }

    /// Each line of the inside of a key in PEM.
    pub fn add_pem(&mut self, name: &str, pem: &str) {
        for line in pem.lines().filter(|line| !line.starts_with("-----") && line.len() >= 16) {
            self.add(name, line);
        }
    }

    /// How many different secrets there are.
    pub fn count(&self) -> usize {
        let mut names: Vec<_> = self.0.iter().map(|canary| &canary.name).collect();
        names.sort();
        names.dedup();
        names.len()
    }

    /// Every secret that is somewhere, and where.
    pub fn leaks(&self, places: &Places) -> Vec<String> {
        let mut found = Vec::new();
        for place in &places.0 {
            let forbidden = self.0.iter().filter(|canary| match canary.kept {
                Kept::Nowhere => true,
                Kept::Stored => !place.is_store,
                Kept::Shown => !place.name.contains("config show"),
            });
            for canary in forbidden.filter(|canary| place.contains(&canary.text)) {
                found.push(format!("{} is in {}: {}", canary.name, place.name, place.around(&canary.text)));
            }
        }
        found
    }
}

struct Place {
    name: String,
    bytes: Vec<u8>,
    is_store: bool,
}

impl Place {
    fn position(&self, text: &str) -> Option<usize> {
        let first = text.as_bytes();
        // Most of it is not even a beginning: a search for one byte first is what makes logs of this size quick.
        let mut from = 0;
        while let Some(at) = self.bytes[from..].iter().position(|byte| *byte == first[0]) {
            if self.bytes[from + at..].starts_with(first) {
                return Some(from + at);
            }
            from += at + 1;
        }
        None
    }

    fn contains(&self, text: &str) -> bool {
        self.position(text).is_some()
    }

    /// What stands before it, which tells who wrote it.
    fn around(&self, text: &str) -> String {
        let at = self.position(text).unwrap_or_default();
        String::from_utf8_lossy(&self.bytes[at.saturating_sub(400)..at]).into_owned()
    }
}

#[derive(Default)]
pub struct Places(Vec<Place>);

impl Places {
    pub fn add(&mut self, name: &str, bytes: impl Into<Vec<u8>>) {
        self.0.push(Place { name: name.to_owned(), bytes: bytes.into(), is_store: false });
    }

    pub fn add_output(&mut self, name: &str, output: &Output) {
        self.add(&format!("stdout of {name}"), output.stdout.as_str());
        self.add(&format!("stderr of {name}"), output.stderr.as_str());
    }

    /// What everybody on the machine can see of a process.
    pub fn add_command_line(&mut self, name: &str, pid: u32) {
        self.add(&format!("command line of {name}"), std::fs::read(format!("/proc/{pid}/cmdline")).unwrap());
    }

    /// The files of an SQLite store.
    pub fn add_store(&mut self, folder: &Path) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.starts_with("tenure.db") {
                self.0.push(Place { name, bytes: std::fs::read(path).unwrap(), is_store: true });
            }
        }
    }

    /// Shows that the search finds what is there: a text that is no secret, in a place that has it.
    pub fn assert_found(&self, place: &str, text: &str) {
        let found = self.0.iter().any(|known| known.name.starts_with(place) && known.contains(text));
        let names: Vec<_> = self.0.iter().map(|known| &known.name).collect();
        assert!(found, "{text} is not in {place}, so the search is worth nothing; there are {names:?}");
    }
}
