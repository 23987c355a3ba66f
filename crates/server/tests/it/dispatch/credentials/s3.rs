//! Requests to the S3 endpoint, signed as clients sign them.

use std::time::{Duration, SystemTime};

use aws_sdk_sqs::config::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SignatureLocation, SigningInstructions,
    SigningSettings, UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4;
use reqwest::Method;
use serde_json::Value;

/// The holder of keys.
#[derive(Debug, Clone)]
pub struct Client {
    pub url: String,
    pub id: String,
    pub secret: String,
    pub token: String,
    /// When requests are signed.
    pub at: SystemTime,
}

/// The status of an answer, its body, and the code in it.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub body: String,
}

impl Said {
    pub fn code(&self) -> &str {
        self.body.split("<Code>").nth(1).and_then(|rest| rest.split("</Code>").next()).unwrap_or_default()
    }
}

impl Client {
    /// With keys as the broker answers them.
    pub fn of(answer: &Value) -> Self {
        let text = |name: &str| answer[name].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        Self {
            url: text("endpoint_url"),
            id: text("access_key_id"),
            secret: text("secret_access_key"),
            token: text("session_token"),
            at: SystemTime::now(),
        }
    }

    /// The headers of a signed request. `payload` is what is said about the body.
    pub fn headers(&self, method: &str, path: &str, payload: SignableBody<'_>) -> Vec<(String, String)> {
        self.headers_with(method, path, payload, &[])
    }

    /// The same with further headers, which are signed as well.
    pub fn headers_with(
        &self,
        method: &str,
        path: &str,
        payload: SignableBody<'_>,
        further: &[(&str, &str)],
    ) -> Vec<(String, String)> {
        let mut settings = SigningSettings::default();
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let url = format!("{}{path}", self.url);
        let request = SignableRequest::new(method, url, further.iter().copied(), payload).unwrap();
        let instructions = self.sign(request, settings);
        let signed = instructions.headers().chain(further.iter().copied());
        signed.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn sign(&self, request: SignableRequest<'_>, mut settings: SigningSettings) -> SigningInstructions {
        let credentials = Credentials::new(&self.id, &self.secret, Some(self.token.clone()), None, "test");
        let identity = credentials.into();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region("us-east-1")
            .name("s3")
            .time(self.at)
            .settings(settings)
            .build()
            .unwrap()
            .into();
        sign(request, &params).unwrap().into_parts().0
    }

    /// An address that whoever has it can read.
    pub fn address(&self, path: &str, valid_for: Duration) -> reqwest::Url {
        let mut settings = SigningSettings::default();
        settings.signature_location = SignatureLocation::QueryParams;
        settings.expires_in = Some(valid_for);
        let url = format!("{}{path}", self.url);
        let request = SignableRequest::new("GET", &url, std::iter::empty(), SignableBody::UnsignedPayload).unwrap();
        let instructions = self.sign(request, settings);
        let params = instructions.params().iter().map(|(name, value)| (*name, value.as_ref()));
        reqwest::Url::parse_with_params(&url, params).unwrap()
    }

    pub async fn send(&self, method: Method, path: &str, body: &[u8]) -> Said {
        let headers = self.headers(method.as_str(), path, SignableBody::Bytes(body));
        self.send_with(method, path, &headers, body).await
    }

    pub async fn send_with(&self, method: Method, path: &str, headers: &[(String, String)], body: &[u8]) -> Said {
        let mut request = reqwest::Client::new().request(method, format!("{}{path}", self.url)).body(body.to_vec());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.unwrap();
        Said { status: answer.status().as_u16(), body: answer.text().await.unwrap() }
    }

    pub async fn get(&self, path: &str) -> Said {
        self.send(Method::GET, path, b"").await
    }

    pub async fn put(&self, path: &str, body: &str) -> Said {
        self.send(Method::PUT, path, body.as_bytes()).await
    }
}
