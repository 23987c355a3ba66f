use crate::error::{Error, Result};
use crate::spec::WORKSPACE;

/// The longest path that is accepted, as in the kernel.
pub(super) const MAX_PATH_BYTES: usize = 4095;

/// A path inside a sandbox, made absolute. `.`, `..` and repeated slashes are gone, so that every component is a name.
///
/// `..` is taken away together with the component before it, as in `/a/../b`, without looking at the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SandboxPath {
    components: Vec<String>,
}

impl SandboxPath {
    /// Reads an absolute path, or one relative to `/workspace`.
    pub(crate) fn parse(path: &str) -> Result<Self> {
        if path.is_empty() {
            return Err(Error::invalid("the path is empty"));
        }
        if path.len() > MAX_PATH_BYTES {
            return Err(Error::invalid(format!("the path has {} bytes, more than {MAX_PATH_BYTES}", path.len())));
        }
        if path.contains('\0') {
            return Err(Error::invalid(format!("path {path:?}: contains a NUL byte")));
        }
        let mut components: Vec<String> = Vec::new();
        let base = if path.starts_with('/') { "" } else { WORKSPACE };
        for component in base.split('/').chain(path.split('/')) {
            match component {
                "" | "." => {}
                ".." => {
                    if components.pop().is_none() {
                        return Err(Error::invalid(format!("path {path:?}: leads outside the sandbox")));
                    }
                }
                name => components.push(name.to_owned()),
            }
        }
        Ok(Self { components })
    }

    pub(crate) fn components(&self) -> &[String] {
        &self.components
    }

    /// As the kernel is asked for it beneath the root: `.` for the root itself.
    pub(super) fn beneath(&self) -> String {
        joined(&self.components)
    }

    /// The path of the directory beneath the root, and the name in it.
    pub(super) fn split(&self) -> Result<(&[String], &str)> {
        let (name, parents) =
            self.components.split_last().ok_or_else(|| Error::invalid("the root of the sandbox cannot be changed"))?;
        Ok((parents, name))
    }

    pub(super) fn child(&self, name: &str) -> String {
        match self.components.as_slice() {
            [] => format!("/{name}"),
            _ => format!("{self}/{name}"),
        }
    }
}

pub(super) fn joined(components: &[String]) -> String {
    if components.is_empty() { ".".to_owned() } else { components.join("/") }
}

impl std::fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/{}", self.components.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> String {
        SandboxPath::parse(path).expect("a path").to_string()
    }

    #[test]
    fn paths_are_absolute_or_relative_to_the_workspace() {
        assert_eq!(parsed("a/b"), "/workspace/a/b");
        assert_eq!(parsed("/a//b/./c/"), "/a/b/c");
        assert_eq!(parsed("../etc"), "/etc");
        assert_eq!(parsed("/"), "/");
        assert_eq!(parsed("a\nb"), "/workspace/a\nb");
    }

    #[test]
    fn a_path_that_leads_outside_is_refused() {
        for path in ["../../etc/passwd", "/..", "/a/../../b", "", "a\0b", &"x".repeat(5000)] {
            assert!(SandboxPath::parse(path).is_err(), "{path:?}");
        }
    }
}
