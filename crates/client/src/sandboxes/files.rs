//! Files of a sandbox. Contents are streamed in both directions and may have any size.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Body, Method, Response};
use tenure_contract::sandboxes::{FileChmod, FileInfo, FileMove};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use super::Sandbox;
use super::exec::{network, send};
use crate::client::Call;
use crate::error::ClientError;
use crate::filter;

/// A longer silence while a file is read means that the connection is dead.
const IDLE_MAX: Duration = Duration::from_secs(60);
const CHUNK_BYTES: usize = 64 << 10;

impl Sandbox {
    /// Writes a file and creates the folders above it. The mode is octal, default `0644`.
    pub async fn write_file(
        &self,
        path: &str,
        content: impl Into<Bytes>,
        mode: Option<&str>,
    ) -> Result<(), ClientError> {
        self.put_file(path, Body::from(content.into()), None, mode).await
    }

    /// Writes a file from a reader of `size` bytes. It appears in the sandbox when it is complete.
    pub async fn upload(
        &self,
        path: &str,
        content: impl AsyncRead + Send + Sync + Unpin + 'static,
        size: u64,
        mode: Option<&str>,
    ) -> Result<(), ClientError> {
        let body = Body::wrap_stream(ReaderStream::with_capacity(content, CHUNK_BYTES));
        self.put_file(path, body, Some(size), mode).await
    }

    async fn put_file(&self, path: &str, body: Body, size: Option<u64>, mode: Option<&str>) -> Result<(), ClientError> {
        let mut url = self.url_of(&["files"]);
        filter::write(&mut url, &[("path", &Some(path.to_owned())), ("mode", &mode.map(ToOwned::to_owned))]);
        let operation = format!("PUT {}", url.path());
        let mut request = self.client.request(Method::PUT, url).body(body);
        if let Some(size) = size {
            request = request.header(CONTENT_LENGTH, size);
        }
        let response = send(&operation, request).await?;
        response.bytes().await.map(drop).map_err(|source| network(&operation, source))
    }

    /// Reads a whole file into memory.
    pub async fn read_file(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        let mut stream = self.download(path).await?;
        let mut content = Vec::new();
        while let Some(bytes) = stream.next().await {
            content.extend_from_slice(&bytes?);
        }
        Ok(content)
    }

    /// Reads a file piece by piece.
    pub async fn download(&self, path: &str) -> Result<FileStream, ClientError> {
        let mut url = self.url_of(&["files"]);
        filter::write(&mut url, &[("path", &Some(path.to_owned()))]);
        let operation = format!("GET {}", url.path());
        let response = send(&operation, self.client.request(Method::GET, url)).await?;
        Ok(FileStream { operation, size: response.content_length(), response })
    }

    /// What is in a folder, sorted by path.
    pub async fn list_files(&self, path: &str) -> Result<Vec<FileInfo>, ClientError> {
        self.files("list", "path", path).await
    }

    pub async fn stat_file(&self, path: &str) -> Result<FileInfo, ClientError> {
        self.files("stat", "path", path).await
    }

    /// Paths that match a pattern, sorted; `**` matches any number of folders.
    pub async fn glob_files(&self, pattern: &str) -> Result<Vec<String>, ClientError> {
        self.files("glob", "pattern", pattern).await
    }

    async fn files<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        name: &str,
        value: &str,
    ) -> Result<T, ClientError> {
        let mut url = self.url_of(&["files", what]);
        filter::write(&mut url, &[(name, &Some(value.to_owned()))]);
        self.client.call(Call::new(Method::GET, url)).await
    }

    pub async fn delete_file(&self, path: &str, recursive: bool) -> Result<(), ClientError> {
        let mut url = self.url_of(&["files"]);
        let recursive = recursive.then(|| "true".to_owned());
        filter::write(&mut url, &[("path", &Some(path.to_owned())), ("recursive", &recursive)]);
        self.client.answer(&Call::new(Method::DELETE, url)).await.map(drop)
    }

    pub async fn move_file(&self, from: &str, to: &str) -> Result<(), ClientError> {
        let request = FileMove { old_path: from.to_owned(), new_path: to.to_owned() };
        self.client.answer(&Call::new(Method::POST, self.url_of(&["files", "move"])).json(&request)?).await.map(drop)
    }

    /// Sets the mode of a file, such as `0755`.
    pub async fn chmod_file(&self, path: &str, mode: &str) -> Result<(), ClientError> {
        let request = FileChmod { path: path.to_owned(), mode: mode.to_owned() };
        let call = Call::new(Method::POST, self.url_of(&["files", "chmod"])).json(&request)?;
        self.client.answer(&call.repeatable(true)).await.map(drop)
    }
}

/// The content of a file, see [`Sandbox::download`].
#[derive(Debug)]
pub struct FileStream {
    operation: String,
    size: Option<u64>,
    response: Response,
}

impl FileStream {
    /// The size of the file, if the server said it.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The next piece. A connection that ends early is an error, not the end of the file.
    pub async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        match tokio::time::timeout(IDLE_MAX, self.response.chunk()).await {
            Ok(Ok(bytes)) => bytes.map(Ok),
            Ok(Err(source)) => Some(Err(network(&self.operation, source))),
            Err(late) => Some(Err(ClientError::Network { operation: self.operation.clone(), source: Box::new(late) })),
        }
    }
}
