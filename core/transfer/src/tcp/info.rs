//! TCP_INFO: whether the peer's kernel acknowledges what we send. Nothing safe offers it.

use std::os::fd::AsRawFd;

use tokio::net::TcpStream;

/// An acknowledgement that is older than this, with bytes in flight, is missing: far above any round trip of a data
/// network and the kernel's delayed acknowledgement (40 ms), far below a progress TTL.
const MISSING_AFTER_MS: u32 = 200;

/// Whether bytes are in flight and nothing was acknowledged for a while; `None` if the socket cannot tell.
///
/// A stopped process is not that: its kernel acknowledges, and answers window probes.
pub(crate) fn unacked(socket: &TcpStream) -> Option<bool> {
    let info = tcp_info(socket)?;
    Some(info.tcpi_unacked > 0 && info.tcpi_last_ack_recv > MISSING_AFTER_MS)
}

#[allow(
    unsafe_code,
    reason = "getsockopt(TCP_INFO) has no safe wrapper in std, socket2 or rustix"
)]
fn tcp_info(socket: &TcpStream) -> Option<libc::tcp_info> {
    // SAFETY: tcp_info is plain integers; all zeroes is a value of it. The kernel writes at most `len` bytes into it, and
    // older kernels fewer, which leaves zeroes. The descriptor is open: `socket` is borrowed.
    unsafe {
        let mut info: libc::tcp_info = std::mem::zeroed();
        let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
        let status = libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        );
        // TCP_CLOSE: the connection is over and its counters are forgotten.
        (status == 0 && info.tcpi_state != 7).then_some(info)
    }
}
