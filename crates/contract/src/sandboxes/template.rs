//! Templates: sandboxes described in advance.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::lenient;
use crate::duration;

pub const MEMORY_MB_DEFAULT: u64 = 512;
pub const CPU_CORES_DEFAULT: u32 = 1;
pub const TTL_SECONDS_DEFAULT: u64 = 300;

/// A secret that a sandbox of a template gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateSecret {
    #[serde(default, deserialize_with = "lenient::value")]
    pub name: String,
    /// The name of a variable, or an absolute path.
    #[serde(default, deserialize_with = "lenient::value")]
    pub inject_at: String,
}

/// Body of `POST /api/v1/templates` and `PUT /api/v1/templates/{name}`. Two fields have two spellings; where both are given,
/// `cpu_cores` and `ttl_seconds` take precedence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"name": "python", "image": "python", "memory_mb": 512, "cpu_cores": 1, "ttl_seconds": 900, "setup": ["pip install requests"]})))]
pub struct TemplateWrite {
    #[serde(default, deserialize_with = "lenient::value")]
    pub name: String,
    #[serde(default, deserialize_with = "lenient::value")]
    pub image: String,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Commands that run in order before the sandbox is `running`.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<String>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    /// Default 512.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Default 1.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub cpu_cores: Option<u32>,
    /// Default 300.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Variables of every command.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<TemplateSecret>,
    /// How many warm sandboxes are kept.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub pool_size: Option<u32>,
    /// The other spelling of `cpu_cores`.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// The other spelling of `ttl_seconds`: a duration such as `30m`.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
    /// A preference: where it does not exist, the default provider is used.
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Additive.
    #[serde(default, deserialize_with = "lenient::value", skip_serializing_if = "lenient::is_default")]
    pub read_only_root: bool,
}

impl TemplateWrite {
    /// The cores in either spelling.
    pub fn cores(&self) -> Option<u32> {
        self.cpu_cores.or(self.vcpus)
    }

    /// The time to live in either spelling, in whole seconds. `Err` has a `ttl` that is not a duration.
    pub fn seconds(&self) -> Result<Option<u64>, &str> {
        match (self.ttl_seconds, self.ttl.as_deref()) {
            (Some(seconds), _) => Ok(Some(seconds)),
            (None, None) => Ok(None),
            (None, Some(text)) => match duration::parse(text) {
                Some(ttl) if ttl.is_zero() => Ok(None),
                Some(ttl) => Ok(Some(ttl.as_secs().max(1))),
                None => Err(text),
            },
        }
    }
}

/// A template. On the wire it also has `vcpus` and `ttl`, the other spellings of `cpu_cores` and `ttl_seconds`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Read")]
pub struct Template {
    pub name: String,
    /// Grows with every change.
    pub version: u64,
    pub image: String,
    pub description: Option<String>,
    pub setup: Vec<String>,
    pub allowed_hosts: Vec<String>,
    pub memory_mb: u64,
    pub cpu_cores: u32,
    pub ttl_seconds: u64,
    pub env: BTreeMap<String, String>,
    pub secrets: Vec<TemplateSecret>,
    pub pool_size: u32,
    pub created_at: String,
    pub updated_at: String,
    pub provider: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub read_only_root: bool,
}

/// The order of the contract, with the other spellings after it.
#[derive(Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
struct Written<'a> {
    name: &'a str,
    version: u64,
    image: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    setup: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    allowed_hosts: &'a [String],
    memory_mb: u64,
    cpu_cores: u32,
    ttl_seconds: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    secrets: &'a [TemplateSecret],
    pool_size: u32,
    created_at: &'a str,
    updated_at: &'a str,
    /// Same as `cpu_cores`.
    vcpus: u32,
    /// Same as `ttl_seconds`, as a duration.
    ttl: String,
    provider: &'a str,
    metadata: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    read_only_root: bool,
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written {
            name: &self.name,
            version: self.version,
            image: &self.image,
            description: self.description.as_deref(),
            setup: &self.setup,
            allowed_hosts: &self.allowed_hosts,
            memory_mb: self.memory_mb,
            cpu_cores: self.cpu_cores,
            ttl_seconds: self.ttl_seconds,
            env: &self.env,
            secrets: &self.secrets,
            pool_size: self.pool_size,
            created_at: &self.created_at,
            updated_at: &self.updated_at,
            vcpus: self.cpu_cores,
            ttl: duration::canonical(Duration::from_secs(self.ttl_seconds)),
            provider: self.provider.as_deref().unwrap_or_default(),
            metadata: &self.metadata,
            read_only_root: self.read_only_root,
        }
        .serialize(serializer)
    }
}

