use std::fmt;
use std::path::Path;

/// Parameters of a DSN that say nothing secret. Others are not shown.
const SHOWN: [&str; 9] = [
    "sslmode",
    "sslrootcert",
    "application_name",
    "connect_timeout",
    "target_session_attrs",
    "host",
    "hostaddr",
    "port",
    "dbname",
];

/// The address of a store. It may hold a password, so it does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// `sqlite:PATH` or `postgres://…`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let known = ["sqlite:", "postgres://", "postgresql://"];
        let (rest, _) = known
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme).map(|rest| (rest, scheme)))
            .ok_or("a store is `sqlite:PATH` or `postgres://user@host/database`")?;
        if rest.is_empty() {
            return Err("the address of the store ends after its scheme".to_owned());
        }
        Ok(Self(text.to_owned()))
    }

    pub fn sqlite(path: &Path) -> Self {
        Self(format!("sqlite:{}", path.display()))
    }

    /// The address, for those who connect to it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A Postgres with these roots, unless the address names some.
    #[must_use]
    pub fn with_roots(&self, roots: &Path) -> Self {
        if !self.is_postgres() || self.0.contains("sslrootcert=") {
            return self.clone();
        }
        let separator = if self.0.contains('?') { '&' } else { '?' };
        Self(format!("{}{separator}sslrootcert={}", self.0, escaped(&roots.to_string_lossy())))
    }

    pub fn is_postgres(&self) -> bool {
        !self.0.starts_with("sqlite:")
    }

    /// The file of an SQLite store.
    pub fn path(&self) -> Option<&Path> {
        self.0.strip_prefix("sqlite:").map(Path::new)
    }
}

/// As a query takes it.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(f, "sqlite:{}", path.display()),
            None => f.write_str("postgres"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A DSN without what could be a password. When in doubt, more is hidden than needed.
pub(crate) fn masked(dsn: &str) -> String {
    let Some((scheme, rest)) = dsn.split_once("://") else { return "***".to_owned() };
    // A password may hold any character, also `/`, `?` and `@`: what stands before the last `@` is name and password.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => match user.split_once(':') {
            Some((name, _)) => (format!("{name}:***@"), rest),
            None => (format!("{user}@"), rest),
        },
        None => (String::new(), rest),
    };
    let Some((place, parameters)) = rest.split_once('?') else { return format!("{scheme}://{user}{rest}") };
    let shown: Vec<_> = parameters
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if SHOWN.contains(&name) => parameter.to_owned(),
            Some((name, _)) => format!("{name}=***"),
            None => "***".to_owned(),
        })
        .collect();
    format!("{scheme}://{user}{place}?{}", shown.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dsn_is_shown_without_its_password() {
        for (dsn, shown) in [
            ("postgres://u:hunter2@h/d", "postgres://u:***@h/d"),
            ("postgres://u@h:5432/d?sslmode=require", "postgres://u@h:5432/d?sslmode=require"),
            ("postgres://h/d?user=u&password=hunter2", "postgres://h/d?user=***&password=***"),
            ("postgres://h/d?hunter2", "postgres://h/d?***"),
            ("postgres://u:hun/ter?2@x:y@h/d", "postgres://u:***@h/d"),
            ("postgres://u:hunter2@h/d?options=a@b", "postgres://u:***@b"),
            ("hunter2", "***"),
        ] {
            assert_eq!(masked(dsn), shown);
            assert!(!masked(dsn).contains("hunter2"));
        }
    }
}
