//! A link that loses answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};

/// Passes everything on, but for as many answers as it is told to lose: of those the other side has done the work, and
/// the caller sees a connection that ended.
pub struct Proxy {
    pub url: String,
    losing: Arc<AtomicUsize>,
}

impl Proxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let losing = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&losing);
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(to).await {
                        pass(caller, server, &count).await;
                    }
                });
            }
        });
        Self { url, losing }
    }

    /// Loses so many answers from now on.
    pub fn lose(&self, answers: usize) {
        self.losing.store(answers, Ordering::SeqCst);
    }

    /// How many are still to be lost.
    pub fn to_lose(&self) -> usize {
        self.losing.load(Ordering::SeqCst)
    }
}

async fn pass(caller: TcpStream, server: TcpStream, losing: &AtomicUsize) {
    let (mut from_caller, mut to_caller) = caller.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = async {
        let _ = copy(&mut from_caller, &mut to_server).await;
    };
    let answers = async {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
            let lose = losing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if lose || to_caller.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}