/// What was written, in either spelling.
#[derive(Deserialize)]
struct Read {
    #[serde(flatten)]
    write: TemplateWrite,
    #[serde(default)]
    version: u64,
    #[serde(default)]
    created_at: String,
    #[serde(default)]
    updated_at: String,
}

impl From<Read> for Template {
    fn from(Read { write, version, created_at, updated_at }: Read) -> Self {
        Self {
            cpu_cores: write.cores().unwrap_or(CPU_CORES_DEFAULT),
            ttl_seconds: write.seconds().ok().flatten().unwrap_or(TTL_SECONDS_DEFAULT),
            memory_mb: write.memory_mb.unwrap_or(MEMORY_MB_DEFAULT),
            pool_size: write.pool_size.unwrap_or_default(),
            name: write.name,
            version,
            image: write.image,
            description: write.description,
            setup: write.setup,
            allowed_hosts: write.allowed_hosts,
            env: write.env,
            secrets: write.secrets,
            created_at,
            updated_at,
            provider: write.provider,
            metadata: write.metadata,
            read_only_root: write.read_only_root,
        }
    }
}

#[cfg(feature = "openapi")]
mod schema {
    use std::borrow::Cow;

    use utoipa::openapi::RefOr;
    use utoipa::openapi::schema::Schema;

    use super::{Template, Written};

    impl utoipa::PartialSchema for Template {
        fn schema() -> RefOr<Schema> {
            Written::schema()
        }
    }

    impl utoipa::ToSchema for Template {
        fn name() -> Cow<'static, str> {
            "Template".into()
        }

        fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
            Written::schemas(schemas);
        }
    }
}

/// Body of `POST /api/v1/templates/{name}/spawn`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TemplateSpawn {
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default, deserialize_with = "lenient::option", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"{"name":"py","version":3,"image":"python","description":"d","setup":["a"],"allowed_hosts":["h"],"memory_mb":256,"cpu_cores":2,"ttl_seconds":1800,"env":{"A":"b"},"secrets":[{"name":"s","inject_at":"S"}],"pool_size":4,"created_at":"c","updated_at":"u","vcpus":2,"ttl":"30m0s","provider":"process","metadata":{"k":"v"}}"#;

    #[test]
    fn a_template_is_written_with_both_spellings_and_read_back() {
        let template: Template = serde_json::from_str(FULL).unwrap();
        assert_eq!((template.cpu_cores, template.ttl_seconds), (2, 1800));
        assert_eq!(serde_json::to_string(&template).unwrap(), FULL);
    }

    #[test]
    fn absent_fields_are_the_defaults_of_the_contract() {
        let template: Template =
            serde_json::from_str(r#"{"name":"a","image":"b","created_at":"c","updated_at":"u"}"#).unwrap();
        assert_eq!(
            serde_json::to_string(&template).unwrap(),
            r#"{"name":"a","version":0,"image":"b","memory_mb":512,"cpu_cores":1,"ttl_seconds":300,"pool_size":0,"created_at":"c","updated_at":"u","vcpus":1,"ttl":"5m0s","provider":"","metadata":{}}"#
        );
    }

    #[test]
    fn either_spelling_is_read_and_the_documented_one_takes_precedence() {
        let read = |text: &str| serde_json::from_str::<TemplateWrite>(text).unwrap();
        let other = read(r#"{"name":"a","image":"b","vcpus":4,"ttl":"30m"}"#);
        assert_eq!((other.cores(), other.seconds()), (Some(4), Ok(Some(1800))));
        let both = read(r#"{"vcpus":4,"ttl":"30m","cpu_cores":2,"ttl_seconds":60}"#);
        assert_eq!((both.cores(), both.seconds()), (Some(2), Ok(Some(60))));
        let blank = read(r#"{"vcpus":0,"ttl":"","cpu_cores":null,"ttl_seconds":0}"#);
        assert_eq!((blank.cores(), blank.seconds()), (None, Ok(None)));
        assert_eq!(read(r#"{"ttl":"0s"}"#).seconds(), Ok(None));
        assert_eq!(read(r#"{"ttl":"soon"}"#).seconds(), Err("soon"));
    }
}
