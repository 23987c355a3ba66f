//! What temporary keys for the object store may do.

use serde_json::json;

use super::path;
use super::prefix::{KEY_BYTES, Prefix};

/// The longest session policy that AWS accepts, in characters.
pub const POLICY_CHARS: usize = 2_048;

/// The first segment of names that the control plane keeps for itself in a local folder.
pub const RESERVED: &str = ".tenure";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectAccess {
    Get,
    Put,
    Delete,
}

/// The prefixes that a holder of keys may use: get below `read`, put below `write`, and get, put and delete below
/// `scratch`. It may list below all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    pub read: Vec<Prefix>,
    pub write: Vec<Prefix>,
    pub scratch: Vec<Prefix>,
}

impl Scope {
    pub fn is_empty(&self) -> bool {
        self.prefixes().next().is_none()
    }

    fn prefixes(&self) -> impl Iterator<Item = &Prefix> {
        self.read.iter().chain(&self.write).chain(&self.scratch)
    }

    /// The first prefix of `wanted` that this scope does not contain. A prefix to read or to write may also lie below
    /// `scratch`, where more is allowed.
    pub fn missing<'a>(&self, wanted: &'a Self) -> Option<&'a Prefix> {
        let lacks = |granted: &[Prefix], prefix: &Prefix| {
            !granted.iter().chain(&self.scratch).any(|granted| granted.covers(prefix))
        };
        let read = wanted.read.iter().find(|prefix| lacks(&self.read, prefix));
        let write = wanted.write.iter().find(|prefix| lacks(&self.write, prefix));
        read.or(write).or_else(|| wanted.scratch.iter().find(|prefix| lacks(&[], prefix)))
    }

    /// Whether an object may be used this way. `key` is judged as it is; see [`is_key`].
    pub fn allows(&self, access: ObjectAccess, bucket: &str, key: &str) -> bool {
        let granted: &[Prefix] = match access {
            ObjectAccess::Get => &self.read,
            ObjectAccess::Put => &self.write,
            ObjectAccess::Delete => &[],
        };
        granted.iter().chain(&self.scratch).any(|prefix| is_below(prefix, bucket, key))
    }

    /// Whether names that begin with `prefix` may be listed.
    pub fn allows_list(&self, bucket: &str, prefix: &str) -> bool {
        self.prefixes().any(|granted| is_below(granted, bucket, prefix))
    }

    /// The session policy that says the same to AWS. `partition` is the second part of an ARN: `aws`, `aws-cn`.
    pub fn policy(&self, partition: &str) -> String {
        let bucket_arn = |bucket: &str| format!("arn:{partition}:s3:::{bucket}");
        let objects = |prefixes: &[Prefix]| -> Vec<String> {
            let arn = |prefix: &Prefix| {
                let bucket = bucket_arn(prefix.bucket().unwrap_or_default());
                format!("{bucket}/{}*", literal(prefix.path()))
            };
            prefixes.iter().map(arn).collect()
        };
        let mut statements = Vec::new();
        let mut allow = |action: serde_json::Value, prefixes: &[Prefix]| {
            if !prefixes.is_empty() {
                statements.push(json!({"Effect": "Allow", "Action": action, "Resource": objects(prefixes)}));
            }
        };
        allow(json!("s3:GetObject"), &self.read);
        allow(json!("s3:PutObject"), &self.write);
        allow(json!(["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]), &self.scratch);
        let mut buckets: Vec<&str> = self.prefixes().filter_map(Prefix::bucket).collect();
        buckets.sort_unstable();
        buckets.dedup();
        for bucket in buckets {
            let mut below: Vec<String> = Vec::new();
            for prefix in self.prefixes().filter(|prefix| prefix.bucket() == Some(bucket)) {
                let pattern = format!("{}*", literal(prefix.path()));
                if !below.contains(&pattern) {
                    below.push(pattern);
                }
            }
            statements.push(json!({
                "Effect": "Allow", "Action": "s3:ListBucket", "Resource": bucket_arn(bucket),
                "Condition": {"StringLike": {"s3:prefix": below}},
            }));
        }
        json!({"Version": "2012-10-17", "Statement": statements}).to_string()
    }
}

fn is_below(prefix: &Prefix, bucket: &str, name: &str) -> bool {
    prefix.bucket() == Some(bucket) && name.starts_with(prefix.path())
}

/// A dollar sign before a brace would begin a variable of the policy.
fn literal(path: &str) -> String {
    path.replace('$', "${$}")
}

/// Whether a text can be the key of an object: no segment that is empty or leads elsewhere, nothing reserved.
pub fn is_key(key: &str) -> bool {
    key.len() <= KEY_BYTES && path::check(key, true).is_ok() && key.split('/').next() != Some(RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| Prefix::parse(text, false).unwrap()).collect()
    }

    fn scope(read: &[&str], write: &[&str], scratch: &[&str]) -> Scope {
        Scope { read: prefixes(read), write: prefixes(write), scratch: prefixes(scratch) }
    }

    #[test]
    fn each_kind_of_prefix_allows_its_own_and_nothing_beside_it() {
        use ObjectAccess::{Delete, Get, Put};
        let scope = scope(&["s3://tenure/r/"], &["s3://tenure/w/"], &["s3://tenure/s/"]);
        for (key, get, put, delete) in [
            ("r/x", true, false, false),
            ("w/x", false, true, false),
            ("s/x/y", true, true, true),
            ("r-evil/x", false, false, false),
            ("r", false, false, false),
            ("x", false, false, false),
        ] {
            let allowed = [Get, Put, Delete].map(|access| scope.allows(access, "tenure", key));
            assert_eq!(allowed, [get, put, delete], "{key}");
        }
        assert!(!scope.allows(Get, "other", "r/x"));
        for (prefix, allowed) in [("r/", true), ("w/a", true), ("s/", true), ("r", false), ("", false)] {
            assert_eq!(scope.allows_list("tenure", prefix), allowed, "{prefix}");
        }
        assert!(!scope.allows_list("other", "r/"));
    }

    #[test]
    fn what_is_wanted_must_be_granted() {
        let granted = scope(&["s3://tenure/r/"], &["s3://tenure/w/"], &["s3://tenure/s/"]);
        let fits = scope(&["s3://tenure/r/deep/", "s3://tenure/s/"], &["s3://tenure/w/", "s3://tenure/s/x/"], &[]);
        assert_eq!(granted.missing(&fits), None);
        assert_eq!(granted.missing(&granted), None);
        for wanted in [
            scope(&["s3://tenure/w/"], &[], &[]),
            scope(&[], &["s3://tenure/r/"], &[]),
            scope(&[], &[], &["s3://tenure/w/"]),
            scope(&["s3://tenure/r-evil/"], &[], &[]),
            scope(&["s3://other/r/"], &[], &[]),
            scope(&["s3://tenure/r/", "s3://tenure/x/"], &[], &[]),
        ] {
            assert!(granted.missing(&wanted).is_some(), "{wanted:?}");
        }
    }

    #[test]
    fn the_policy_says_the_same() {
        let scope = scope(&["s3://lake/r/"], &["s3://tenure/w/"], &["s3://tenure/s/"]);
        let policy: serde_json::Value = serde_json::from_str(&scope.policy("aws")).unwrap();
        let statements = policy["Statement"].as_array().unwrap();
        assert_eq!(policy["Version"], "2012-10-17");
        assert_eq!(
            statements[0],
            json!({"Effect": "Allow", "Action": "s3:GetObject", "Resource": ["arn:aws:s3:::lake/r/*"]})
        );
        assert_eq!(
            statements[1],
            json!({"Effect": "Allow", "Action": "s3:PutObject", "Resource": ["arn:aws:s3:::tenure/w/*"]})
        );
        assert_eq!(
            statements[2],
            json!({"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
                "Resource": ["arn:aws:s3:::tenure/s/*"]})
        );
        assert_eq!(
            statements[3..],
            [
                json!({"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::lake",
                    "Condition": {"StringLike": {"s3:prefix": ["r/*"]}}}),
                json!({"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::tenure",
                    "Condition": {"StringLike": {"s3:prefix": ["w/*", "s/*"]}}}),
            ]
        );
        let odd = Scope { read: prefixes(&["s3://tenure/${aws:userid}/"]), ..Scope::default() };
        assert!(odd.policy("aws-cn").contains("arn:aws-cn:s3:::tenure/${$}{aws:userid}/*"));
    }

    #[test]
    fn keys_lead_nowhere_else() {
        for key in ["a", "a/b.parquet", "a/ü", "a*b", "a b"] {
            assert!(is_key(key), "{key}");
        }
        for key in ["", "/a", "a//b", "a/../b", "..", "a/./b", "a\\b", "a\0", "%2e%2e/a", ".tenure/key", ".tenure"] {
            assert!(!is_key(key), "{key}");
        }
        assert!(is_key(".tenured/x") && !is_key(&"a/".repeat(600)));
    }
}
