//! `_manifest.json`: the list of files that a finished output has.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::path::{self, PathProblem};
use super::prefix::{KEY_BYTES, Prefix};

/// Written last, by whoever has written all the data.
pub const SUCCESS: &str = "_SUCCESS";
pub const MANIFEST: &str = "_manifest.json";
pub const MANIFEST_BYTES: usize = 1024 * 1024;
pub const MANIFEST_KEYS: usize = 1_024;

const DATA: &str = ".parquet";
const VERSION: u32 = 1;

/// Why a text is no manifest. Keys are shown to those who sent them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("_manifest.json has more than {MANIFEST_BYTES} bytes")]
    TooLarge,
    #[error("_manifest.json names more than {MANIFEST_KEYS} files")]
    TooMany,
    #[error("_manifest.json is not JSON of the form {{\"version\":1,\"parquet_keys\":[]}}: {0}")]
    Json(String),
    #[error("_manifest.json has the version {0}, and only 1 is known")]
    Version(u32),
    #[error("_manifest.json belongs to another dataset, or to another version of it")]
    OtherDataset,
    #[error("key {0} of _manifest.json {1}")]
    Key(usize, PathProblem),
    #[error("key {0} of _manifest.json does not end in .parquet")]
    NotData(usize),
    #[error("key {0} of _manifest.json is there twice")]
    Twice(usize),
    #[error("the file of key {0} of _manifest.json does not exist below the prefix")]
    Missing(usize),
}

impl ManifestError {
    pub const fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge | Self::TooMany)
    }
}

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    dataset_uuid: Uuid,
    dataset_version: Uuid,
    parquet_keys: Vec<&'a str>,
}

/// Other fields are ignored, as everywhere in this contract.
#[derive(Deserialize)]
struct Read {
    version: Option<u32>,
    dataset_uuid: Option<String>,
    dataset_version: Option<String>,
    #[serde(alias = "parquet_objects")]
    parquet_keys: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub dataset: Uuid,
    pub version: Uuid,
    /// Names of files, as they follow the prefix.
    pub files: Vec<String>,
}

impl Manifest {
    /// Reads the manifest of an output that lies at `prefix`. A key is the name of a file below the prefix, or its whole
    /// key in the bucket. Dataset and version may be left out; `version` is compared only if the caller knows it.
    pub fn parse(bytes: &[u8], prefix: &Prefix, dataset: Uuid, version: Option<Uuid>) -> Result<Self, ManifestError> {
        if bytes.len() > MANIFEST_BYTES {
            return Err(ManifestError::TooLarge);
        }
        let read: Read = serde_json::from_slice(bytes).map_err(|error| ManifestError::Json(shape(&error)))?;
        if let Some(other) = read.version.filter(|version| *version != VERSION) {
            return Err(ManifestError::Version(other));
        }
        let names = |text: &Option<String>, id: Uuid| {
            text.as_deref().is_none_or(|text| Uuid::try_parse(text).is_ok_and(|named| named == id))
        };
        if !names(&read.dataset_uuid, dataset) || !version.is_none_or(|version| names(&read.dataset_version, version)) {
            return Err(ManifestError::OtherDataset);
        }
        if read.parquet_keys.len() > MANIFEST_KEYS {
            return Err(ManifestError::TooMany);
        }
        let mut seen = BTreeSet::new();
        let mut files = Vec::with_capacity(read.parquet_keys.len());
        for (at, key) in read.parquet_keys.iter().enumerate() {
            let file = relative(key, prefix).map_err(|problem| ManifestError::Key(at, problem))?;
            if !file.ends_with(DATA) {
                return Err(ManifestError::NotData(at));
            }
            if !seen.insert(file) {
                return Err(ManifestError::Twice(at));
            }
            files.push(file.to_owned());
        }
        Ok(Self { dataset, version: version.unwrap_or_default(), files })
    }

    /// Which of the files are not there, by what is.
    pub fn check_files<'a>(&self, found: impl IntoIterator<Item = &'a str>) -> Result<(), ManifestError> {
        let found: BTreeSet<&str> = found.into_iter().collect();
        let missing = self.files.iter().position(|file| !found.contains(&**file));
        missing.map_or(Ok(()), |at| Err(ManifestError::Missing(at)))
    }

    /// The text to write at `prefix`, with whole keys. `None` if it would be too large.
    pub fn to_json(&self, prefix: &Prefix) -> Option<Vec<u8>> {
        if self.files.len() > MANIFEST_KEYS {
            return None;
        }
        let keys: Vec<String> = self.files.iter().map(|file| format!("{}{file}", prefix.path())).collect();
        let written = Written {
            version: VERSION,
            dataset_uuid: self.dataset,
            dataset_version: self.version,
            parquet_keys: keys.iter().map(String::as_str).collect(),
        };
        serde_json::to_vec(&written).ok().filter(|text| text.len() <= MANIFEST_BYTES)
    }
}

/// Whether an object of an output holds data: not what begins with `_` or `.`, as by agreement of all who write such
/// directories.
pub fn is_data_file(file: &str) -> bool {
    file.ends_with(DATA) && !file.split('/').any(|segment| segment.starts_with(['_', '.']))
}

fn relative<'a>(key: &'a str, prefix: &Prefix) -> Result<&'a str, PathProblem> {
    let file = key.strip_prefix(prefix.path()).unwrap_or(key);
    if prefix.path().len() + file.len() > KEY_BYTES {
        return Err(PathProblem::TooLong);
    }
    path::check(file, true)?;
    Ok(file)
}

