//! What can be reached.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::time::Duration;

use super::sys::socket;
use super::{Attempt, Refusal};

pub const ATTEMPTS: &[(&str, Attempt)] = &[
    ("socket-vsock", || family(libc::AF_VSOCK, libc::SOCK_STREAM, 0)),
    ("socket-packet", || family(libc::AF_PACKET, libc::SOCK_RAW, 0)),
    ("socket-raw", || family(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)),
    ("socket-alg", || family(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)),
    ("socket-key", || family(libc::AF_KEY, libc::SOCK_RAW, 2)),
    ("socket-bluetooth", || family(libc::AF_BLUETOOTH, libc::SOCK_RAW, 1)),
    ("socket-tipc", || family(libc::AF_TIPC, libc::SOCK_SEQPACKET, 0)),
    ("socket-rds", || family(libc::AF_RDS, libc::SOCK_SEQPACKET, 0)),
    ("socket-can", || family(libc::AF_CAN, libc::SOCK_RAW, 1)),
    ("socket-xdp", || family(libc::AF_XDP, libc::SOCK_RAW, 0)),
    ("netlink-audit", || family(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT)),
    ("netlink-netfilter", || family(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)),
    ("netlink-uevent", || family(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT)),
    ("metadata-address", || connect("169.254.169.254:80")),
    ("internet", || connect("1.1.1.1:443")),
    ("internet-6", || connect("[2606:4700:4700::1111]:443")),
    ("private-network", || connect("10.0.0.1:22")),
    ("send-datagram", || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.send_to(b"x", "8.8.8.8:53")?;
        Ok("sent a datagram".to_owned())
    }),
    ("resolve-name", || {
        let found = "example.com:80".to_socket_addrs().map_err(|_| Refusal::Absent("name resolution".to_owned()))?;
        Ok(format!("{} addresses", found.count()))
    }),
    ("host-socket", || {
        let name = std::env::var("HOST_SOCKET").map_err(|_| Refusal::Absent("HOST_SOCKET".to_owned()))?;
        UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?)?;
        Ok("connected to a socket of the host".to_owned())
    }),
];

fn family(family: i32, kind: i32, protocol: i32) -> Result<String, Refusal> {
    socket(family, kind, protocol).map(|_| "made a socket".to_owned())
}

fn connect(address: &str) -> Result<String, Refusal> {
    let address: SocketAddr = address.parse().map_err(|_| Refusal::Errno(libc::EINVAL))?;
    match TcpStream::connect_timeout(&address, Duration::from_secs(3)) {
        Ok(_) => Ok("connected".to_owned()),
        // A packet left: a closed port answers, and a lost packet is waited for.
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Ok("packets are sent".to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok("somebody answers".to_owned()),
        Err(error) => Err(error.into()),
    }
}
