//! A link that can be cut, slowed down, reset and struck dumb while it carries traffic.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tenure_testkit::Port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::rng::Rng;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From who connected to who was connected to.
    Up,
    Down,
}

/// What a link does with its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Pass,
    /// Every connection ends and no new one is accepted.
    Cut,
    /// Every piece comes later, both ways.
    Delay {
        ms: u64,
        jitter_ms: u64,
    },
    /// Every connection is reset (RST) once it has carried this many bytes, counted from now on.
    Reset {
        after: u64,
    },
    /// Connections stay open and new ones are accepted, but what goes this way is lost. The ends learn of it when the
    /// link heals: a stream with a hole cannot go on, so it is reset then.
    HalfOpen {
        lost: Direction,
    },
}

/// A TCP proxy on 127.0.0.1. Ends, with its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    mode: watch::Sender<Mode>,
    acceptor: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a port of its own and passes everything on to `upstream`.
    pub async fn start(upstream: SocketAddr, seed: u64) -> Result<Self> {
        Self::start_before(vec![upstream], seed).await
    }

    /// Passes each connection on to one of `upstreams` that takes it.
    pub async fn start_before(upstreams: Vec<SocketAddr>, seed: u64) -> Result<Self> {
        let port = Port::reserve();
        let (mode, watched) = watch::channel(Mode::Pass);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).await?;
        let acceptor = tokio::spawn(accept(listener, port.number(), upstreams, watched, seed));
        Ok(Self { port, mode, acceptor })
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn accept(
    listener: TcpListener,
    port: u16,
    upstreams: Vec<SocketAddr>,
    mut mode: watch::Receiver<Mode>,
    seed: u64,
) {
    let mut connections = tokio::task::JoinSet::new();
    let mut listener = Some(listener);
    for number in 0_u64.. {
        let accepted = loop {
            if *mode.borrow_and_update() == Mode::Cut {
                // Without a listener the system refuses.
                listener = None;
                if mode.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let Some(open) = &listener else {
                match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
                    Ok(bound) => listener = Some(bound),
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
                continue;
            };
            tokio::select! {
                accepted = open.accept() => break accepted,
                changed = mode.changed() => if changed.is_err() { return },
                Some(_) = connections.join_next() => {}
            }
        };
        if let Ok((client, _)) = accepted {
            let rng = Rng::fork(seed, &format!("connection {number}"));
            connections.spawn(carry(client, upstreams.clone(), mode.clone(), rng));
        }
    }
}

/// What both directions of a connection share.
struct Wire {
    mode: watch::Receiver<Mode>,
    /// Bytes carried since the mode changed last.
    carried: AtomicU64,
    /// Something was lost: the streams are broken for good.
    broken: AtomicBool,
    rng: Mutex<Rng>,
}

impl Wire {
    fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    /// The end of a stream is lost like its bytes: then the other side is never told. Returns at once where nothing
    /// is lost.
    async fn lose(&self, way: Direction) {
        if (Mode::HalfOpen { lost: way }) == self.mode() {
            self.broken.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
    }
}

/// Carries one connection until an end closes it or the mode ends it.
async fn carry(client: TcpStream, mut upstreams: Vec<SocketAddr>, mode: watch::Receiver<Mode>, mut rng: Rng) {
    let first = rng.index(upstreams.len());
    upstreams.rotate_left(first);
    let Ok(server) = TcpStream::connect(upstreams.as_slice()).await else {
        // As if nobody had listened.
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let mut watch = mode.clone();
    let wire = Wire { mode, carried: 0.into(), broken: false.into(), rng: rng.into() };
    let (mut client_in, mut client_out) = client.into_split();
    let (mut server_in, mut server_out) = server.into_split();
    let up = pump(&mut client_in, &mut server_out, Direction::Up, &wire);
    let down = pump(&mut server_in, &mut client_out, Direction::Down, &wire);
    let changes = async {
        loop {
            let mode = *watch.borrow_and_update();
            let healed = !matches!(mode, Mode::HalfOpen { .. });
            if mode == Mode::Cut || healed && wire.broken.load(Ordering::Relaxed) {
                return;
            }
            if watch.changed().await.is_err() {
                return;
            }
            wire.carried.store(0, Ordering::Relaxed);
        }
    };
    let ended = tokio::select! {
        // An end that has nothing more to say may still listen.
        ended = async { tokio::try_join!(up, down) } => ended.is_ok(),
        () = changes => false,
    };
    if !ended {
        let _ = (client_in.as_ref().set_zero_linger(), server_in.as_ref().set_zero_linger());
        // Dropped, they would end the streams in order first.
        client_out.forget();
        server_out.forget();
    }
}

/// The connection is to be reset.
struct Reset;

/// Carries one direction until it ends in order.
async fn pump(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, way: Direction, wire: &Wire) -> Result<(), Reset> {
    let mut chunk = vec![0; 16 << 10];
    loop {
        let length = match from.read(&mut chunk).await {
            Ok(0) => {
                wire.lose(way).await;
                let _ = to.shutdown().await;
                return Ok(());
            }
            Ok(length) => length,
            Err(_) => {
                wire.lose(way).await;
                return Err(Reset);
            }
        };
        match wire.mode() {
            Mode::HalfOpen { lost } if lost == way => {
                wire.broken.store(true, Ordering::Relaxed);
                continue;
            }
            Mode::Delay { ms, jitter_ms } => {
                let jitter = wire.rng.lock().unwrap_or_else(PoisonError::into_inner).between(0, jitter_ms + 1);
                sleep(Duration::from_millis(ms + jitter)).await;
            }
            Mode::Reset { after } => {
                let before = wire.carried.fetch_add(length as u64, Ordering::Relaxed);
                if before + length as u64 > after {
                    // What still fits goes through: the other end sees a part of a message.
                    let fits = usize::try_from(after.saturating_sub(before)).unwrap_or(0).min(length);
                    let _ = to.write_all(&chunk[..fits]).await;
                    return Err(Reset);
                }
            }
            Mode::Pass | Mode::Cut | Mode::HalfOpen { .. } => {}
        }
        if to.write_all(&chunk[..length]).await.is_err() {
            return Err(Reset);
        }
    }
}

#[cfg(test)]
mod tests;
