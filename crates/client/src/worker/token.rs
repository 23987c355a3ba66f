use std::fmt;
use std::path::PathBuf;

use reqwest::header::HeaderValue;

use super::error::WorkerError;

/// Where the worker's token comes from.
#[derive(Clone, Default)]
pub(crate) enum Token {
    /// The server lets workers in without one.
    #[default]
    None,
    Text(String),
    /// Read for every request, so that a rotated token is used at once.
    File(PathBuf),
}

impl Token {
    /// The value of the header, if there is one.
    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, WorkerError> {
        let text = match self {
            Self::None => return Ok(None),
            Self::Text(text) => text.clone(),
            Self::File(path) => tokio::fs::read_to_string(path)
                .await
                .map_err(|source| WorkerError::TokenFile { path: path.clone(), source })?,
        };
        let mut value = HeaderValue::from_str(text.trim())
            .map_err(|_| WorkerError::Setup("the worker token has characters that a header cannot carry".into()))?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Text(_) => f.write_str("Text(hidden)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_file_is_read_every_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let token = Token::File(file.path().to_owned());
        for text in ["one", "two"] {
            std::fs::write(file.path(), format!("{text}\n")).unwrap();
            let header = token.header().await.unwrap().unwrap();
            assert_eq!(header.to_str().unwrap(), text);
            assert!(header.is_sensitive());
        }
    }
}