/// Where the text stops making sense, without a part of it.
fn shape(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "it ends too early",
        serde_json::error::Category::Data => "a field is missing or of another type",
        _ => "it cannot be read",
    };
    format!("{what} at line {} column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DATASET: Uuid = Uuid::from_u128(1);
    const OF: Uuid = Uuid::from_u128(2);

    fn prefix() -> Prefix {
        Prefix::parse("s3://tenure/p/q/", false).unwrap()
    }

    fn parse(value: &Value) -> Result<Vec<String>, ManifestError> {
        Manifest::parse(value.to_string().as_bytes(), &prefix(), DATASET, Some(OF)).map(|manifest| manifest.files)
    }

    #[test]
    fn keys_are_names_below_the_prefix_or_whole_keys() {
        let keys = json!(["a.parquet", "p/q/b.parquet", "sub/c.parquet", "p/q/sub/d.parquet"]);
        let files = vec!["a.parquet".to_owned(), "b.parquet".into(), "sub/c.parquet".into(), "sub/d.parquet".into()];
        for name in ["parquet_keys", "parquet_objects"] {
            assert_eq!(parse(&json!({"version": 1, name: keys, "more": {}})).as_ref(), Ok(&files), "{name}");
        }
        let manifest = Manifest { dataset: DATASET, version: OF, files };
        let written = manifest.to_json(&prefix()).unwrap();
        assert_eq!(Manifest::parse(&written, &prefix(), DATASET, Some(OF)), Ok(manifest));
        let written: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(written["parquet_keys"][1], "p/q/b.parquet");
    }

    #[test]
    fn what_it_must_not_name() {
        for (key, wanted) in [
            ("../x.parquet", ManifestError::Key(0, PathProblem::Parent)),
            ("p/q/../x.parquet", ManifestError::Key(0, PathProblem::Parent)),
            ("a\\x.parquet", ManifestError::Key(0, PathProblem::Backslash)),
            ("/x.parquet", ManifestError::Key(0, PathProblem::Segment)),
            ("s3://other/x.parquet", ManifestError::Key(0, PathProblem::Segment)),
            ("%2e%2e/x.parquet", ManifestError::Key(0, PathProblem::Encoded)),
            ("", ManifestError::Key(0, PathProblem::Empty)),
            ("p/q/", ManifestError::Key(0, PathProblem::Empty)),
            ("x.csv", ManifestError::NotData(0)),
            ("x.parquet/y", ManifestError::NotData(0)),
        ] {
            assert_eq!(parse(&json!({"parquet_keys": [key]})), Err(wanted), "{key}");
        }
        let long = format!("{}.parquet", "x".repeat(KEY_BYTES));
        assert_eq!(parse(&json!({"parquet_keys": [long]})), Err(ManifestError::Key(0, PathProblem::TooLong)));
        let twice = json!({"parquet_keys": ["a.parquet", "p/q/a.parquet"]});
        assert_eq!(parse(&twice), Err(ManifestError::Twice(1)));
    }

    #[test]
    fn it_is_bounded_and_of_its_dataset() {
        let keys =
            |count: usize| json!({"parquet_keys": (0..count).map(|n| format!("{n}.parquet")).collect::<Vec<_>>()});
        assert!(parse(&keys(MANIFEST_KEYS)).is_ok());
        assert_eq!(parse(&keys(MANIFEST_KEYS + 1)), Err(ManifestError::TooMany));
        let padded = json!({"parquet_keys": [], "pad": "x".repeat(MANIFEST_BYTES)});
        assert_eq!(parse(&padded), Err(ManifestError::TooLarge));
        for (field, value) in [("dataset_uuid", OF), ("dataset_version", DATASET)] {
            let other = json!({"parquet_keys": [], field: value});
            assert_eq!(parse(&other), Err(ManifestError::OtherDataset), "{field}");
        }
        let own = json!({"parquet_keys": [], "dataset_uuid": DATASET, "dataset_version": OF});
        assert_eq!(parse(&own), Ok(vec![]));
        // The name of an artifact, where the generation is not known.
        let artifact = json!({"parquet_keys": [], "dataset_version": "v7"}).to_string();
        assert!(Manifest::parse(artifact.as_bytes(), &prefix(), DATASET, None).is_ok());
        assert_eq!(parse(&json!({"version": 2, "parquet_keys": []})), Err(ManifestError::Version(2)));
    }

    #[test]
    fn what_is_not_json_is_not_repeated() {
        for text in [
            r#"{"parquet_keys": ["hunter2""#,
            r#"{"parquet_keys": "hunter2"}"#,
            "hunter2",
            "",
            "[]",
            "{}",
            "\u{feff}{}",
        ] {
            let error = Manifest::parse(text.as_bytes(), &prefix(), DATASET, None).unwrap_err();
            assert!(matches!(error, ManifestError::Json(_)) && !error.to_string().contains("hunter2"), "{error}");
        }
        let both = r#"{"parquet_keys": [], "parquet_objects": []}"#;
        assert!(Manifest::parse(both.as_bytes(), &prefix(), DATASET, None).is_err());
    }

    #[test]
    fn files_that_are_named_must_be_there() {
        let manifest = Manifest { dataset: DATASET, version: OF, files: vec!["a.parquet".into(), "b.parquet".into()] };
        assert_eq!(manifest.check_files(["b.parquet", "a.parquet", "c.parquet"]), Ok(()));
        assert_eq!(manifest.check_files(["a.parquet"]), Err(ManifestError::Missing(1)));
    }

    #[test]
    fn data_files_are_told_from_others() {
        for (file, is_data) in [
            ("a.parquet", true),
            ("date=1/a.parquet", true),
            ("_SUCCESS", false),
            ("_temporary/0/a.parquet", false),
            (".a.parquet", false),
            ("a.csv", false),
        ] {
            assert_eq!(is_data_file(file), is_data, "{file}");
        }
    }
}
