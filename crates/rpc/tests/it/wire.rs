//! What stands between a client and a worker, or in the worker's place.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tenure_rpc::{Capabilities, Target};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::kit::at;

/// Passes connections on to a worker, until it is told to cut them.
pub struct Wire {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    open: Arc<Mutex<Vec<JoinHandle<()>>>>,
    /// What of an answer comes through on each connection.
    answer_bytes: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Wire {
    pub async fn to(worker: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let answer_bytes = Arc::new(AtomicUsize::new(usize::MAX));
        let (count, tasks, limit) = (Arc::clone(&connections), Arc::clone(&open), Arc::clone(&answer_bytes));
        let accepting = tokio::spawn(async move {
            loop {
                let (outside, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let limit = Arc::clone(&limit);
                let task = tokio::spawn(async move { pass(outside, worker, &limit).await });
                tasks.lock().unwrap().push(task);
            }
        });
        Self { address, connections, open, answer_bytes, accepting }
    }

    pub fn target(&self) -> Target {
        at(&format!("http://{}", self.address), Capabilities::all())
    }

    /// How many connections there have been.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Ends all connections at once.
    pub fn cut(&self) {
        self.open.lock().unwrap().drain(..).for_each(|task| task.abort());
    }

    /// From now on a connection is cut when it has carried this much of answers.
    pub fn cut_answers_after(&self, bytes: usize) {
        self.answer_bytes.store(bytes, Ordering::SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn pass(mut outside: TcpStream, worker: SocketAddr, limit: &AtomicUsize) {
    let mut inside = TcpStream::connect(worker).await.unwrap();
    let (mut from_outside, mut to_outside) = outside.split();
    let (mut from_inside, mut to_inside) = inside.split();
    let requests = async { drop(tokio::io::copy(&mut from_outside, &mut to_inside).await) };
    let answers = async {
        let (mut buffer, mut carried) = (vec![0; 16 << 10], 0);
        while let Ok(count @ 1..) = from_inside.read(&mut buffer).await {
            let room = limit.load(Ordering::SeqCst).saturating_sub(carried);
            if to_outside.write_all(&buffer[..count.min(room)]).await.is_err() || count >= room {
                break;
            }
            carried += count;
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}

/// A request as it came over the wire.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    pub head: String,
    pub body: Vec<u8>,
}

impl Heard {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn id(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        body["id"].as_str().unwrap().to_owned()
    }
}

/// Reads one request; none when the client is gone.
pub async fn hear(stream: &mut TcpStream) -> Option<Heard> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut heard = Heard { head, body: bytes.split_off(end) };
    let length = heard.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while heard.body.len() < length {
        if stream.read_buf(&mut heard.body).await.ok()? == 0 {
            return None;
        }
    }
    Some(heard)
}

/// A server that treats each connection as `serve` says. Counts them.
pub async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve(stream));
        }
    });
    (address, count)
}

/// A server that answers every request on a connection with what `answer` makes of it.
pub async fn answering(
    answer: impl Fn(&Heard) -> Vec<u8> + Send + Sync + 'static,
) -> (SocketAddr, Arc<Mutex<Vec<Heard>>>) {
    let (answer, all) = (Arc::new(answer), Arc::new(Mutex::new(Vec::new())));
    let kept = Arc::clone(&all);
    let (address, _) = server(move |mut stream| {
        let (answer, kept) = (Arc::clone(&answer), Arc::clone(&kept));
        async move {
            while let Some(heard) = hear(&mut stream).await {
                let bytes = answer(&heard);
                kept.lock().unwrap().push(heard);
                if stream.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    (address, all)
}

/// A complete answer.
pub fn http(status: u16, kind: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}
