//! Where things lie below the root of the object store.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::prefix::{Prefix, PrefixError, Scheme};

/// An output of an attempt. Committing it points a partition at its prefix; nothing is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputRef {
    pub dataset: Uuid,
    pub version: Uuid,
    pub task: Uuid,
    pub attempt: u32,
    pub output: u32,
}

/// What lies in the store before it is on record, and stays there if that never happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Staged {
    Output(OutputRef),
    Scratch {
        task: Uuid,
        attempt: u32,
    },
    /// An uploaded bundle, from before it is on record. Each has a place of its own, also if its bytes are those of another.
    Bundle {
        org: Uuid,
        bundle: Uuid,
    },
}

impl Staged {
    /// The directory below the root, with a slash at its end.
    pub fn path(&self) -> String {
        match self {
            Self::Output(OutputRef { dataset, version, task, attempt, output }) => {
                format!("dataset/{dataset}/version/{version}/staging/{task}/{attempt}/{output}/")
            }
            Self::Scratch { task, attempt } => format!("scratch/{task}/{attempt}/"),
            Self::Bundle { org, bundle } => format!("bundles/{org}/{bundle}/"),
        }
    }

    /// The id of a bundle.
    pub fn bundle(&self) -> Option<Uuid> {
        match self {
            Self::Bundle { bundle, .. } => Some(*bundle),
            Self::Output(_) | Self::Scratch { .. } => None,
        }
    }

    /// Whose an object is, by its path below the root. Only the spelling of [`Self::path`] counts.
    pub fn of(path: &str) -> Option<Self> {
        let mut parts = path.split('/');
        let mut next = || parts.next();
        let staged = match next()? {
            "dataset" => {
                let dataset = uuid(next()?)?;
                let version = (next()? == "version").then(&mut next)??;
                let version = uuid(version)?;
                let task = (next()? == "staging").then(&mut next)??;
                let (task, attempt, output) = (uuid(task)?, number(next()?)?, number(next()?)?);
                Self::Output(OutputRef { dataset, version, task, attempt, output })
            }
            "scratch" => Self::Scratch { task: uuid(next()?)?, attempt: number(next()?)? },
            "bundles" => Self::Bundle { org: uuid(next()?)?, bundle: uuid(next()?)? },
            _ => return None,
        };
        // The object itself has a name.
        next().filter(|name| !name.is_empty()).map(|_| staged)
    }
}

fn uuid(text: &str) -> Option<Uuid> {
    Uuid::try_parse(text).ok().filter(|uuid| uuid.as_hyphenated().to_string() == text)
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

/// The names under one root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: Prefix,
}

impl Layout {
    pub const fn new(root: Prefix) -> Self {
        Self { root }
    }

    pub fn root(&self) -> &Prefix {
        &self.root
    }

    /// What readers of a version of a dataset may see.
    pub fn version(&self, dataset: Uuid, version: Uuid) -> Result<Prefix, PrefixError> {
        self.root.below(&format!("dataset/{dataset}/version/{version}/"))
    }

    /// Where an attempt writes all its outputs of one dataset.
    pub fn attempt(&self, output: &OutputRef) -> Result<Prefix, PrefixError> {
        let OutputRef { dataset, version, task, attempt, .. } = output;
        self.root.below(&format!("dataset/{dataset}/version/{version}/staging/{task}/{attempt}/"))
    }

    /// Where an attempt writes one output.
    pub fn staging(&self, output: &OutputRef) -> Result<Prefix, PrefixError> {
        self.root.below(&Staged::Output(*output).path())
    }

    /// Where batches of users wait for the sink of their dataset.
    pub fn buffers(&self, dataset: Uuid) -> Result<Prefix, PrefixError> {
        self.root.below(&format!("buffers/{dataset}/"))
    }

    /// Where a bundle of an organisation is.
    pub fn bundle(&self, org: Uuid, bundle: Uuid) -> Result<Prefix, PrefixError> {
        self.root.below(&Staged::Bundle { org, bundle }.path())
    }

    /// Where all attempts have what they do not keep.
    pub fn all_scratch(&self) -> Result<Prefix, PrefixError> {
        self.root.below("scratch/")
    }

    pub fn scratch(&self, task: Uuid, attempt: u32) -> Result<Prefix, PrefixError> {
        self.root.below(&Staged::Scratch { task, attempt }.path())
    }
}

/// A prefix as claims and tokens say it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageRef {
    pub scheme: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    pub prefix: String,
    #[serde(default = "any_parquet")]
    pub glob: String,
}

