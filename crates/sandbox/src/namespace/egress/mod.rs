//! Egress to a list of hosts. A sandbox has no route out of its network namespace; its one way out is a proxy on a port
//! of its loopback interface, whose listening socket was passed to this process. The proxy decides by the list, resolves
//! names itself and connects to the address that it has checked.

mod addresses;
mod allow_list;
mod request;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustix::net::AddressFamily;
use rustix::net::sockopt::{socket_acceptconn, socket_domain};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

pub(crate) use allow_list::AllowList;
use request::{MAX_HEAD_BYTES, Request};

/// The port of the proxy inside a sandbox.
pub(crate) const PROXY_PORT: u16 = crate::spec::GATEWAY_PORT;

/// Connections of one sandbox through the proxy at once. More wait in the listening socket.
const MAX_CONNECTIONS: usize = 64;

const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection over which nothing was sent for that long, in either direction, is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// The proxy of one sandbox. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    allowed: Arc<RwLock<AllowList>>,
    task: AbortHandle,
}

impl Proxy {
    /// Serves a listening socket that a sandbox passed out. It is checked: the sandbox is not trusted.
    /// `gateway` gets the requests that are for the proxy itself.
    pub fn serve(listener: OwnedFd, allowed: AllowList, gateway: Option<SocketAddr>) -> io::Result<Self> {
        if socket_domain(&listener)? != AddressFamily::INET || !socket_acceptconn(&listener)? {
            return Err(io::Error::other("the sandbox passed something else than a listening TCP socket"));
        }
        let listener = std::net::TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let allowed = Arc::new(RwLock::new(allowed));
        let task = tokio::spawn(accept(listener, Arc::clone(&allowed), gateway)).abort_handle();
        Ok(Self { allowed, task })
    }

    /// Replaces the list. Connections that exist stay.
    pub fn allow(&self, list: AllowList) {
        *self.allowed.write().unwrap_or_else(PoisonError::into_inner) = list;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, allowed: Arc<RwLock<AllowList>>, gateway: Option<SocketAddr>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => {
                let allowed = Arc::clone(&allowed);
                connections.spawn(async move {
                    let _permit = permit;
                    // A failure is the client's to see; it has been answered where that is possible.
                    let _ = serve(client, &allowed, gateway).await;
                });
            }
            // Out of descriptors, or a connection that was gone before it was accepted.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve(mut client: TcpStream, allowed: &RwLock<AllowList>, gateway: Option<SocketAddr>) -> io::Result<()> {
    let head = tokio::time::timeout(HEAD_TIMEOUT, read_head(&mut client)).await;
    let Ok(Ok((head, rest))) = head else {
        return refuse(&mut client, "408 Request Timeout", "the request was not complete in time or is too long").await;
    };
    if let Some(gateway) = gateway.filter(|_| request::is_for_the_proxy(&head)) {
        let Some(mut server) = connect(&[gateway]).await else {
            return refuse(&mut client, "502 Bad Gateway", "the gateway cannot be reached").await;
        };
        server.write_all(&head).await?;
        server.write_all(&rest).await?;
        return copy_both(client, server).await;
    }
    let request = match Request::parse(&head) {
        Ok(request) => request,
        Err(reason) => return refuse(&mut client, "400 Bad Request", reason).await,
    };
    // The list is cloned so that no lock is held over a look-up.
    let list = allowed.read().unwrap_or_else(PoisonError::into_inner).clone();
    let addresses = match list.resolve(&request.host, request.port).await {
        Ok(addresses) => addresses,
        Err(reason) => return refuse(&mut client, "403 Forbidden", &reason).await,
    };
    let Some(mut server) = connect(&addresses).await else {
        return refuse(&mut client, "502 Bad Gateway", "the host cannot be reached").await;
    };
    if request.tunnel {
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    } else {
        server.write_all(&request.forwarded).await?;
    }
    server.write_all(&rest).await?;
    copy_both(client, server).await
}

async fn connect(addresses: &[SocketAddr]) -> Option<TcpStream> {
    for address in addresses {
        if let Ok(Ok(server)) = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            return Some(server);
        }
    }
    None
}

/// Reads until the empty line, and returns what came after it separately.
async fn read_head(client: &mut TcpStream) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok((bytes, rest));
        }
        if bytes.len() >= MAX_HEAD_BYTES || client.read_buf(&mut bytes).await? == 0 {
            return Err(io::Error::other("no complete request"));
        }
    }
}

async fn refuse(client: &mut TcpStream, status: &str, reason: &str) -> io::Result<()> {
    let body = format!("{reason}\n");
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await?;
    client.write_all(body.as_bytes()).await?;
    client.shutdown().await
}

/// Copies in both directions until both have ended, or nothing moves.
async fn copy_both(client: TcpStream, server: TcpStream) -> io::Result<()> {
    let moved = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (mut client_read, mut client_write) = client.into_split();
    let (mut server_read, mut server_write) = server.into_split();
    let copies = async {
        let _ = tokio::join!(
            copy(&mut client_read, &mut server_write, &moved),
            copy(&mut server_read, &mut client_write, &moved),
        );
    };
    tokio::pin!(copies);
    let mut before = 0;
    loop {
        tokio::select! {
            () = &mut copies => return Ok(()),
            () = tokio::time::sleep(IDLE_TIMEOUT) => {
                let now = moved.load(std::sync::atomic::Ordering::Relaxed);
                if now == before {
                    return Err(io::Error::from(io::ErrorKind::TimedOut));
                }
                before = now;
            }
        }
    }
}

async fn copy(
    from: &mut tokio::net::tcp::OwnedReadHalf,
    to: &mut tokio::net::tcp::OwnedWriteHalf,
    moved: &std::sync::atomic::AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
        moved.fetch_add(length as u64, std::sync::atomic::Ordering::Relaxed);
    }
}
