use std::io::ErrorKind;
use std::time::Instant;

use tokio::time::timeout;

use super::*;

const SOON: Duration = Duration::from_secs(20);
/// Nothing comes so often for so long: then what was to come would have come. A machine that stands still takes one of
/// the times and leaves the others.
const QUIET: (usize, Duration) = (5, Duration::from_millis(200));

/// A proxy before a server that sends everything back.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    Proxy::start(upstream, 1).await.unwrap()
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap()
}

async fn talk(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"hello").await?;
    let mut back = [0; 5];
    timeout(SOON, stream.read_exact(&mut back)).await.expect("an answer")?;
    assert_eq!(&back, b"hello");
    Ok(())
}

/// What ends the connection: `None` is the end in order.
async fn end(stream: &mut TcpStream) -> Option<ErrorKind> {
    let mut rest = Vec::new();
    timeout(SOON, stream.read_to_end(&mut rest)).await.expect("an end").err().map(|error| error.kind())
}

async fn is_quiet(stream: &mut TcpStream) -> bool {
    let (times, each) = QUIET;
    for _ in 0..times {
        if timeout(each, stream.read_u8()).await.is_ok() {
            return false;
        }
    }
    true
}

#[tokio::test]
async fn passes_bytes_and_the_end_of_a_stream() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    talk(&mut stream).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(end(&mut stream).await, None, "one half may end before the other");
}

#[tokio::test]
async fn a_cut_ends_what_is_open_and_refuses_what_is_new_until_it_heals() {
    let proxy = echo().await;
    let mut open = connect(&proxy).await;
    talk(&mut open).await.unwrap();
    proxy.set(Mode::Cut);
    assert_eq!(end(&mut open).await, Some(ErrorKind::ConnectionReset));
    let refused = async || TcpStream::connect(("127.0.0.1", proxy.port())).await.is_err();
    tenure_testkit::wait_until("connections are refused", SOON, refused).await;
    proxy.set(Mode::Pass);
    let healed = async || TcpStream::connect(("127.0.0.1", proxy.port())).await.ok();
    let mut again = tenure_testkit::wait_until("the link heals", SOON, healed).await;
    talk(&mut again).await.unwrap();
}

#[tokio::test]
async fn a_delay_holds_back_both_ways() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    talk(&mut stream).await.unwrap();
    proxy.set(Mode::Delay { ms: 60, jitter_ms: 10 });
    let started = Instant::now();
    talk(&mut stream).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(120), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_reset_comes_in_the_middle_of_a_message() {
    let proxy = echo().await;
    let mut stream = connect(&proxy).await;
    talk(&mut stream).await.unwrap();
    // Three bytes go up and none comes back.
    proxy.set(Mode::Reset { after: 3 });
    assert_eq!(talk(&mut stream).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    // Up 5, down 4: the answer is cut. A reset may overtake what was sent before it.
    proxy.set(Mode::Reset { after: 9 });
    let mut second = connect(&proxy).await;
    assert!(talk(&mut second).await.is_err());
    proxy.set(Mode::Pass);
    talk(&mut connect(&proxy).await).await.unwrap();
}

#[tokio::test]
async fn a_half_open_link_swallows_one_way_and_resets_when_it_heals() {
    for lost in [Direction::Up, Direction::Down] {
        let proxy = echo().await;
        let mut open = connect(&proxy).await;
        talk(&mut open).await.unwrap();
        proxy.set(Mode::HalfOpen { lost });
        let mut new = connect(&proxy).await;
        for stream in [&mut open, &mut new] {
            stream.write_all(b"hello").await.unwrap();
            assert!(is_quiet(stream).await, "nothing comes, and nothing ends");
        }
        proxy.set(Mode::Pass);
        for stream in [&mut open, &mut new] {
            assert_eq!(end(stream).await, Some(ErrorKind::ConnectionReset));
        }
        talk(&mut connect(&proxy).await).await.unwrap();
    }
}

#[tokio::test]
async fn a_half_open_link_hides_that_the_other_end_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap(), 1).await.unwrap();
    let mut stream = connect(&proxy).await;
    let (mut accepted, _) = listener.accept().await.unwrap();
    accepted.write_u8(1).await.unwrap();
    stream.read_u8().await.unwrap();
    proxy.set(Mode::HalfOpen { lost: Direction::Down });
    accepted.set_zero_linger().unwrap();
    drop(accepted);
    assert!(is_quiet(&mut stream).await);
    proxy.set(Mode::Pass);
    assert_eq!(end(&mut stream).await, Some(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn nobody_behind_the_link_is_a_reset() {
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(upstream, 1).await.unwrap();
    assert_eq!(end(&mut connect(&proxy).await).await, Some(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn an_upstream_that_is_down_is_passed_over() {
    let (gone, there) = (Port::reserve(), echo().await);
    let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let proxy = Proxy::start_before(vec![address(gone.number()), address(there.port())], 1).await.unwrap();
    for _ in 0..8 {
        talk(&mut connect(&proxy).await).await.unwrap();
    }
}
