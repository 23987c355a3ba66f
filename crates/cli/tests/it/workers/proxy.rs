//! A link that loses answers, or is cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Passes everything on, but for as many answers as it is told to lose: of those the other side has done the work, and
/// the caller sees a connection that ended.
pub struct Proxy {
    pub url: String,
    fault: Arc<Fault>,
}

#[derive(Default)]
struct Fault {
    losing: AtomicUsize,
    cut: AtomicBool,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let fault = Arc::<Fault>::default();
        let shared = Arc::clone(&fault);
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let fault = Arc::clone(&shared);
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(to).await {
                        pass(caller, server, &fault).await;
                    }
                });
            }
        });
        Self { url, fault }
    }

    /// Loses so many answers from now on.
    pub fn lose(&self, answers: usize) {
        self.fault.losing.store(answers, Ordering::SeqCst);
    }

    /// How many are still to be lost.
    pub fn to_lose(&self) -> usize {
        self.fault.losing.load(Ordering::SeqCst)
    }

    /// Lets nothing through, or all again.
    pub fn cut(&self, cut: bool) {
        self.fault.cut.store(cut, Ordering::SeqCst);
    }
}

async fn pass(caller: TcpStream, server: TcpStream, fault: &Fault) {
    let (mut from_caller, mut to_caller) = caller.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_caller.read(&mut bytes).await {
            if fault.cut.load(Ordering::SeqCst) || to_server.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    };
    let answers = async {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
            let lost =
                fault.losing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if lost || fault.cut.load(Ordering::SeqCst) || to_caller.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}
