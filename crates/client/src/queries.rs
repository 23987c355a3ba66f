//! SQL over datasets.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, Response, Url};
use tenure_contract::query::{QueryAnswer, QueryExport, QueryRequest, QueryRows};

use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::http;
use crate::sandboxes::exec::{network, send};

/// What a query may take at the server if the request does not say.
const SERVER_SECONDS: u32 = 60;
/// For the way there and back, and for a query that waits for its turn.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// A longer silence while a result is read means that the connection is dead.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// What an exported result is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// One JSON object per line.
    JsonLines,
    /// With a header.
    Csv,
    Parquet,
}

impl ExportFormat {
    /// The word for `format` of a request.
    pub fn word(self) -> &'static str {
        match self {
            Self::JsonLines => "json",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }
}

impl Client {
    /// Runs a query. The request decides what the answer is: rows, or a result in the object store.
    ///
    /// Dropping the future ends the query. The call is repeated only if the server says that it did nothing.
    pub async fn query(&self, request: &QueryRequest) -> Result<QueryAnswer, ClientError> {
        let seconds = request.timeout_seconds.unwrap_or(SERVER_SECONDS);
        let call = Call::new(Method::POST, self.url(&["query"])).json(request)?;
        let call = call.timeout(Duration::from_secs(seconds.into()) + ANSWER_WAIT);
        let answer = self.answer(&call).await?;
        QueryAnswer::parse(&String::from_utf8_lossy(&answer.body))
            .map_err(|source| ClientError::Decode { operation: call.operation(), source })
    }

    /// Runs a query and returns its rows, up to the limit of the request; `truncated` says that there are more.
    pub async fn query_rows(&self, request: &QueryRequest) -> Result<QueryRows, ClientError> {
        match self.query(request).await? {
            QueryAnswer::Inline(rows) => Ok(rows),
            _ => Err(ClientError::Setup("the request asks for more than rows: use `Client::query`".to_owned())),
        }
    }

    /// Runs a query and writes its whole result to the object store. Read it with [`download_result`](Self::download_result).
    pub async fn export_query(&self, request: &QueryRequest, format: ExportFormat) -> Result<QueryExport, ClientError> {
        let request = QueryRequest { format: Some(format.word().to_owned()), export: Some(true), ..request.clone() };
        match self.query(&request).await? {
            QueryAnswer::Export(export) => Ok(export),
            _ => Err(ClientError::Setup("the request asks for more than an export: use `Client::query`".to_owned())),
        }
    }

    /// Reads an exported result piece by piece. The API key is sent to the control plane alone.
    pub async fn download_result(&self, export: &QueryExport) -> Result<ExportStream, ClientError> {
        let Some(address) = &export.result_url else {
            let message = "this result has no address: read it from the object store, at its output_location";
            return Err(ClientError::Setup(message.to_owned()));
        };
        let request = if address.starts_with('/') {
            let below = format!("{}{address}", self.inner.server.as_str().trim_end_matches('/'));
            self.request(Method::GET, url(&below)?)
        } else {
            http::new_client(None).map_err(ClientError::Setup)?.get(url(address)?)
        };
        let operation = "GET of the result".to_owned();
        let response = send(&operation, request).await?;
        Ok(ExportStream { operation, bytes: export.bytes, read: 0, response })
    }
}

fn url(address: &str) -> Result<Url, ClientError> {
    // Not repeated: the address may be all that it takes to read the result.
    Url::parse(address).map_err(|error| ClientError::Setup(format!("the address of the result is invalid: {error}")))
}

/// The content of an exported result, see [`Client::download_result`].
#[derive(Debug)]
pub struct ExportStream {
    operation: String,
    bytes: u64,
    read: u64,
    response: Response,
}

impl ExportStream {
    /// The size of the whole result.
    pub fn size(&self) -> u64 {
        self.bytes
    }

    /// The next piece. A connection that ends early is an error, not the end of the result.
    pub async fn next(&mut self) -> Option<Result<Bytes, ClientError>> {
        match tokio::time::timeout(IDLE_MAX, self.response.chunk()).await {
            Ok(Ok(Some(piece))) => {
                self.read += piece.len() as u64;
                Some(Ok(piece))
            }
            Ok(Ok(None)) if self.read == self.bytes => None,
            Ok(Ok(None)) => {
                let source = format!("{} of {} bytes came", self.read, self.bytes).into();
                self.read = self.bytes;
                Some(Err(ClientError::Network { operation: self.operation.clone(), source }))
            }
            Ok(Err(source)) => Some(Err(network(&self.operation, source))),
            Err(late) => Some(Err(ClientError::Network { operation: self.operation.clone(), source: Box::new(late) })),
        }
    }
}
