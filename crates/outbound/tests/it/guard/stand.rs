//! A listener that counts, and a resolver that says what it is told.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tenure_outbound::Resolver;
use tenure_tls::ServerTls;
use tenure_tls::tokio_rustls::TlsAcceptor;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

/// Answers look-ups in turn; the last answer stays.
#[derive(Clone, Default)]
pub struct Names {
    answers: Arc<Vec<Vec<IpAddr>>>,
    lookups: Arc<AtomicUsize>,
}

impl Names {
    pub fn answering(answers: &[&[&str]]) -> Self {
        let parse = |texts: &&[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Self { answers: Arc::new(answers.iter().map(parse).collect()), lookups: Arc::default() }
    }

    pub fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolver for Names {
    fn lookup(&self, _host: &str) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>> {
        let n = self.lookups.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers.get(n).or(self.answers.last()).cloned().unwrap_or_default();
        Box::pin(async move { Ok(answer) })
    }
}

struct State {
    connections: AtomicUsize,
    requests: AtomicUsize,
    last: Mutex<String>,
    answer: Mutex<String>,
}

impl State {
    fn new() -> Self {
        let answer = Mutex::new("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned());
        Self { connections: AtomicUsize::new(0), requests: AtomicUsize::new(0), last: Mutex::default(), answer }
    }
}

/// Speaks just enough HTTP/1.1.
pub struct Listener {
    address: SocketAddr,
    state: Arc<State>,
}

impl Listener {
    pub async fn start(address: &str) -> Self {
        Self::serve(TcpListener::bind(address).await.unwrap())
    }

    /// Two that have one port, which the system gives for one address alone.
    pub async fn pair(one: &str, other: &str) -> (Self, Self) {
        loop {
            let first = TcpListener::bind((one, 0)).await.unwrap();
            if let Ok(second) = TcpListener::bind((other, first.local_addr().unwrap().port())).await {
                return (Self::serve(first), Self::serve(second));
            }
        }
    }

    fn serve(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::new());
        let serving = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                serving.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, Arc::clone(&serving)));
            }
        });
        Self { address, state }
    }

    /// What requests are answered with from now on.
    pub fn answer(&self, text: String) {
        *self.state.answer.lock().unwrap() = text;
    }

    pub fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.address.port())
    }

    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// The last request as it came.
    pub fn last(&self) -> String {
        self.state.last.lock().unwrap().clone()
    }

    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::SeqCst)
    }
}

/// Answers 200 to each request over TLS.
pub async fn serve_tls(tls: ServerTls) -> SocketAddr {
    let live = ServerTls { alpn: vec![b"http/1.1".to_vec()], ..tls }.load().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = TlsAcceptor::from(live.config());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream, Arc::new(State::new())).await;
                }
            });
        }
    });
    address
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, state: Arc<State>) {
    let mut buffer = [0; 4096];
    // The requests of these tests fit into one read.
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        state.requests.fetch_add(1, Ordering::SeqCst);
        *state.last.lock().unwrap() = String::from_utf8_lossy(&buffer[..read]).into_owned();
        let answer = state.answer.lock().unwrap().clone();
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
