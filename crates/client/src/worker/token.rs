use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use reqwest::header::HeaderValue;

use super::error::WorkerError;
use super::issued::Issued;

/// Where the worker's token comes from.
#[derive(Clone, Default)]
pub(crate) enum Token {
    /// The server lets workers in without one.
    #[default]
    None,
    Text(String),
    /// Read for every request, so that a rotated token is used at once.
    File(PathBuf),
    /// Given out by the server for a bootstrap key, and shared by all connections of the worker.
    Issued(Arc<Issued>),
    /// Made for every request.
    Made(Arc<dyn Fn() -> Result<String, String> + Send + Sync>),
}

impl Token {
    /// The value of the header, if there is one. Waits for a token that is still to be issued.
    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, WorkerError> {
        let text = match self {
            Self::None => return Ok(None),
            Self::Text(text) => text.clone(),
            Self::File(path) => tokio::fs::read_to_string(path)
                .await
                .map_err(|source| WorkerError::TokenFile { path: path.clone(), source })?,
            Self::Issued(issued) => return Ok(Some(issued.token().await)),
            Self::Made(make) => make().map_err(WorkerError::Setup)?,
        };
        secret_header(&text, "worker token").map(Some)
    }

    /// Another one, after this one was refused. Only what was issued can be had anew.
    pub(crate) async fn renewed(&self, refused: Option<&HeaderValue>) -> Option<HeaderValue> {
        match (self, refused) {
            (Self::Issued(issued), Some(refused)) => Some(issued.other_than(refused).await),
            _ => None,
        }
    }
}

/// A header that does not print.
pub(crate) fn secret_header(text: &str, what: &str) -> Result<HeaderValue, WorkerError> {
    let mut value = HeaderValue::from_str(text.trim())
        .map_err(|_| WorkerError::Setup(format!("the {what} has characters that a header cannot carry")))?;
    value.set_sensitive(true);
    Ok(value)
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Text(_) => f.write_str("Text(hidden)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Issued(_) => f.write_str("Issued(hidden)"),
            Self::Made(_) => f.write_str("Made(hidden)"),
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
