//! Objects of 8 MiB through the endpoint, beside plain files by HTTP on the same machine in the same run.
//!
//! `cargo bench -p tenure-s3 -- --rounds 40`: rounds of each kind. The default is small.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on fails, and prints what it measured"
)]

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode,
    sign,
};
use aws_sigv4::sign::v4;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tenure_core::objects::{Prefix, Scope};
use tenure_s3::{Holder, Issued, Keys, Service};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const OBJECT_BYTES: usize = 8 << 20;
const PIECE_BYTES: usize = 512 << 10;
/// Objects that are sent or read at the same time.
const AT_ONCE: usize = 4;

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, std::io::Error>;

/// Serves each request of each connection.
async fn listen<F>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static) -> String
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answering = answer(request);
                async move { Ok::<_, Infallible>(answering.await) }
            });
            tokio::spawn(async move {
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    url
}

/// What anybody would write: a file to be read, and one that is durable under its name when the request is answered.
async fn plain(folder: PathBuf, request: Request<Incoming>) -> Response<Body> {
    let path = folder.join(request.uri().path().trim_start_matches('/'));
    if request.method() == Method::GET {
        let file = tokio::fs::File::open(path).await.unwrap();
        let pieces = stream::try_unfold(file, async |mut file| {
            let mut piece = bytes::BytesMut::with_capacity(PIECE_BYTES);
            let length = tokio::io::AsyncReadExt::read_buf(&mut file, &mut piece).await?;
            Ok::<_, std::io::Error>((length > 0).then(|| (Frame::data(piece.freeze()), file)))
        });
        return Response::new(http_body_util::StreamBody::new(pieces).boxed_unsync());
    }
    let draft = path.with_extension("draft");
    let mut file = tokio::fs::File::create(&draft).await.unwrap();
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        file.write_all(frame.unwrap().data_ref().unwrap()).await.unwrap();
    }
    file.sync_all().await.unwrap();
    tokio::fs::rename(draft, path).await.unwrap();
    Response::new(http_body_util::Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync())
}

struct Bench {
    http: reqwest::Client,
    plain: String,
    endpoint: String,
    keys: Issued,
    content: Bytes,
    _folders: [tempfile::TempDir; 2],
}

impl Bench {
    async fn new() -> Self {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let path: &Path = folders[0].path();
        let keys = Arc::new(Keys::of_folder(path).unwrap());
        let service = Service::new(path, "tenure", Arc::clone(&keys)).unwrap();
        let endpoint = listen(move |request| {
            let service = service.clone();
            async move { service.handle(request).await }
        })
        .await;
        let other = folders[1].path().to_owned();
        let plain = listen(move |request| plain(other.clone(), request)).await;
        let scope = Scope { scratch: vec![Prefix::parse("s3://tenure/s/", false).unwrap()], ..Scope::default() };
        let holder = Holder { org: "o".into(), task: "t".into(), attempt: 1 };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
        let keys = keys.issue(holder, &scope, now, now + 900).unwrap();
        let content = (0..OBJECT_BYTES).map(|at| (at * 31 % 251) as u8).collect::<Vec<_>>().into();
        Self { http: reqwest::Client::new(), plain, endpoint, keys, content, _folders: folders }
    }

    /// A request as clients sign it. `covered`: with the SHA-256 of the body.
    fn signed(&self, method: &Method, path: &str, covered: Option<&[u8]>) -> reqwest::RequestBuilder {
        let Issued { access_key_id, secret_access_key, session_token, .. } = &self.keys;
        let identity =
            Credentials::new(access_key_id, secret_access_key, Some(session_token.clone()), None, "bench").into();
        let mut settings = SigningSettings::default();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(tenure_s3::REGION)
            .name("s3")
            .time(SystemTime::now())
            .settings(settings)
            .build()
            .unwrap()
            .into();
        let url = format!("{}{path}", self.endpoint);
        let payload = covered.map_or(SignableBody::UnsignedPayload, SignableBody::Bytes);
        let signable = SignableRequest::new(method.as_str(), &url, std::iter::empty(), payload).unwrap();
        let (instructions, _) = sign(signable, &params).unwrap().into_parts();
        let request = self.http.request(method.clone(), url);
        instructions.headers().fold(request, |request, (name, value)| request.header(name, value))
    }

    async fn send(&self, request: reqwest::RequestBuilder, expected: usize) {
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
        let pieces = answer.bytes_stream().map_ok(|piece| piece.len());
        let length: usize = pieces.try_fold(0, async |sum, piece| Ok(sum + piece)).await.unwrap();
        assert_eq!(length, expected);
    }

    async fn one(&self, kind: Kind, at: usize) {
        let (plain, path) = (format!("{}/{at}", self.plain), format!("/tenure/s/{at}"));
        match kind {
            Kind::PlainGet => self.send(self.http.get(plain), OBJECT_BYTES).await,
            Kind::PlainPut => self.send(self.http.put(plain).body(self.content.clone()), 0).await,
            Kind::Get => self.send(self.signed(&Method::GET, &path, Some(b"")), OBJECT_BYTES).await,
            Kind::Put => self.send(self.signed(&Method::PUT, &path, None).body(self.content.clone()), 0).await,
            Kind::CoveredPut => {
                let request = self.signed(&Method::PUT, &path, Some(&self.content));
                self.send(request.body(self.content.clone()), 0).await;
            }
        }
    }

    /// How long one round of objects takes.
    async fn round(&self, kind: Kind) -> Duration {
        let began = Instant::now();
        stream::iter(0..AT_ONCE).for_each_concurrent(AT_ONCE, |at| self.one(kind, at)).await;
        began.elapsed()
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    PlainGet,
    PlainPut,
    Get,
    /// The signature does not cover the body.
    Put,
    CoveredPut,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn rounds() -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--rounds").skip(1);
    arguments.next().map_or(5, |text| text.parse().expect("--rounds takes a number"))
}

#[tokio::main]
async fn main() {
    let bench = Bench::new().await;
    let rate = |took: Duration| (AT_ONCE * OBJECT_BYTES) as f64 / (1 << 20) as f64 / took.as_secs_f64();
    for (name, plain, ours) in [
        ("put", Kind::PlainPut, Kind::Put),
        ("put with a signed body", Kind::PlainPut, Kind::CoveredPut),
        ("get", Kind::PlainGet, Kind::Get),
    ] {
        // Once for connections to be open and files to be in memory.
        bench.round(plain).await;
        bench.round(ours).await;
        let (mut rates, mut plain_rates, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds() {
            let (theirs, own) = (rate(bench.round(plain).await), rate(bench.round(ours).await));
            shares.push(own / theirs);
            rates.push(own);
            plain_rates.push(theirs);
        }
        println!(
            "{name}: {:.0} MiB/s, plain files {:.0} MiB/s, {:.0} %",
            median(rates),
            median(plain_rates),
            100.0 * median(shares)
        );
    }
}
