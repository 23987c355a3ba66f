//! A server that counts what it is told, and a client.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind};
use tempfile::TempDir;
use tenure_tls::{ClientTls, LiveServer, PeerNames, ServerTls, dev_certs, peer_names};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A folder with a CA and certificates, one for worker `w-1`.
pub struct Certs(TempDir);

impl Certs {
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        dev_certs(folder.path(), &[], &["w-1".to_owned()]).unwrap();
        Self(folder)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// The server's own certificate, no client certificates.
    pub fn server(&self) -> ServerTls {
        ServerTls::new(self.file("server.crt"), self.file("server.key"))
    }

    /// The listener of worker `w-1`.
    pub fn worker(&self) -> ServerTls {
        ServerTls::new(self.file("worker-w-1.crt"), self.file("worker-w-1.key"))
    }

    /// Trusts this CA and shows nothing.
    pub fn trusting(&self) -> ClientTls {
        ClientTls { ca_file: Some(self.file("ca.crt")), ..ClientTls::default() }
    }

    /// Trusts this CA and shows the control plane's certificate.
    pub fn control_plane(&self) -> ClientTls {
        ClientTls {
            client_cert_file: Some(self.file("client.crt")),
            client_key_file: Some(self.file("client.key")),
            ..self.trusting()
        }
    }

    /// Puts the certificates of another folder in the place of these.
    pub fn replace(&self, other: &Certs, names: &[&str]) {
        for name in names {
            let moving = self.file(&format!("{name}.new"));
            std::fs::copy(other.file(name), &moving).unwrap();
            std::fs::rename(moving, self.file(name)).unwrap();
        }
    }
}

#[derive(Default)]
pub struct Seen {
    /// Bytes of application data.
    pub bytes: AtomicUsize,
    pub connections: AtomicUsize,
    /// The clients whose handshake succeeded.
    pub clients: Mutex<Vec<Option<PeerNames>>>,
}

pub struct Server {
    pub address: SocketAddr,
    pub live: Arc<LiveServer>,
    pub seen: Arc<Seen>,
}

impl Server {
    pub async fn start(tls: ServerTls) -> Self {
        let live = Arc::new(tls.load().unwrap());
        let seen = Arc::new(Seen::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (accepting, counting) = (Arc::clone(&live), Arc::clone(&seen));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = TlsAcceptor::from(accepting.config());
                tokio::spawn(serve(acceptor, stream, Arc::clone(&counting)));
            }
        });
        Self { address, live, seen }
    }

    pub fn bytes(&self) -> usize {
        self.seen.bytes.load(Ordering::SeqCst)
    }
}

/// Answers each byte with itself until the client is done.
async fn serve(acceptor: TlsAcceptor, stream: TcpStream, seen: Arc<Seen>) {
    seen.connections.fetch_add(1, Ordering::SeqCst);
    let Ok(mut stream) = acceptor.accept(stream).await else {
        return;
    };
    seen.clients.lock().unwrap().push(peer_names(stream.get_ref().1));
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        seen.bytes.fetch_add(count, Ordering::SeqCst);
        if stream.write_all(&buffer[..count]).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

/// A connection that said something and was answered.
pub struct Call {
    pub certificate: CertificateDer<'static>,
    pub resumed: bool,
}

/// Connects, says `ping`, reads it back. An error is the text of it.
pub async fn call(config: ClientConfig, name: &str, address: SocketAddr) -> Result<Call, String> {
    call_with(Arc::new(config), name, address).await
}

pub async fn call_with(config: Arc<ClientConfig>, name: &str, address: SocketAddr) -> Result<Call, String> {
    let text = |error: std::io::Error| error.to_string();
    let stream = TcpStream::connect(address).await.map_err(text)?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = TlsConnector::from(config).connect(name, stream).await.map_err(text)?;
    stream.write_all(b"ping").await.map_err(text)?;
    // Without it the bytes may stay in the buffer of the session.
    stream.flush().await.map_err(text)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.map_err(text)?;
    assert_eq!(&answer, b"ping");
    let connection = stream.get_ref().1;
    let certificate = connection.peer_certificates().unwrap()[0].clone();
    let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
    let _ = stream.shutdown().await;
    Ok(Call { certificate, resumed })
}

/// Calls worker `w-1` under the name that it has.
pub async fn call_worker(client: ClientTls, server: &Server) -> Result<Call, String> {
    call(client.load().unwrap().for_worker("w-1").unwrap(), "localhost", server.address).await
}
