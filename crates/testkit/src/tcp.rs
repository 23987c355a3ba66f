//! A client that says to a server whatever a test wants, as slowly as it wants.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

/// A bare TCP connection: an HTTP library would not send half a request, one byte each second.
#[derive(Debug)]
pub struct RawClient {
    stream: TcpStream,
}

/// What a server sent, read by [`RawClient::read_for`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Everything received, with bytes that are no UTF-8 replaced.
    pub text: String,
    /// Whether the server ended the connection, in order or with a reset.
    pub closed: bool,
}

impl RawClient {
    /// Connects to `HOST:PORT`, which may stand inside of a URL like `http://HOST:PORT/path`.
    ///
    /// # Panics
    ///
    /// When nothing accepts the connection.
    pub async fn connect(address: &str) -> Self {
        let address = address.split_once("://").map_or(address, |(_, rest)| rest);
        let address = address.split('/').next().unwrap_or(address);
        let stream =
            TcpStream::connect(address).await.unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
        // Without this the system would gather single bytes into larger packets.
        stream.set_nodelay(true).expect("a new connection takes options");
        Self { stream }
    }

    /// Sends all bytes at once.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Sends one byte after each `pause`. An error says that the server has closed the connection,
    /// which is what a test of slow clients hopes for.
    pub async fn send_slowly(&mut self, bytes: impl AsRef<[u8]>, pause: Duration) -> io::Result<()> {
        for byte in bytes.as_ref() {
            sleep(pause).await;
            self.stream.write_all(&[*byte]).await?;
        }
        Ok(())
    }

    /// Reads until the server closes the connection, for at most `within`.
    pub async fn read_for(&mut self, within: Duration) -> Answer {
        self.read(within, |_| false).await
    }

    /// Reads until `marker` was received and returns everything up to then. For answers on a
    /// connection that stays open.
    ///
    /// # Panics
    ///
    /// When the connection ends or `deadline` passes before.
    pub async fn read_until(&mut self, marker: &str, deadline: Duration) -> String {
        let seen = |received: &[u8]| String::from_utf8_lossy(received).contains(marker);
        let Answer { text, closed } = self.read(deadline, seen).await;
        assert!(
            text.contains(marker),
            "no {marker:?} within {deadline:?} (connection closed: {closed}), only: {text:?}"
        );
        text
    }

    async fn read(&mut self, within: Duration, enough: impl Fn(&[u8]) -> bool) -> Answer {
        let end = Instant::now() + within;
        let mut received = Vec::new();
        let mut closed = false;
        while !closed && !enough(&received) {
            match timeout_at(end, self.stream.read_buf(&mut received)).await {
                Ok(read) => closed = matches!(read, Ok(0) | Err(_)),
                Err(_) => break,
            }
        }
        Answer { text: String::from_utf8_lossy(&received).into_owned(), closed }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn sends_byte_by_byte_and_reads_the_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/path", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 5];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(b"head\r\n\r\n").await.unwrap();
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(b"bye").await.unwrap();
            request
        });
        let mut client = RawClient::connect(&url).await;
        client.send_slowly("slow!", Duration::from_millis(2)).await.unwrap();
        assert_eq!(client.read_until("\r\n\r\n", SOON).await, "head\r\n\r\n");
        let quiet = client.read_for(Duration::from_millis(20)).await;
        assert!(!quiet.closed && quiet.text.is_empty());
        client.send("quick").await.unwrap();
        let answer = client.read_for(SOON).await;
        assert_eq!((answer.text.as_str(), answer.closed), ("bye", true));
        assert_eq!(&server.await.unwrap(), b"quick");
    }
}