fn any_parquet() -> String {
    "*.parquet".into()
}

impl From<&Prefix> for StorageRef {
    fn from(prefix: &Prefix) -> Self {
        let (scheme, bucket, path) = match prefix.scheme() {
            Scheme::S3 { bucket } => ("s3", Some(bucket.to_string()), prefix.path().to_owned()),
            Scheme::File => ("file", None, format!("/{}", prefix.path())),
        };
        Self { scheme: scheme.into(), bucket, prefix: path, glob: any_parquet() }
    }
}

impl StorageRef {
    pub fn to_prefix(&self, allow_file: bool) -> Result<Prefix, PrefixError> {
        match (&*self.scheme, &self.bucket) {
            ("s3", Some(bucket)) if !bucket.contains('/') => {
                Prefix::parse(&format!("s3://{bucket}/{}", self.prefix), allow_file)
            }
            ("file", None) => Prefix::parse(&format!("file://{}", self.prefix), allow_file),
            ("s3", _) => Err(PrefixError::Bucket),
            _ => Err(PrefixError::Scheme),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> OutputRef {
        let id = |n| Uuid::from_u128(n);
        OutputRef { dataset: id(1), version: id(2), task: id(3), attempt: 4, output: 0 }
    }

    #[test]
    fn an_object_says_whose_it_is() {
        let (root, staged) = (Layout::new(Prefix::parse_root("s3://tenure", false).unwrap()), Staged::Output(output()));
        let staging = root.staging(&output()).unwrap();
        assert_eq!(
            staging.to_string(),
            "s3://tenure/dataset/00000000-0000-0000-0000-000000000001/version/00000000-0000-0000-0000-000000000002/\
             staging/00000000-0000-0000-0000-000000000003/4/0/"
        );
        assert!(root.attempt(&output()).unwrap().covers(&staging) && staging.path() == staged.path());
        assert_eq!(Staged::of(&format!("{}x.parquet", staged.path())), Some(staged));
        assert_eq!(Staged::of(&format!("{}a/b", staged.path())), Some(staged));
        let scratch = Staged::Scratch { task: output().task, attempt: 1 };
        assert_eq!(Staged::of(&format!("{}x", scratch.path())), Some(scratch));
        assert_eq!(root.scratch(output().task, 1).unwrap().path(), scratch.path());
        let bundle = Staged::Bundle { org: output().dataset, bundle: output().task };
        assert_eq!(Staged::of(&format!("{}bundle.zip", bundle.path())), Some(bundle));
        assert_eq!(root.bundle(output().dataset, output().task).unwrap().path(), bundle.path());
    }

    #[test]
    fn other_objects_are_nobodys() {
        let path = Staged::Output(output()).path();
        for other in [
            path.clone(),
            path.trim_end_matches('/').to_owned(),
            path.replace("/4/", "/04/") + "x",
            path.replace("/4/", "/+4/") + "x",
            path.replace("staging", "committed") + "x",
            path.replace("00000000-0000-0000-0000-000000000003", "00000000000000000000000000000003") + "x",
            path.to_uppercase() + "x",
            format!("x/{path}x"),
            "scratch/results/00000000-0000-0000-0000-000000000003/x".into(),
            "dataset/x".into(),
            format!("bundles/00000000-0000-0000-0000-000000000003/{}.zip", "0".repeat(64)),
            String::new(),
        ] {
            assert_eq!(Staged::of(&other), None, "{other}");
        }
    }

    #[test]
    fn a_storage_ref_names_the_same_prefix() {
        for text in ["s3://tenure/dataset/u/", "file:///srv/tenure/dataset/"] {
            let prefix = Prefix::parse(text, true).unwrap();
            let sent = serde_json::to_value(StorageRef::from(&prefix)).unwrap();
            assert_eq!(sent["glob"], "*.parquet");
            let read: StorageRef = serde_json::from_value(sent).unwrap();
            assert_eq!(read.to_prefix(true), Ok(prefix));
        }
        for (scheme, bucket, prefix) in [
            ("s3", None, "p/"),
            ("s3", Some("a/b"), "p/"),
            ("file", None, "/p/"),
            ("table", None, "x"),
            ("s3", Some("tenure"), ""),
        ] {
            let sent = StorageRef {
                scheme: scheme.into(),
                bucket: bucket.map(Into::into),
                prefix: prefix.into(),
                glob: any_parquet(),
            };
            assert!(sent.to_prefix(false).is_err(), "{sent:?}");
        }
    }
}
